"""What a token probe is made of: frozen word vectors in a memory-mapped file, and a linear head on them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.lib.format import open_memmap
from sklearn.preprocessing import StandardScaler
from torch import nn
from tqdm.auto import tqdm

if TYPE_CHECKING:
    from ambilm import AmbiLM

SENTENCES = 512  # that are encoded together
BATCH = 32  # words of a training step
EPOCHS = 10
LEARNING_RATE = 5e-4
DROPOUT = 0.1
ROWS = 1 << 14  # word vectors that are read from the file at a time


def word_features(
    model: AmbiLM, sentences: Sequence[Sequence[str]], path: Path, progress: bool = False, **options: Any
) -> np.ndarray:
    """Vectors of all words of all sentences, one after the other.

    Args:
        path: where the vectors are written, or taken from when they are already there.
        options: those of :meth:`ambilm.AmbiLM.encode_tokens`.

    Returns:
        (words, hidden), float32, memory-mapped.
    """
    if not path.exists():
        _extract(model, sentences, path, progress, options)
    return np.load(path, mmap_mode="r")


def _extract(
    model: AmbiLM, sentences: Sequence[Sequence[str]], path: Path, progress: bool, options: dict[str, Any]
) -> None:
    words, width = sum(map(len, sentences)), model.base.config.get_text_config().hidden_size
    stored = open_memmap(path, "w+", np.float32, (words, width))
    place = 0
    with tqdm(total=words, desc="Word vectors", unit="word", disable=not progress) as bar:
        for start in range(0, len(sentences), SENTENCES):
            # No sentence is cut: only the model's own number of positions counts.
            arrays = model.encode_tokens(sentences[start : start + SENTENCES], max_length=sys.maxsize, **options)
            vectors = np.concatenate(arrays)  # (words, hidden)
            stored[place : place + len(vectors)] = vectors
            place += len(vectors)
            bar.update(len(vectors))
    stored.flush()


class LinearHead:
    """A linear classifier of standardised word vectors.

    Its rate and dropout are those of the word probe of LLM2Vec (BehnamGhader et al. 2024). Mean and scale of each dimension
    are those of the training words, because in decoders a few dimensions are far larger than the others.
    """

    def __init__(self, features: np.ndarray, labels: np.ndarray, classes: int, seed: int) -> None:
        """Trains the head.

        Args:
            features: (words, hidden).
            labels: (words,), from 0.
        """
        self.scaler = StandardScaler()
        for rows in _pieces(features):
            self.scaler.partial_fit(rows)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.linear = nn.Linear(features.shape[1], classes)
            self._train(features, torch.from_numpy(labels))

    def _train(self, features: np.ndarray, labels: torch.Tensor) -> None:
        optimizer = torch.optim.AdamW(self.linear.parameters(), lr=LEARNING_RATE)
        for _ in range(EPOCHS):
            for batch in torch.randperm(len(labels)).split(BATCH):
                rows = nn.functional.dropout(self._standardised(features[batch.numpy()]), DROPOUT)  # (batch, hidden)
                loss = nn.functional.cross_entropy(self.linear(rows), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def _standardised(self, rows: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self.scaler.transform(rows))

    @torch.inference_mode()
    def predict(self, features: np.ndarray) -> np.ndarray:
        """The most likely class of each word, (words, hidden) to (words,)."""
        return np.concatenate([self.linear(self._standardised(rows)).argmax(1).numpy() for rows in _pieces(features)])


def _pieces(features: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(features), ROWS):
        yield features[start : start + ROWS]
