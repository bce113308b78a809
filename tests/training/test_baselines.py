"""The baselines: each recipe learns, resumes bit for bit, loads, and leaves generation as it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ambilm import AmbiLM
from ambilm.errors import UserError
from ambilm.objectives import MNTP, infill_view
from ambilm.objectives.views import NO_TARGET, Masking
from ambilm.recipes import ConversationSettings, Grit, Instruction, Llm2vec, Mntp, Recipe, Simcse
from ambilm.training import adapt
from ambilm.training.trainer import Interrupted, Trainer

SMALL = {"rank": 4, "alpha": 8.0, "dropout": 0.1, "checkpoint_every": 1, "learning_rate": 0.01}
SMALL_STEPS = {"texts_per_step": 4, "pairs_per_step": 8, "conversations_per_step": 2, "mntp_steps": 2, "steps": 4}
NOISY = {"attention_dropout": 0.6}  # views far enough apart for a loss that can fall
CASES: dict[str, tuple[type[Recipe], dict[str, Any], bool]] = {
    # a recipe, its settings, whether --pairs are given
    "mntp": (Mntp, {}, False),
    "mntp-papers-mask": (Mntp, {"sink": False, "mask_replaced": 0.8, "mask_random": 0.1}, False),
    "simcse": (Simcse, NOISY, False),
    "simcse-pairs": (Simcse, {}, True),
    "llm2vec": (Llm2vec, NOISY, False),
    "llm2vec-pairs": (Llm2vec, {"sink": False}, True),
    "grit": (Grit, {}, True),
    "instruction": (Instruction, {}, False),
    "instruction-mixed": (Instruction, {"mask": "mixed"}, False),
}


def make(kind: type[Recipe], **changes: Any) -> Recipe:
    known = {name: value for name, value in {**SMALL, **SMALL_STEPS}.items() if name in kind.model_fields}
    return kind(**{**known, **changes})


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


@pytest.fixture(params=CASES)
def run(
    request: pytest.FixtureRequest, tiny_model: Path, text_file: str, talk_file: str, pair_file: str
) -> Callable[..., Path]:
    """Trains the recipe of a case; its settings may be changed."""
    kind, settings, with_pairs = CASES[request.param]
    text = talk_file if issubclass(kind, ConversationSettings) else text_file

    def train(output: Path, resume: bool = False, **changes: Any) -> Path:
        recipe = make(kind, **{**settings, **changes})
        pairs = [pair_file] if with_pairs else []
        return adapt(recipe, str(tiny_model), [text], output, pairs, resume=resume, dtype="float32")

    return train


def test_it_learns_and_generation_stays(run: Callable[..., Path], tiny_model: Path, tmp_path: Path) -> None:
    output = run(tmp_path / "run", steps=16)
    losses = [line["loss"] for line in lines(output)]
    assert np.median(losses[-6:]) < np.median(losses[:4]) - 0.02  # the median: a step of few texts may be odd
    model, base = (AmbiLM.from_pretrained(name, dtype="float32") for name in (output, tiny_model))
    ids = torch.arange(100, 140)[None]
    with torch.inference_mode():
        assert torch.equal(model.base(ids).logits, base.base(ids).logits)
    vectors = model.encode(["A man eats.", "It rains."])
    assert np.isfinite(vectors).all() and not np.allclose(
        vectors, model.encode(["A man eats.", "It rains."], weights="base")
    )
    assert not (output / "tokens").exists()


def test_a_stopped_run_resumes_bit_for_bit(
    run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, stopped, step = run(tmp_path / "whole"), tmp_path / "stopped", Trainer.step

    def stop_at_last(trainer: Trainer, number: int) -> Any:
        if number == 3:
            raise Interrupted
        return step(trainer, number)

    monkeypatch.setattr(Trainer, "step", stop_at_last)
    with pytest.raises(Interrupted):
        run(stopped)
    monkeypatch.setattr(Trainer, "step", step)
    run(stopped, resume=True)
    left, right = (load_file(path / "adapter" / "adapter_model.safetensors") for path in (whole, stopped))
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    for one, other in zip(lines(whole), lines(stopped), strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_what_the_models_remember(tiny_model: Path, text_file: str, tmp_path: Path) -> None:
    for kind, shift in ((Mntp, 1), (Simcse, 0), (Llm2vec, 1)):
        output = adapt(make(kind, steps=1), str(tiny_model), [text_file], tmp_path / kind.name)
        settings = AmbiLM.from_pretrained(output).settings
        assert (settings.recipe, settings.layout, settings.word_shift) == (kind.name, "bidirectional", shift)
        assert (settings.pooling, settings.prompt, settings.append_end, settings.sink) == ("mean", "", False, True)
    assert AmbiLM.from_pretrained(tmp_path / "llm2vec" / "mntp").settings.recipe == "mntp"


def test_mntp_of_a_short_text_always_asks_for_something() -> None:
    masking = Masking(0.01, mask_token=5, vocabulary=900, replaced=1.0, random=0.0, never_none=True)
    random = np.random.default_rng(0)
    for _ in range(50):
        view = infill_view([0, 7, 8], [], [], 2, masking, random)
        (asked,) = np.flatnonzero(view.targets != NO_TARGET)
        assert view.objective[asked] == MNTP and view.targets[asked] == 7 + asked
        assert view.ids[asked + 1] == 5 and view.ids[0] == 0 and not view.is_span.any()


def test_llm2vec_goes_on_from_a_run_of_mntp(tiny_model: Path, text_file: str, tmp_path: Path) -> None:
    """The second stage starts at the first one's weights, and the first run stays what it was."""
    first = adapt(make(Mntp), str(tiny_model), [text_file], tmp_path / "first", dtype="float32")
    still = make(Llm2vec, learning_rate=1e-12, steps=1, dropout=0.3)
    second = adapt(still, str(first), [text_file], tmp_path / "second", dtype="float32")
    one, other = (AmbiLM.from_pretrained(path, dtype="float32") for path in (first, second))
    assert other.adapter is not None and other.adapter.dropout == 0.3
    np.testing.assert_allclose(one.encode(["A man eats."]), other.encode(["A man eats."]), atol=1e-6)
    assert not (second / "mntp").exists()


def test_mistakes_are_one_sentence(tiny_model: Path, text_file: str, pair_file: str, tmp_path: Path) -> None:
    first = adapt(make(Mntp, steps=1), str(tiny_model), [text_file], tmp_path / "first")
    simcse = adapt(make(Simcse, steps=1), str(tiny_model), [text_file], tmp_path / "simcse")

    def refused(words: str, recipe: Recipe, model: Path, text: str = text_file, pairs: str = "") -> None:
        with pytest.raises(UserError, match=words):
            adapt(recipe, str(model), [text] if text else [], tmp_path / "new", [pairs] if pairs else [])
        assert not (tmp_path / "new").exists()

    refused("Recipe mntp reads text: give --text FILE.", make(Mntp), tiny_model, text="")
    refused("Recipe mntp reads text: give --text FILE.", make(Llm2vec), tiny_model, text="", pairs=pair_file)
    refused("adapted already", make(Mntp), first)
    refused("is no run of recipe mntp: give", make(Llm2vec), simcse)
    refused("add --set rank=4 sink=true, as there", make(Llm2vec, rank=2, sink=False), first)
    refused("not one token", make(Mntp, mask_token="[NOPE]"), tiny_model)
    refused("Unknown module group", make(Llm2vec, modules="fnn"), tiny_model)
    with pytest.raises(ValueError, match="lower one of the two"):
        make(Mntp, mask_random=0.1)
