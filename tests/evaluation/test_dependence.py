"""Attention dependence: block by block it is the plain definition; bins, samples and chat templates."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.families import VOCABULARY, tiny, windows
from torch import Tensor

from ambilm.adaptation import shared_view
from ambilm.errors import UserError
from ambilm.evaluation import dependence
from ambilm.evaluation.conversations import read_documents, text_of
from ambilm.evaluation.dependence import attention_dependence, dependence_by_bin, text_dependence

if TYPE_CHECKING:
    from ambilm import AmbiLM

ROUNDING = 1e-4  # percentage points: a millionth of the whole; float32 itself steps by 8e-6 at 75
TEXT = "The harbour was built in the nineteenth century to serve a fishing fleet. Later it grew for ferries."
TURNS = [{"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": "Blue."}]


def plain_weights(query: Tensor, key: Tensor, scaling: float | None, softcap: float | None) -> Tensor:
    """The definition: unmasked attention weights of every head, (heads, length, length)."""
    grouped = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)  # (1, heads, length, head dimension)
    scores = query.float() @ grouped.float().transpose(2, 3)  # (1, heads, length, length)
    scores = scores * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    return scores.softmax(dim=-1)[0]


def plain_dependence(*arguments: Any) -> Tensor:
    """(heads, 3) by the definition."""
    weights = plain_weights(*arguments)
    main = weights.diagonal(dim1=1, dim2=2).mean(-1)
    before, after = (side.sum(-1).mean(-1) for side in (weights.tril(-1), weights.triu(1)))
    return torch.stack([main, before, after], dim=1)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``plain(function, ...)``: the same call with the plain definition in place of the blocks."""

    def call(function: Any, *arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(dependence, "head_dependence", plain_dependence)
            return function(*arguments, **options)

    return call


@pytest.mark.parametrize("family", ["Llama", "Mistral", "Qwen2", "Gemma2", "Gemma3", "GPT2", "GPTNeoX"])
@pytest.mark.parametrize("block", [1, 7, 128])
def test_blocks_are_the_plain_definition(family: str, block: int, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependence, "BLOCK", block)
    view = shared_view(tiny(family))
    ids = torch.randint(3, VOCABULARY, (1, 30), generator=torch.Generator().manual_seed(1))
    found = text_dependence(view, ids)
    assert found.shape == (2, 4, 3)
    np.testing.assert_allclose(found, plain(text_dependence, view, ids), atol=ROUNDING, rtol=0)
    np.testing.assert_allclose(found.sum(axis=-1), 100, atol=1e-3)


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Gemma2", "GPT2"])
def test_under_the_mask_the_weights_are_the_models_own(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut below the diagonal and made to sum to one they are what transformers computes, scaling and softcap included."""
    base = tiny(family)
    noted: list[Tensor] = []

    def note(*arguments: Any) -> Tensor:
        noted.append(plain_weights(*arguments))
        return plain_dependence(*arguments)

    monkeypatch.setattr(dependence, "head_dependence", note)
    ids = torch.randint(3, VOCABULARY, (1, 12), generator=torch.Generator().manual_seed(2))
    text_dependence(shared_view(base), ids)
    base.set_attn_implementation("eager")
    with torch.inference_mode():
        attentions = base(ids, output_attentions=True).attentions  # (1, heads, length, length) for each layer
    for unmasked, masked, window in zip(noted, attentions, windows(family, 2), strict=True):
        if window is None:
            lower = unmasked.tril()
            torch.testing.assert_close(lower / lower.sum(-1, keepdim=True), masked[0], atol=1e-5, rtol=1e-4)


def test_the_real_model(smollm2: "AmbiLM", plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependence, "BLOCK", 5)
    found = attention_dependence(smollm2, [TEXT])
    expected = plain(attention_dependence, smollm2, [TEXT])
    config = smollm2.base.config
    assert found["heads"].shape == (config.num_hidden_layers, config.num_attention_heads, 3)
    np.testing.assert_allclose(found["heads"], expected["heads"], atol=ROUNDING, rtol=0)
    np.testing.assert_allclose(found["heads"].mean(axis=1), found["layers"], atol=1e-4)
    assert found["after"] == pytest.approx(found["layers"][:, 2].mean(), abs=1e-4)


def test_half_precision_scores_are_float32(smollm2_bf16: "AmbiLM", plain: Any) -> None:
    found = attention_dependence(smollm2_bf16, [TEXT])
    assert found["main"] + found["before"] + found["after"] == pytest.approx(100, abs=1e-3)
    np.testing.assert_allclose(
        found["heads"], plain(attention_dependence, smollm2_bf16, [TEXT])["heads"], atol=ROUNDING, rtol=0
    )


def test_bins_means_errors_and_samples(smollm2: "AmbiLM", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dependence, "BINS", ((0, 4), (4, 8), (8, 12), (12, 16)))
    texts = ["One two three", "One two three four", "Four three two one", *("One " * count for count in (6, 6, 30)), ""]
    found = dependence_by_bin(smollm2, texts, limit=None)
    rows = {row["tokens"]: row for row in found["bins"]}
    assert [row["n"] for row in found["bins"]] == [1, 4, 0, 0]
    assert found["left_out"] == 2  # the long one and the empty one
    one = attention_dependence(smollm2, texts[:1])
    assert rows["0-4"]["after"] == pytest.approx(one["after"], abs=1e-4) and rows["0-4"]["after_error"] is None
    assert rows["8-12"]["after"] is None
    four = attention_dependence(smollm2, texts[1:5])["texts"]  # (4, 3)
    assert rows["4-8"]["before"] == pytest.approx(four[:, 1].mean(), abs=1e-4)
    assert rows["4-8"]["before_error"] == pytest.approx(four[:, 1].std(ddof=1) / 2, abs=1e-4)
    assert found["heads"].shape[-1] == 3 and found["layers"].shape == (smollm2.base.config.num_hidden_layers, 3)
    few = [dependence_by_bin(smollm2, texts, limit=2, seed=seed)["bins"] for seed in (0, 0)]
    assert few[0] == few[1] and [row["n"] for row in few[0]] == [1, 2, 0, 0]
    with pytest.raises(UserError, match="No text has 2 to 16 tokens"):
        dependence_by_bin(smollm2, [""])


def test_conversations_go_through_the_chat_template(smollm2: "AmbiLM", monkeypatch: pytest.MonkeyPatch) -> None:
    assert text_of(TURNS, smollm2.tokenizer) == smollm2.tokenizer.apply_chat_template(TURNS, tokenize=False)
    monkeypatch.setattr(smollm2.tokenizer, "chat_template", "{{ raise_exception('no such role') }}")
    with pytest.raises(UserError, match=r"begins 'Name a colour\.' \(no such role\)"):
        text_of(TURNS, smollm2.tokenizer)
    monkeypatch.setattr(smollm2.tokenizer, "chat_template", None)
    assert text_of(TURNS, smollm2.tokenizer) == "user: Name a colour.\nassistant: Blue.\n"


def test_documents_of_files(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    contents: list[dict[str, Any]] = [
        {"messages": [{**turn, "id": 1} for turn in TURNS], "split": "train"},
        {"text": "A text.", "split": "valid"},
        {"sentences": ["One.", "Two."]},
    ]
    rows.write_text("\n\n".join(map(json.dumps, contents)))
    assert list(read_documents(rows)) == [TURNS, "A text.", "One. Two."]
    assert list(read_documents(rows, "valid")) == ["A text."]
    lines = tmp_path / "lines.txt"
    lines.write_text("One.\n\n Two.\r\n")
    assert list(read_documents(lines)) == ["One.", "Two."]
