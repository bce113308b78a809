"""Token stores: what goes in comes out, once, and only for the same sources."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.training.conftest import first_tokens

from ambilm.training.tokens import PairStore, TokenStore, fingerprint, shuffled_order

if TYPE_CHECKING:
    from ambilm import AmbiLM


def test_texts_come_back_in_pieces(smollm2: "AmbiLM", tmp_path: Path) -> None:
    tokenizer = smollm2.tokenizer
    texts = ["A short one.", "word " * 100, "Another."]
    store = TokenStore.build(texts, tokenizer, tmp_path / "store", max_length=40, fingerprint="x")
    expected = [tokenizer(text)["input_ids"] for text in texts]
    assert store[0].tolist() == expected[0]
    assert [len(store[i]) for i in range(len(store))] == [len(expected[0]), 40, 40, 21, len(expected[2])]
    assert np.concatenate([store[1], store[2], store[3]]).tolist() == expected[1]
    again = TokenStore.open(tmp_path / "store", "x")
    assert again is not None and again[0].tolist() == expected[0] and store.lengths.sum() == sum(map(len, expected))
    assert TokenStore.open(tmp_path / "store", "y") is None and TokenStore.open(tmp_path / "none", "x") is None
    assert len(TokenStore.build([], tokenizer, tmp_path / "empty", 40, "x")) == 0


def test_pairs_come_back(smollm2: "AmbiLM", tmp_path: Path) -> None:
    store = PairStore.build(
        [("one", "two", None), ("three " * 30, "four", "five")], first_tokens(smollm2.tokenizer, 8),
        len(smollm2.tokenizer), tmp_path / "pairs", "x",
    )  # fmt: skip
    assert len(store) == 2 and store[0][2] is None
    anchor, positive, negative = store[1]
    assert len(anchor) == 8 and smollm2.tokenizer.decode(positive) == "four" and negative is not None


def test_fingerprint_follows_the_file(smollm2: "AmbiLM", tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("x")
    first = fingerprint([file], smollm2.tokenizer, 10, "train")
    assert (
        first
        == fingerprint([file], smollm2.tokenizer, 10, "train")
        != fingerprint([file], smollm2.tokenizer, 11, "train")
    )
    file.write_text("xy")
    assert fingerprint([file], smollm2.tokenizer, 10, "train") != first


def test_orders_are_permutations_that_differ_by_epoch() -> None:
    first, second = shuffled_order(50, 1, 0), shuffled_order(50, 1, 1)
    assert sorted(first) == list(range(50)) and (first != second).any()
    assert (first == shuffled_order(50, 1, 0)).all()
