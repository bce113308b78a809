"""The jobs on the real SmolLM2-135M: equal whatever shares the batch, and generation that nothing changes."""

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForCausalLM

from ambilm.adaptation import AdapterSettings, add_adapter, trainable_parameters
from ambilm.errors import UserError
from ambilm.model.generation import chat_prompt
from ambilm.model.settings import READINGS

if TYPE_CHECKING:
    from ambilm import AmbiLM

TEXTS = ["A cat sits on the mat.", "Stock markets fell sharply.", "Rain.", "The old man walked to the harbour at dawn."]
STORY = "Anna went to the park. [BLANK] Then she went home."


@pytest.fixture(scope="module")
def adapted(smollm2: "AmbiLM") -> "AmbiLM":
    """The real model with a random adapter, on its own view of the session's weights."""
    from ambilm import AmbiLM

    model = AmbiLM(smollm2.base, smollm2.tokenizer, "adapted")
    torch.manual_seed(0)
    model.adapter = AdapterSettings(rank=4)
    add_adapter(model.view, model.adapter)
    with torch.no_grad():
        for parameter in trainable_parameters(model.view).values():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    return model


@pytest.mark.parametrize("options", [{}, {"layout": "bidirectional", "pooling": "mean", "prompt": "Find:"}])
def test_neighbours_and_order_change_no_vector(adapted: "AmbiLM", options: dict[str, str]) -> None:
    together = adapted.encode(TEXTS, **options)  # type: ignore[arg-type]
    assert together.shape == (4, 576) and together.dtype == np.float32
    for text, vector in zip(TEXTS, together, strict=True):
        alone = adapted.encode(text, **options)  # type: ignore[arg-type]
        assert np.abs(alone - vector).max() <= 1e-4 * np.linalg.norm(vector)
    backwards = adapted.encode(reversed(TEXTS), batch_tokens=16, **options)  # type: ignore[arg-type]
    assert np.abs(backwards[::-1] - together).max() <= 1e-4 * np.linalg.norm(together, axis=1).max()


def test_pooling_formulas(smollm2: "AmbiLM") -> None:
    ids = smollm2.tokenizer(TEXTS[0])["input_ids"]
    with torch.inference_mode():
        hidden = smollm2.base.base_model(torch.tensor([ids])).last_hidden_state[0].numpy()
    weights = np.arange(1, len(ids) + 1)[:, None]
    expected = {
        "last": hidden[-1],
        "mean": hidden.mean(0),
        "weighted_mean": (hidden * weights).sum(0) / weights.sum(),
    }
    for pooling, vector in expected.items():
        found = smollm2.encode(TEXTS[0], layout="causal", prompt="", pooling=pooling)  # type: ignore[arg-type]
        np.testing.assert_allclose(found, vector, atol=1e-3, rtol=1e-3)


def test_prompts_stand_where_they_should(smollm2: "AmbiLM") -> None:
    """A template around the text, a prefix before it, and means that leave the prompt out, all from the stock model."""

    def stock(text: str) -> np.ndarray:
        with torch.inference_mode():
            ids = torch.tensor([smollm2.tokenizer(text)["input_ids"]])
            return smollm2.base.base_model(ids).last_hidden_state[0].numpy()

    found = smollm2.encode("a cat", layout="causal", prompt="<<{text}>> is:", pooling="last")
    np.testing.assert_allclose(found, stock("<<a cat>> is:")[-1], atol=1e-3, rtol=1e-3)
    prefix, hidden = smollm2.tokenizer("Query:")["input_ids"], stock("Query: a cat")
    for include, rows in ((True, hidden), (False, hidden[len(prefix) :])):
        found = smollm2.encode("a cat", layout="causal", prompt="Query:", pooling="mean", include_prompt=include)
        np.testing.assert_allclose(found, rows.mean(0), atol=1e-3, rtol=1e-3)
    cut = smollm2.encode("cat " * 50, layout="causal", prompt="<<{text}>> is:", pooling="last", max_length=12)
    ids = smollm2.tokenizer("<<" + "cat " * 50 + ">> is:")["input_ids"]
    after = len(smollm2.tokenizer(">> is:")["input_ids"])
    kept = torch.tensor([ids[: 12 - after] + ids[-after:]])
    with torch.inference_mode():
        expected = smollm2.base.base_model(kept).last_hidden_state[0, -1].numpy()
    np.testing.assert_allclose(cut, expected, atol=1e-3, rtol=1e-3)
    with pytest.raises(UserError, match="no room"):
        smollm2.encode("a cat", max_length=3)


def test_echo_reads_the_repetition(smollm2: "AmbiLM") -> None:
    """The mean is taken over the second occurrence, causally; a long text is cut alike in both places."""
    template, ids = "Say: {text}, again: {text}!", smollm2.tokenizer
    first, second, end = (ids(piece)["input_ids"] for piece in ("Say:", ", again:", "!"))
    for text, room in (("a cat", 4), ("cat" + " cat" * 49, 5)):
        words = ids(" " + text)["input_ids"][:room]
        whole = first + words + second + words + end
        longest = len(whole) + 1  # one token is left over: it does not suffice for one more in both places
        found = smollm2.encode(
            text, layout="causal", prompt=template, pooling="mean", include_prompt=False, max_length=longest
        )
        with torch.inference_mode():
            hidden = smollm2.base.base_model(torch.tensor([whole])).last_hidden_state[0]
        repeated = hidden[len(whole) - len(end) - len(words) : len(whole) - len(end)]
        np.testing.assert_allclose(found, repeated.mean(0).numpy(), atol=1e-3, rtol=1e-3)


def test_a_reading_is_its_settings(adapted: "AmbiLM") -> None:
    template = "Rewrite the sentence: {text}, rewritten sentence: {text}"
    echo = {"layout": "causal", "pooling": "mean", "prompt": template, "include_prompt": False}
    np.testing.assert_array_equal(adapted.encode(TEXTS, reading="echo"), adapted.encode(TEXTS, **echo))  # type: ignore[arg-type]
    last = adapted.encode(TEXTS, reading="echo", pooling="last")
    np.testing.assert_array_equal(last, adapted.encode(TEXTS, layout="causal", pooling="last", prompt=template))
    for name in READINGS:
        assert np.isfinite(adapted.encode(["", "Rain."], reading=name)).all()
    with pytest.raises(UserError, match="choose one of causal-mean"):
        adapted.encode("a", reading="aloud")


def test_precisions_by_hand(smollm2: "AmbiLM") -> None:
    full = smollm2.encode(TEXTS)
    short = full[:, :32] / np.linalg.norm(full[:, :32], axis=1, keepdims=True)
    np.testing.assert_allclose(smollm2.encode(TEXTS, truncate_dim=32, normalize_embeddings=True), short, atol=1e-5)
    bits = np.unpackbits(smollm2.encode(TEXTS, precision="ubinary"), axis=1)
    assert np.array_equal(bits, full > 0)
    signed = smollm2.encode(TEXTS, precision="binary")
    assert signed.dtype == np.int8 and np.array_equal(signed.astype(int) + 128, np.packbits(full > 0, axis=1))
    scaled = 127 * full / np.abs(full).max(1, keepdims=True)
    eight = smollm2.encode(TEXTS, precision="int8").astype(int)
    assert np.abs(eight - scaled).max() <= 0.51 and np.abs(eight).max() == 127
    assert np.array_equal(smollm2.encode(TEXTS, precision="uint8").astype(int) - 128, eight)


def test_half_precision_does_not_feel_its_neighbours(smollm2: "AmbiLM", smollm2_bf16: "AmbiLM") -> None:
    def cosine(left: np.ndarray, right: np.ndarray) -> float:
        return float(((left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)).min())

    options = {"layout": "bidirectional", "pooling": "mean", "prompt": ""}
    together = smollm2_bf16.encode(TEXTS, **options)  # type: ignore[arg-type]
    alone = np.stack([smollm2_bf16.encode(text, **options) for text in TEXTS])  # type: ignore[arg-type]
    assert cosine(together, alone) >= 0.9999
    assert cosine(together, smollm2.encode(TEXTS, **options)) > 0.999  # type: ignore[arg-type]


def test_options_of_encode(smollm2: "AmbiLM") -> None:
    def texts() -> Iterator[str]:
        yield from TEXTS

    full = smollm2.encode(texts(), normalize_embeddings=True)
    assert np.allclose(np.linalg.norm(full, axis=1), 1, atol=1e-5)
    one_by_one = smollm2.encode(TEXTS, batch_size=1, normalize_embeddings=True)
    np.testing.assert_allclose(one_by_one, full, atol=1e-5)
    assert smollm2.encode(TEXTS, truncate_dim=32).shape == (4, 32)
    assert smollm2.encode(TEXTS, precision="int8").dtype == np.int8
    assert smollm2.encode(TEXTS, precision="ubinary").shape == (4, 72)
    assert smollm2.encode([]).shape == (0, 576)
    mean = {"layout": "causal", "pooling": "mean", "prompt": "Query:"}
    without = smollm2.encode("a cat", include_prompt=False, **mean)  # type: ignore[arg-type]
    assert not np.allclose(without, smollm2.encode("a cat", **mean), atol=1e-3)  # type: ignore[arg-type]
    for wrong in (
        {"pooling": "max"},
        {"layout": "sideways"},
        {"precision": "int4"},
        {"truncate_dim": 0},
        {"batch_size": 0},
    ):
        with pytest.raises(UserError):
            smollm2.encode("a", **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="item 1 is a int"):
        smollm2.encode(["a", 3])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "text", ["", "x", "\U0001f600" * 3, "nospace" * 40, "abcdefghi " * 1000, "a\x00b", "a\ud800b", " "]
)
def test_strange_texts_have_finite_vectors(smollm2: "AmbiLM", text: str) -> None:
    for options in ({}, {"prompt": "", "layout": "bidirectional", "pooling": "mean"}):
        assert np.isfinite(smollm2.encode(text, max_length=64, **options)).all()  # type: ignore[arg-type]


def test_word_vectors(adapted: "AmbiLM") -> None:
    sentences = [["U.N.", "official", "Ekeus"], ["a", "", "b"], []]
    vectors = adapted.encode_tokens(sentences)
    assert [item.shape for item in vectors] == [(3, 576), (3, 576), (0, 576)] or vectors[2].shape[0] == 0
    first, last = (adapted.encode_tokens([["Ekeus"]], subword=kind)[0] for kind in ("first", "last"))  # type: ignore[arg-type]
    assert not np.allclose(first, last)
    # a word read one token earlier is the last piece of the word before it
    shifted = adapted.encode_tokens([["a", "cat"]], shift=1, subword="first")[0][1]
    np.testing.assert_allclose(shifted, adapted.encode_tokens([["a", "cat"]], subword="last")[0][0], atol=1e-4)
    with pytest.raises(UserError, match="lists of words"):
        adapted.encode_tokens(["a sentence"])


def test_word_vectors_by_hand(smollm2: "AmbiLM") -> None:
    words = ["Ekeus", "visited", "U.N."]
    pieces = [smollm2.tokenizer((" " if place else "") + word)["input_ids"] for place, word in enumerate(words)]
    ids = [smollm2.settings.start_token_id, *(token for piece in pieces for token in piece)]
    with torch.inference_mode():
        hidden = smollm2.base.base_model(torch.tensor([ids])).last_hidden_state[0]
    parts = hidden[1:].split([len(piece) for piece in pieces])
    expected = {
        "mean": torch.stack([part.mean(0) for part in parts]),
        "first": torch.stack([part[0] for part in parts]),
        "last": torch.stack([part[-1] for part in parts]),
    }
    for subword, vectors in expected.items():
        found = smollm2.encode_tokens([words], layout="causal", subword=subword, shift=0)[0]  # type: ignore[arg-type]
        np.testing.assert_allclose(found, vectors.numpy(), atol=1e-3, rtol=1e-3)
    shifted = smollm2.encode_tokens([words], layout="causal", subword="first", shift=1)[0]
    np.testing.assert_allclose(shifted[0], hidden[0].numpy(), atol=1e-3, rtol=1e-3)


def test_generation_is_the_base_bit_for_bit(adapted: "AmbiLM") -> None:
    prompt = "Once upon a time"
    ids = adapted.tokenizer(prompt, return_tensors="pt").input_ids
    with torch.inference_mode():
        stock = adapted.base.generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=2)[0, ids.shape[1] :]
        before = adapted.base(ids).logits
    expected = adapted.tokenizer.decode(stock, skip_special_tokens=True)
    assert adapted.generate(prompt, max_new_tokens=12, do_sample=False) == expected
    adapted.encode(TEXTS)
    adapted.infill(STORY, max_tokens=4)
    with torch.inference_mode():
        assert torch.equal(adapted.base(ids).logits, before)
    assert "".join(adapted.generate(prompt, stream=True, max_new_tokens=12, do_sample=False)) == expected


def test_threads_do_not_disturb_each_other(adapted: "AmbiLM") -> None:
    ids = adapted.tokenizer("The sea was", return_tensors="pt").input_ids

    def generate() -> str:
        return adapted.generate("The sea was", max_new_tokens=8, do_sample=False)

    @torch.inference_mode()
    def causal_logits() -> torch.Tensor:
        return adapted.base(ids).logits

    text, scores, vectors = generate(), causal_logits(), adapted.encode(TEXTS, layout="bidirectional")
    with ThreadPoolExecutor(6) as pool:
        texts = [pool.submit(generate) for _ in range(3)]
        causal = [pool.submit(causal_logits) for _ in range(6)]
        encoded = [pool.submit(adapted.encode, TEXTS, layout="bidirectional") for _ in range(3)]
        filled = pool.submit(adapted.infill, STORY, max_tokens=4)
        assert all(future.result() == text for future in texts)
        assert all(torch.equal(future.result(), scores) for future in causal)
        assert all(np.array_equal(future.result(), vectors) for future in encoded)
        assert filled.result().text.startswith("Anna")


def test_saved_model_is_the_same_and_transformers_loads_the_base(adapted: "AmbiLM", tmp_path: Path) -> None:
    from ambilm import AmbiLM

    adapted.save_pretrained(tmp_path / "model")
    again = AmbiLM.from_pretrained(tmp_path / "model", dtype="float32")
    assert again.is_adapted and again.settings == adapted.settings
    assert np.array_equal(again.encode(TEXTS), adapted.encode(TEXTS))
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    ids = torch.arange(100, 110)[None]
    with torch.inference_mode():
        assert torch.equal(stock(ids).logits, adapted.base(ids).logits)
        prompt = adapted.tokenizer("The old man", return_tensors="pt").input_ids
        greedy = stock.generate(prompt, max_new_tokens=8, do_sample=False, pad_token_id=2)[0, prompt.shape[1] :]
    expected = adapted.tokenizer.decode(greedy)
    assert again.generate("The old man", max_new_tokens=8, do_sample=False) == expected
    assert again.infill(STORY, max_tokens=3).text == adapted.infill(STORY, max_tokens=3).text
    again.merged().save_pretrained(tmp_path / "model")  # no adapter of the earlier save may stay beside merged weights
    assert not AmbiLM.from_pretrained(tmp_path / "model", dtype="float32").is_adapted
    (tmp_path / "model" / "ambilm.json").write_text("{}")
    with pytest.raises(UserError, match=r"ambilm\.json"):
        AmbiLM.from_pretrained(tmp_path / "model")


def test_merged_changes_generation_weights_only_in_the_copy(adapted: "AmbiLM") -> None:
    merged = adapted.merged()
    options = {"layout": "bidirectional", "pooling": "mean", "prompt": ""}
    left, right = adapted.encode(TEXTS, **options), merged.encode(TEXTS, **options)  # type: ignore[arg-type]
    cosine = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert cosine.min() > 0.9999 and not merged.is_adapted


def test_chat_starts_a_text_once(smollm2: "AmbiLM") -> None:
    tokenizer = copy.deepcopy(smollm2.tokenizer)
    tokenizer.chat_template = "{{ bos_token }}{{ messages[0]['content'] }}"
    bos = (str(tokenizer.bos_token), tokenizer.bos_token_id)
    messages = [{"role": "user", "content": "Hi"}]
    assert chat_prompt(tokenizer, messages) == bos[0] + "Hi"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    assert tokenizer(chat_prompt(tokenizer, messages))["input_ids"].count(bos[1]) == 1
