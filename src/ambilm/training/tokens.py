"""Texts tokenised once, in flat memory-mapped files; orders that depend on seed and epoch alone."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

CHUNK = 1000  # texts tokenised together
SHORTEST_PIECE = 16  # a shorter rest of a long text is dropped


def fingerprint(
    sources: Sequence[str | Path], tokenizer: PreTrainedTokenizerBase, max_length: int, setting: str
) -> str:  # fmt: skip
    """Changes when the files (name, size, time), the tokenizer or a setting change."""
    facts: list[object] = [tokenizer.name_or_path, len(tokenizer), max_length, setting]
    for source in sources:
        path = Path(source)
        if not path.exists():  # a hub data set has nothing but its name
            facts.append(str(source))
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        facts += [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file()]
    return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()


def shuffled_order(count: int, seed: int, epoch: int) -> np.ndarray:
    """(count,) a permutation for one epoch."""
    return np.random.Generator(np.random.PCG64([seed, epoch])).permutation(count)


class Flat:
    """Sequences of token ids of different lengths in one flat file, with their offsets."""

    def __init__(self, directory: Path) -> None:
        self.offsets = np.load(directory / "offsets.npy")
        count = int(self.offsets[-1])
        self.facts: dict[str, Any] = json.loads((directory / "store.json").read_text())
        kind = np.dtype(self.facts["dtype"])
        # An empty file cannot be mapped.
        self.tokens = np.memmap(directory / "tokens.bin", kind, "r") if count else np.empty(0, kind)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(sequences,) tokens of each."""
        return np.diff(self.offsets)

    def sequence(self, index: int) -> np.ndarray:
        return np.asarray(self.tokens[self.offsets[index] : self.offsets[index + 1]])

    @classmethod
    def open(cls, directory: Path, fingerprint: str) -> Self | None:
        """The store in ``directory``, or None when there is none or it was made from something else."""
        try:
            same = json.loads((directory / "store.json").read_text())["fingerprint"] == fingerprint
        except (OSError, ValueError, KeyError):
            return None
        return cls(directory) if same else None

    @classmethod
    def _write(
        cls, sequences: Iterable[Sequence[int]], vocabulary: int, directory: Path, fingerprint: str, counts: dict[str, int]
    ) -> Self:  # fmt: skip
        """Streams to disk under another name, then renames: complete or absent."""
        kind = np.dtype(np.uint16 if vocabulary <= 2**16 else np.uint32)
        fresh = directory.with_name(directory.name + ".incomplete")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        lengths = []
        try:
            with (fresh / "tokens.bin").open("wb") as file:
                for sequence in sequences:
                    np.asarray(sequence, dtype=kind).tofile(file)
                    lengths.append(len(sequence))
            np.save(fresh / "offsets.npy", np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64))
            # The counts are complete only now: they are filled while the sequences are drawn.
            facts = {"fingerprint": fingerprint, "dtype": kind.name, "count": len(lengths), **counts}
            (fresh / "store.json").write_text(json.dumps(facts))
            shutil.rmtree(directory, ignore_errors=True)
            fresh.rename(directory)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        return cls(directory)


def _tokenised(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, progress: bool) -> Iterator[list[int]]:
    iterator = iter(texts)
    with tqdm(desc="Tokenising", unit="text", disable=not progress) as bar:
        while chunk := list(itertools.islice(iterator, CHUNK)):
            yield from tokenizer(chunk, add_special_tokens=False)["input_ids"]  # type: ignore[misc]
            bar.update(len(chunk))


class TokenStore(Flat):
    """Texts as token ids; ``store[i]`` is (tokens,) of piece i. Long texts are cut into pieces."""

    def __getitem__(self, index: int) -> np.ndarray:
        return self.sequence(index)

    @classmethod
    def build(
        cls, texts: Iterable[str], tokenizer: PreTrainedTokenizerBase, directory: Path, max_length: int, fingerprint: str,
        progress: bool = False,
    ) -> Self:  # fmt: skip
        """Tokenises ``texts`` into ``directory``; pieces have at most ``max_length`` tokens.

        A rest of a long text shorter than ``SHORTEST_PIECE`` is dropped; ``store.json`` says how many were.
        """
        counts = {"dropped": 0}

        def pieces() -> Iterator[list[int]]:
            for ids in _tokenised(texts, tokenizer, progress):
                for start in range(0, len(ids), max_length):
                    piece = ids[start : start + max_length]
                    if start == 0 or len(piece) >= SHORTEST_PIECE:
                        yield piece
                    else:
                        counts["dropped"] += 1

        return cls._write(pieces(), len(tokenizer), directory, fingerprint, counts)


class PairStore(Flat):
    """Pairs as token ids; ``store[i]`` is (anchor, positive, negative or None). An absent negative is an empty sequence."""

    def __len__(self) -> int:
        return super().__len__() // 3

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        anchor, positive, negative = (self.sequence(3 * index + part).astype(np.int64) for part in range(3))
        return anchor, positive, negative if len(negative) else None

    @classmethod
    def build(
        cls, pairs: Iterable[tuple[str, str, str | None]], tokenise: Callable[[list[str]], list[list[int]]],
        vocabulary: int, directory: Path, fingerprint: str, progress: bool = False,
    ) -> Self:  # fmt: skip
        """Tokenises ``pairs`` into ``directory``; ``tokenise`` makes the ids of texts, prompts and all."""

        def sequences() -> Iterator[list[int]]:
            iterator = iter(pairs)
            with tqdm(desc="Tokenising", unit="pair", disable=not progress) as bar:
                while chunk := list(itertools.islice(iterator, CHUNK)):
                    ids = iter(tokenise([part for pair in chunk for part in pair if part is not None]))
                    yield from ([] if part is None else next(ids) for pair in chunk for part in pair)
                    bar.update(len(chunk))

        return cls._write(sequences(), vocabulary, directory, fingerprint, {})
