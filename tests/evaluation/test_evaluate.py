"""Tasks on the real SmolLM2-135M: agreement with other ways to a figure, the results file, going on."""

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from ambilm.errors import UserError
from ambilm.evaluation import evaluate, infilling, sts
from ambilm.evaluation.dependence import attention_dependence
from ambilm.evaluation.infilling import left_to_right_log_probs, remove_sentence, remove_span
from ambilm.evaluation.perplexity import causal_perplexity

if TYPE_CHECKING:
    from ambilm import AmbiLM

STORIES = [
    [
        "Tom lost his keys.",
        "He looked under the bed.",
        "Then he looked in the car.",
        "They were there.",
        "Tom drove home.",
    ],
    [
        "Ann baked a cake.",
        "It smelled wonderful.",
        "Her dog ate half of it.",
        "Ann was angry.",
        "She baked another one.",
    ],
    ["It was cold.", "Sam made a fire.", "The wood was wet.", "It smoked a lot.", "Sam went inside."],
]
PARAGRAPH = (
    "The harbour was built in the nineteenth century to serve a fishing fleet . Later it grew for ferries , and "
    "a railway line connected it with the capital . Today most of its traffic is pleasure boats and small cargo ships ."
)
PAIRS = [
    ("A man plays a guitar.", "Someone is playing an instrument.", 4.0),
    ("A cat sleeps.", "The stock market fell.", 0.0),
    ("Two dogs run in the snow.", "Dogs are running through snow.", 4.8),
    ("The plane landed late.", "The train arrived on time.", 1.5),
    ("A child is eating.", "A woman cuts vegetables.", 1.0),
]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    pairs = [{"sentence1": a, "sentence2": b, "score": score, "subset": "s"} for a, b, score in PAIRS]
    write(folder / "stsb.jsonl", [{**row, "split": split} for split in ("test", "dev") for row in pairs])
    write(folder / "rocstories.jsonl", [{"sentences": story, "split": "valid"} for story in STORIES])
    write(folder / "wikitext2.jsonl", [{"text": PARAGRAPH, "split": "valid"}] * 3)
    return folder


def run(model: "AmbiLM", tasks: str, data: Path, **options: Any) -> dict[str, Any]:
    output = data.parent / "results.json"
    content = evaluate(model, tasks, [data], output, progress=False, **options)
    assert json.loads(output.read_text()) == json.loads(json.dumps(content))
    assert not list(output.parent.glob(".*part"))
    return content["tasks"]


def test_sts_is_spearman_of_encode_and_the_file_keeps_the_contract(smollm2: "AmbiLM", data: Path) -> None:
    tasks = run(smollm2, "stsb,stsb:dev,stsb@causal-mean", data)
    left, right = (smollm2.encode([str(pair[side]) for pair in PAIRS], normalize_embeddings=True) for side in (0, 1))
    expected = spearmanr((left * right).sum(axis=1), [pair[2] for pair in PAIRS]).statistic
    assert tasks["stsb"]["main"] == tasks["stsb:dev"]["main"] == pytest.approx(expected)
    assert list(tasks["stsb"])[:4] == ["main", "metric", "n", "seconds"] and tasks["stsb"]["n"] == len(PAIRS)
    content = json.loads((data.parent / "results.json").read_text())
    assert content["model"] == smollm2.name and set(content) == {"model", "ambilm_version", "versions", "tasks"}
    assert {"python", "torch", "transformers"} <= set(content["versions"])


def test_real_rows_of_sts15(smollm2: "AmbiLM", data_dir: Path, tmp_path: Path) -> None:
    entry = evaluate(smollm2, "sts15,sts15@causal-last", [data_dir], tmp_path / "r.json", limit=20, progress=False)[
        "tasks"
    ]
    assert entry["sts15"]["n"] == 20 and entry["sts15"]["main"] > 0.3


def test_finished_tasks_are_kept_until_something_changes(
    smollm2: "AmbiLM", data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(model: "AmbiLM", pairs: list[Any], progress: bool) -> np.ndarray:
        calls.append(1)
        return np.arange(len(pairs), dtype=float)

    monkeypatch.setattr(sts, "similarities", counted)
    first = run(smollm2, "stsb", data)
    with pytest.raises(UserError):  # stops before anything is written
        run(smollm2, "stsb,no_such_task", data)
    assert run(smollm2, "stsb,stsb:dev", data)["stsb"] == first["stsb"] and len(calls) == 2
    run(smollm2, "stsb", data, limit=3)
    run(smollm2, "stsb", data, limit=3, seed=1)
    assert len(calls) == 4
    with (data / "stsb.jsonl").open("a") as stream:
        stream.write(
            json.dumps({"sentence1": "x", "sentence2": "y", "score": 1, "subset": "s", "split": "test"}) + "\n"
        )
    assert run(smollm2, "stsb", data, limit=3, seed=1) and len(calls) == 5


def test_results_survive_a_failing_task_and_of_another_model_are_refused(smollm2: "AmbiLM", data: Path) -> None:
    (data / "sts12.jsonl").write_text("{broken\n")
    with pytest.raises(UserError, match=r"sts12\.jsonl, line 1"):
        evaluate(smollm2, "stsb,sts12", [data], data.parent / "results.json", progress=False)
    output = data.parent / "results.json"
    content = json.loads(output.read_text())
    assert list(content["tasks"]) == ["stsb"]
    output.write_text(json.dumps({**content, "model": "another"}))
    with pytest.raises(UserError, match="holds results of 'another'"):
        run(smollm2, "stsb", data)


def test_removed_pieces_are_where_they_say(smollm2: "AmbiLM") -> None:
    decode = smollm2.tokenizer.decode
    for index in (1, 2, 3):
        removal = remove_sentence(smollm2, STORIES[0], index)
        assert removal is not None and decode(removal.ids[removal.start : removal.stop]).strip() == STORIES[0][index]
        assert removal.blanked == " ".join([*STORIES[0][:index], "[BLANK]", *STORIES[0][index + 1 :]])
    for seed in range(20):
        span = remove_span(smollm2, PARAGRAPH, random.Random(seed))
        assert span is not None and 8 <= span.stop - span.start <= 32
        assert span.start >= 8 and len(span.ids) - span.stop >= 8
        assert decode(span.ids[span.start : span.stop]).strip() == span.removed
    assert remove_span(smollm2, "Too short to lose anything.", random.Random(0)) is None


def test_left_to_right_is_the_base_models_own_loss(smollm2: "AmbiLM") -> None:
    removal = remove_sentence(smollm2, STORIES[1], 2)
    assert removal is not None
    ids = torch.tensor([[smollm2.settings.start_token_id, *removal.ids]])
    with torch.inference_mode():
        scores = smollm2.base(ids).logits[0].log_softmax(-1)  # (length, vocabulary)
    expected = scores[:-1].gather(1, ids[0, 1:, None])[removal.start : removal.stop, 0].numpy()
    found = left_to_right_log_probs(smollm2, [removal, removal])[1]
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_infilling_tasks_report_every_reading(smollm2: "AmbiLM", data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infilling, "GENERATED", 1)
    monkeypatch.setattr(infilling, "FIXED_GAP", 8)
    tasks = run(smollm2, "infill", data)
    for name in ("rocstories", "wikitext2"):
        entry = tasks[name]
        # Unadapted, the model is its own untrained row.
        assert entry["main"] == entry["untrained_hybrid"] > 1 and entry["left_to_right"] > 1
        assert entry["reduction_percent"] == pytest.approx(100 * (1 - entry["main"] / entry["left_to_right"]))
        assert entry["n"] == 3 and entry["tokens"] > 15 and entry["standard_error"] > 0 and entry["fixed_gap"] > 1
        assert set(entry["generated"]["infill"]) == {"rouge_l", "bleu", "rep_4", "length_ratio"}
        assert entry["samples"][0]["removed"] and entry["generated"]["n"] == 1
    assert tasks["wikitext2"]["causal_perplexity"] > 1


def test_a_causal_control_is_scored_left_to_right(
    smollm2: "AmbiLM", data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smollm2, "settings", smollm2.settings.model_copy(update={"recipe": "causal_control"}))
    entry = run(smollm2, "rocstories", data)["rocstories"]
    assert entry["main"] == entry["causal_adapted"] == pytest.approx(entry["left_to_right"], rel=1e-4)
    assert "generated" not in entry and "fixed_gap" not in entry


def test_long_texts_are_read_in_windows(smollm2: "AmbiLM", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ambilm.evaluation.perplexity.WINDOW", 16)
    entry = causal_perplexity(smollm2, [PARAGRAPH, " "])
    count = len(smollm2.tokenizer(PARAGRAPH)["input_ids"])
    assert entry["tokens"] == count and entry["n"] == -(-count // 16)


def test_own_text_finds_its_paragraph(smollm2: "AmbiLM", tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infilling, "GENERATED", 1)
    monkeypatch.setattr(infilling, "FIXED_GAP", 8)
    text = tmp_path / "notes.txt"
    text.write_text("\n\n".join([PARAGRAPH, *(" ".join(story) for story in STORIES)]))
    tasks = evaluate(smollm2, "own_text", [text], tmp_path / "r.json", progress=False)["tasks"]
    assert tasks["own_text:retrieval"]["metric"] == "recall@1" and 0 <= tasks["own_text:retrieval"]["main"] <= 1
    assert tasks["own_text:retrieval"]["mrr"] >= tasks["own_text:retrieval"]["main"]
    assert tasks["own_text:infill"]["main"] > 1 and tasks["own_text:perplexity"]["texts"] >= 1
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    with pytest.raises(UserError, match=r"empty\.txt"):
        evaluate(smollm2, "own_text:retrieval", [empty], tmp_path / "r2.json", progress=False)


def test_dependence_sums_to_hundred_and_looks_ahead(smollm2: "AmbiLM") -> None:
    found = attention_dependence(smollm2, [PARAGRAPH, "A short one.", ""])
    assert found["main"] + found["before"] + found["after"] == pytest.approx(100, abs=1e-3)
    # Without the mask something is left for the future; with it there would be nothing.
    assert found["after"] > 1
    assert found["layers"].shape == (smollm2.base.config.num_hidden_layers, 3) and found["texts"].shape == (2, 3)


def test_dependence_of_the_first_layer_by_hand(smollm2: "AmbiLM") -> None:
    attention = smollm2.base.model.layers[0].self_attn
    found = attention_dependence(smollm2, ["One two three four five six"])["layers"][0]
    ids = torch.tensor(
        [[smollm2.settings.start_token_id, *smollm2.tokenizer("One two three four five six")["input_ids"]]]
    )
    with torch.inference_mode():
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        states = smollm2.base.model.layers[0].input_layernorm(smollm2.base.get_input_embeddings()(ids))
        shape = (1, ids.shape[1], -1, attention.head_dim)
        query, key = (project(states).view(shape).transpose(1, 2) for project in (attention.q_proj, attention.k_proj))
        rotary = smollm2.base.model.rotary_emb(states, torch.arange(ids.shape[1])[None])
        query, key = apply_rotary_pos_emb(query, key, *rotary)
        key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        weights = (query @ key.transpose(2, 3) * attention.scaling).softmax(-1).mean(1)[0]  # (length, length)
    expected = [weights.diagonal().mean(), weights.tril(-1).sum(1).mean(), weights.triu(1).sum(1).mean()]
    np.testing.assert_allclose(found, 100 * torch.stack(expected).numpy(), rtol=1e-3)
