"""Stores with a real tokenizer: chunks, pieces, a store complete or absent, fingerprints, orders of seed and epoch."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.training.conftest import first_tokens
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ambilm.errors import UserError
from ambilm.loading.packaged import packaged_gguf
from ambilm.training.tokens import CHUNK, SHORTEST_PIECE, PairStore, TokenStore, fingerprint, shuffled_order


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    with packaged_gguf("smollm2-135m") as file:
        return AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)


def ids_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def test_texts_come_back_in_order_over_several_chunks(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    texts = [f"Text number {n} is here, with {'more ' * (n % 5)}words." for n in range(2 * CHUNK + 7)]
    store = TokenStore.build(iter(texts), tokenizer, tmp_path / "s", 64, "mark")
    assert len(store) == len(texts)
    for index in (0, CHUNK - 1, CHUNK, 2 * CHUNK + 6):
        assert store[index].tolist() == ids_of(tokenizer, texts[index])
    assert store.lengths.tolist() == [len(store[index]) for index in range(len(store))]
    assert store[0].dtype == np.uint16  # 49,152 entries fit


def test_pieces_are_views_of_the_mapped_file(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    store = TokenStore.build(["A text.", "Another."], tokenizer, tmp_path / "s", 64, "mark")
    assert isinstance(store.tokens, np.memmap)
    assert np.shares_memory(store[1], store.tokens)
    assert not store[1].flags.writeable
    assert (tmp_path / "s" / "tokens.bin").stat().st_size == 2 * store.lengths.sum()


@pytest.mark.parametrize("rest", [0, 1, SHORTEST_PIECE - 1, SHORTEST_PIECE, 31])
def test_long_texts_are_cut_and_short_rests_dropped(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, rest: int
) -> None:
    text = tokenizer.decode(ids_of(tokenizer, "word " * 100)[: 64 + rest])
    ids = ids_of(tokenizer, text)
    assert len(ids) == 64 + rest
    store = TokenStore.build([text, "Short.", ""], tokenizer, tmp_path / "s", 32, "mark")
    kept = [32, 32] + [rest] * (rest >= SHORTEST_PIECE)
    assert store.lengths.tolist() == [*kept, len(ids_of(tokenizer, "Short."))]
    assert np.concatenate([store[n] for n in range(len(kept))]).tolist() == ids[: sum(kept)]
    facts = json.loads((tmp_path / "s" / "store.json").read_text())
    assert facts["count"] == len(store)
    assert facts["dropped"] == int(0 < rest < SHORTEST_PIECE)


def test_a_large_vocabulary_gets_wider_numbers(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(tokenizer), "__len__", lambda self: 2**16 + 1)
    store = TokenStore.build(["A text."], tokenizer, tmp_path / "s", 64, "mark")
    assert store[0].dtype == np.uint32
    assert store[0].tolist() == ids_of(tokenizer, "A text.")


def test_a_store_opens_for_its_fingerprint_only(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "s"
    assert TokenStore.open(folder, "mark") is None
    built = TokenStore.build(["One.", "Two two."], tokenizer, folder, 64, "mark")
    opened = TokenStore.open(folder, "mark")
    assert opened is not None
    assert [opened[n].tolist() for n in range(2)] == [built[n].tolist() for n in range(2)]
    assert TokenStore.open(folder, "other") is None
    assert len(TokenStore.build(["Three."], tokenizer, folder, 64, "other")) == 1
    assert TokenStore.open(folder, "mark") is None


def test_no_texts_make_an_empty_store(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    assert len(TokenStore.build([], tokenizer, tmp_path / "s", 64, "mark")) == 0
    assert len(PairStore.build([], first_tokens(tokenizer, 64), len(tokenizer), tmp_path / "p", "mark")) == 0


@pytest.mark.parametrize("error", [UserError, KeyboardInterrupt])
def test_a_failed_build_leaves_what_was_there(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, error: type[BaseException]
) -> None:
    def texts() -> Iterator[str]:
        yield from ["A text."] * (CHUNK + 1)
        raise error("line 1002 is broken")

    with pytest.raises(error):
        TokenStore.build(texts(), tokenizer, tmp_path / "s", 64, "mark")
    assert list(tmp_path.iterdir()) == []
    TokenStore.build(["Kept."], tokenizer, tmp_path / "s", 64, "mark")
    with pytest.raises(error):
        TokenStore.build(texts(), tokenizer, tmp_path / "s", 64, "other")
    kept = TokenStore.open(tmp_path / "s", "mark")
    assert kept is not None
    assert kept[0].tolist() == ids_of(tokenizer, "Kept.")


def test_what_a_killed_build_left_is_no_hindrance(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    (tmp_path / "s.incomplete").mkdir()
    (tmp_path / "s.incomplete" / "tokens.bin").write_bytes(b"half")
    assert len(TokenStore.build(["One."], tokenizer, tmp_path / "s", 64, "mark")) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["s"]


def test_a_pair_keeps_two_or_three_sequences(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    pairs = [("An anchor.", "A positive one.", "No."), ("Second.", "long " * 50, None)]
    built = PairStore.build(pairs, first_tokens(tokenizer, 16), len(tokenizer), tmp_path / "p", "mark")
    opened = PairStore.open(tmp_path / "p", "mark")
    assert opened is not None
    for store in (built, opened):
        assert len(store) == 2
        anchor, positive, negative = store[0]
        assert negative is not None
        assert [part.tolist() for part in (anchor, positive, negative)] == [ids_of(tokenizer, str(t)) for t in pairs[0]]
        assert anchor.dtype == np.int64
        assert store[1][1].tolist() == ids_of(tokenizer, "long " * 50)[:16]
        assert store[1][2] is None


def test_the_fingerprint_changes_with_what_it_stands_for(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    os.utime(file, (1000, 1000))

    def mark(length: int = 64, split: str = "train", source: Path | str = file) -> str:
        return fingerprint([source], tokenizer, length, split)

    first, folder = mark(), mark(source=tmp_path)
    assert mark() == first
    # A hub data set has nothing but its name.
    others = {mark(length=65), mark(split="valid"), mark(source="owner/one"), mark(source="owner/two")}
    assert len({first, *others}) == 5
    (tmp_path / "b.txt").write_text("two")
    assert mark(source=tmp_path) != folder
    os.utime(file, (2000, 2000))
    assert mark() != first
    file.write_text("other")
    os.utime(file, (1000, 1000))
    assert mark() != first


def test_orders_come_from_seed_and_epoch_alone() -> None:
    first = shuffled_order(1000, seed=3, epoch=1)
    assert sorted(first) == list(range(1000))
    assert (shuffled_order(1000, 3, 1) == first).all()
    for other in (shuffled_order(1000, 3, 2), shuffled_order(1000, 4, 1), shuffled_order(1000, 1, 3)):
        assert (other != first).mean() > 0.9
    assert len(shuffled_order(0, 0, 0)) == 0
