"""MAGNET end to end on a tiny model: packed equals three passes, resumed equals uninterrupted, mistakes are one sentence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ambilm import AmbiLM
from ambilm.adaptation import AdapterSettings, add_adapter, trainable_parameters
from ambilm.errors import UserError
from ambilm.objectives import infill_view, plain_view
from ambilm.objectives.views import Masking
from ambilm.recipes import CausalControl, Magnet
from ambilm.training import adapt
from ambilm.training.checkpoint import find_checkpoint
from ambilm.training.losses import LossSettings, StepViews, packed_losses, three_pass_losses
from ambilm.training.trainer import Interrupted, Trainer


def recipe(**changes: Any) -> Magnet:
    small = {
        "stage1_steps": 2,
        "stage2_steps": 2,
        "texts_per_step": 3,
        "pairs_per_step": 4,
        "checkpoint_every": 1,
        "rank": 4,
    }
    return Magnet(**{**small, **changes})


def lines(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("sink", [True, False])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_packed_step_equals_three_passes(tiny_model: Path, pooling: str, sink: bool) -> None:
    model = AmbiLM.from_pretrained(tiny_model, dtype="float32")
    add_adapter(model.view, AdapterSettings(rank=4))
    random = np.random.default_rng(0)

    def text(length: int) -> np.ndarray:
        return random.integers(100, 5000, length)

    masking = Masking(0.3, 5, 5000)
    hybrid = [infill_view(text(n), [(4, 12), (15, 18)], [10, 6], 2, masking, random) for n in (25, 40, 31)]
    sides = [[plain_view(text(n)) for n in lengths] for lengths in ((5, 9, 7), (6, 6, 12), (8, 4))]
    anchors, positives, negatives = sides
    views = StepViews(hybrid, anchors, positives, negatives, teacher=torch.tensor(random.normal(size=(8, 5))))
    weights = {"mntp": 0.7, "msg": 1.1, "sscl": 0.9, "distillation": 1.3}
    settings = LossSettings(weights, temperature=0.2, pooling=pooling, sink=sink)  # type: ignore[arg-type]
    results = []
    for compute in (packed_losses, three_pass_losses):
        model.view.zero_grad()
        losses = compute(model.view, views, settings)
        losses.total.backward()
        grads = torch.cat([p.grad.flatten() for p in trainable_parameters(model.view).values() if p.grad is not None])
        assert losses.tokens == sum(map(len, hybrid + views.clean))
        results.append((torch.stack([*losses.parts.values(), losses.total]), grads))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=1e-4)


def test_a_text_that_is_the_anchor_is_no_negative(tiny_model: Path) -> None:
    """One pair whose hard negative is its own anchor (or positive): nothing is left to tell apart."""
    model = AmbiLM.from_pretrained(tiny_model, dtype="float32")
    hybrid, anchor, positive = (
        infill_view(range(100, 120), [(4, 12)], [8], 2),
        plain_view([5, 6, 7]),
        plain_view([8, 9]),
    )
    for negative, is_zero in ((anchor, True), (positive, True), (plain_view([50, 60]), False)):
        losses = packed_losses(model.view, StepViews([hybrid], [anchor], [positive], [negative]), LossSettings())
        assert (losses.parts["sscl"].item() == 0) == is_zero


def test_a_stopped_run_resumes_bit_for_bit(
    tiny_model: Path, text_file: str, pair_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"views": "both", "attention_dropout": 0.2}
    whole = adapt(recipe(**options), str(tiny_model), [text_file], tmp_path / "whole", pairs=[pair_file])
    stopped = tmp_path / "stopped"
    step = Trainer.step

    def stop_at_third(trainer: Trainer, number: int) -> Any:
        if number == 2:
            raise Interrupted
        return step(trainer, number)

    monkeypatch.setattr(Trainer, "step", stop_at_third)
    with pytest.raises(Interrupted):
        adapt(recipe(**options), str(tiny_model), [text_file], stopped, pairs=[pair_file])
    monkeypatch.setattr(Trainer, "step", step)
    assert not (stopped / "ambilm.json").exists()
    with pytest.raises(UserError, match="other settings"):
        adapt(
            recipe(**options, learning_rate=1e-4), str(tiny_model), [text_file], stopped, pairs=[pair_file], resume=True
        )
    adapt(recipe(**options), str(tiny_model), [text_file], stopped, pairs=[pair_file], resume=True)
    left, right = (load_file(run / "adapter" / "adapter_model.safetensors") for run in (whole, stopped))
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    for one, other in zip(lines(whole), lines(stopped), strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert [line["stage"] for line in lines(whole)] == [1, 1, 2, 2]
    assert "sscl" not in lines(whole)[0] and lines(whole)[2]["sscl"] > 0


@pytest.mark.parametrize(
    "changes",
    [
        {},  # dropout views
        {"pooling": "mean", "prompt": "", "sink": False},
        {"tuning": "full", "modules": "ffn"},
        {"modules": "emb+att"},
        {"prompt": 'This sentence : "{text}" means in one word:"'},
    ],
)
def test_every_choice_trains_saves_and_loads(
    tiny_model: Path, text_file: str, tmp_path: Path, changes: dict[str, Any]
) -> None:
    output = adapt(recipe(stage1_steps=1, stage2_steps=1, **changes), str(tiny_model), [text_file], tmp_path / "run")
    model = AmbiLM.from_pretrained(output, dtype="float32")
    assert model.is_adapted and (model.settings.recipe, model.settings.word_shift) == ("magnet", 0)
    assert np.isfinite(model.encode(["a", "b"])).all()
    assert all(np.isfinite(line["loss"]) for line in lines(output))
    assert not (output / "tokens").exists()


def test_the_control_draws_the_same_spans(tiny_model: Path, text_file: str, tmp_path: Path) -> None:
    output = adapt(CausalControl(steps=2, texts_per_step=3, rank=4), str(tiny_model), [text_file], tmp_path / "control")
    assert lines(output)[1]["msg"] > 0 and lines(output)[1]["mntp"] == 0
    assert AmbiLM.from_pretrained(output).settings.recipe == "causal_control"


def test_mistakes_are_one_sentence(tiny_model: Path, text_file: str, pair_file: str, tmp_path: Path) -> None:
    def refused(
        words: str, changes: dict[str, Any], output: str = "new", text: str = text_file, **options: Any
    ) -> None:
        with pytest.raises(UserError, match=words):
            adapt(recipe(**changes), str(tiny_model), [text], tmp_path / output, **options)

    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("mine")
    refused("is not empty", {}, "full")
    refused("left alone", {}, "full", overwrite=True)
    assert (tmp_path / "full" / "precious.txt").exists()
    (tmp_path / "short.txt").write_text("Too short.")
    refused("no text of 12 tokens", {}, text=str(tmp_path / "short.txt"))
    refused("does not exist", {}, text=str(tmp_path / "absent.txt"), output="new2")
    refused("dropout", {"attention_dropout": 0}, output="new3")
    refused("needs --pairs", {"views": "pairs"}, output="new4")
    refused("lower pairs_per_step", {"pairs_per_step": 50}, output="new5", pairs=[pair_file])
    refused("Unknown module group", {"modules": "fnn"}, output="new5")
    assert not (tmp_path / "new5").exists()  # the corrected command must not find leftovers
    refused("not one token", {"mask_token": "[NOPE]"}, output="new6")
    refused("loss", {"learning_rate": 1e30, "stage1_steps": 4}, output="new7")


def test_a_broken_off_checkpoint_is_absent(tmp_path: Path) -> None:
    assert find_checkpoint(tmp_path) is None
    (tmp_path / "incomplete").mkdir()
    (tmp_path / "incomplete" / "facts.json").write_text("{}")
    assert find_checkpoint(tmp_path) is None
    (tmp_path / "previous").mkdir()
    (tmp_path / "previous" / "facts.json").write_text("{}")
    assert find_checkpoint(tmp_path) == tmp_path / "previous"
