"""Repetition on the real SmolLM2-135M: figures by hand, rows that are what they say, seeded sampling."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ambilm import AmbiLM
from ambilm.adaptation import AdapterSettings, add_adapter, trainable_parameters
from ambilm.errors import UserError
from ambilm.evaluation import evaluate, repetition
from ambilm.evaluation.repetition import Opening, continuations, repetition_figures

STORY = ["Tom lost his keys.", "He looked at home.", "He looked at home.", "They were there.", "Tom drove home."]
PARAGRAPH = " ".join(f"word{number}" for number in range(44))


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "LONGEST", 6)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write(tmp_path / "rocstories.jsonl", [{"sentences": STORY, "split": "valid"}] * 2)
    write(tmp_path / "wikitext2.jsonl", [{"text": PARAGRAPH, "split": "valid"}] * 2)
    return tmp_path


@pytest.fixture(scope="module")
def adapted(smollm2: AmbiLM) -> AmbiLM:
    """The real model with an adapter that is far from nothing, on modules of its own."""
    model = AmbiLM(smollm2.base, smollm2.tokenizer, "adapted")
    model.adapter = AdapterSettings(rank=4)
    add_adapter(model.view, model.adapter)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trainable_parameters(model.view).values():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(model: AmbiLM, tasks: str, data: Path) -> dict[str, Any]:
    return evaluate(model, tasks, [data], data / "results.json", progress=False)["tasks"]


def test_figures_by_hand() -> None:
    figures = repetition_figures(["A b. A b. A c.", "One two three."])
    # "A b. A b. A c.": 2-grams "A b." "b. A" twice each and "A c."; 3-grams "A b. A" twice, "b. A b.", "b. A c.".
    assert figures["rep_2"] == pytest.approx((2 / 5 + 0) / 2)
    assert figures["rep_3"] == pytest.approx((1 / 4 + 0) / 2)
    # The second text has no 4-gram and does not count; its one sentence does.
    assert figures["rep_4"] == 0 and figures["rep_4_error"] is None
    assert figures["rep_sen"] == pytest.approx((1 / 3 + 0) / 2) and figures["words"] == 4.5
    assert math.isnan(repetition_figures([""])["rep_4"])


def test_every_row_is_measured(smollm2: AmbiLM, data: Path) -> None:
    tasks = run(smollm2, "repetition", data)
    stories, paragraphs = tasks["rocstories:repetition"], tasks["wikitext2:repetition"]
    assert (
        stories["metric"] == "Rep-4" and stories["n"] == 2 and stories["main"] == stories["greedy"]["switched"]["rep_4"]
    )
    # An unadapted model has nothing to merge. What people wrote is the rest of the text.
    assert list(stories["greedy"]) == list(stories["sampled"]) == ["switched"]
    assert stories["people"]["rep_sen"] == 1 / 4 and paragraphs["people"]["words"] == 44 - repetition.OPENING_WORDS
    assert {sample["opening"] for sample in stories["samples"]} == {STORY[0]}


def test_a_merged_model_has_a_row_of_its_own(adapted: AmbiLM, data: Path) -> None:
    entry = run(adapted, "rocstories:repetition", data)["rocstories:repetition"]
    assert list(entry["greedy"]) == list(entry["sampled"]) == ["switched", "merged"]
    assert entry["main"] == entry["greedy"]["switched"]["rep_4"]
    assert entry["merged_rep_4"] == entry["greedy"]["merged"]["rep_4"]
    wrote = {(sample["row"], sample["decoding"]): sample["continuation"] for sample in entry["samples"]}
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    assert wrote["switched", "greedy"] == adapted.generate(STORY[0], **options)
    assert wrote["merged", "greedy"] == adapted.merged().generate(STORY[0], **options) != wrote["switched", "greedy"]


def test_sampling_is_seeded(smollm2: AmbiLM) -> None:
    openings = [Opening(STORY[0], ""), Opening(STORY[3], "")]
    texts = [continuations(smollm2, smollm2.base, openings, "sampled", seed) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2] and len(texts[0]) == 2


def test_short_texts_are_explained(smollm2: AmbiLM, data: Path) -> None:
    write(data / "wikitext2.jsonl", [{"text": "Too short.", "split": "valid"}] * 3)
    with pytest.raises(UserError, match=r"wikitext2\.jsonl: fewer than 2 texts"):
        run(smollm2, "wikitext2:repetition", data)
