"""What each step trains on, as a pure function of the seed and the step number.

Nothing here keeps a state: a resumed run draws what the uninterrupted run would have drawn, and two recipes with one seed
draw the same texts and the same spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from transformers import PreTrainedTokenizerBase

from ambilm.errors import UserError
from ambilm.recipes.base import SpanSettings
from ambilm.training.tokens import PairStore, TokenStore, shuffled_order

SENTENCE_TOKENS = (4, 48)  # shortest and longest sentence that is removed whole
CONTEXT_TOKENS = 4  # a text that loses a span keeps at least so many tokens

# Independent random streams of a step.
SPANS, MASKS, PAIRS, DROPOUT, NEGATIVES = range(5)


def stream(seed: int, step: int, purpose: int) -> np.random.Generator:
    """The random numbers of one purpose in one step."""
    return np.random.default_rng([seed, step, purpose])


def ends_sentence(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """(vocabulary,) boolean, true for tokens that can close a sentence."""
    size = len(tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(list(range(size)))
    closing = "\"'”’)"
    return np.array([(token or "").rstrip(closing).endswith((".", "!", "?")) for token in tokens])


class Shuffled:
    """An endless shuffled walk over a store, addressed by the number of the draw."""

    def __init__(self, count: int, seed: int) -> None:
        self.count = count
        self._order = lru_cache(maxsize=2)(lambda epoch: shuffled_order(count, seed, epoch))

    def __getitem__(self, draw: int) -> int:
        epoch, place = divmod(draw, self.count)
        return int(self._order(epoch)[place])


@dataclass(frozen=True)
class DrawnText:
    """A text with its start token, and the spans that it loses."""

    ids: np.ndarray
    spans: list[tuple[int, int]]


class Texts:
    """Texts by the number of the draw: an equal share from every source, so that a large file does not drown a small one.

    Texts shorter than ``needed`` tokens are skipped; ``short`` counts them.

    Raises:
        UserError: when a source has no text that is long enough.
    """

    def __init__(self, stores: Sequence[TokenStore], seed: int, needed: int) -> None:
        self.stores = stores
        self.fitting = [np.flatnonzero(store.lengths >= needed) for store in stores]
        self.short = sum(len(store) - len(fitting) for store, fitting in zip(stores, self.fitting, strict=True))
        if any(not len(fitting) for fitting in self.fitting):
            raise UserError(
                f"--text holds no text of {needed} tokens or more: lower span_tokens_min or give longer texts."
            )
        self.walks = [Shuffled(len(fitting), seed + number) for number, fitting in enumerate(self.fitting)]

    def text(self, draw: int) -> np.ndarray:
        index, source = divmod(draw, len(self.stores))
        piece = int(self.fitting[source][self.walks[source][index]])
        return np.asarray(self.stores[source][piece], dtype=np.int64)

    def started(self, draw: int, start_token: int) -> np.ndarray:
        """The text of a draw after a start token, which predicts the first token and is never lost itself."""
        return np.concatenate([[start_token], self.text(draw)])


class TextDraws(Texts):
    """Texts of a step and the spans that they lose; each has room for a span and a little context."""

    def __init__(
        self, stores: Sequence[TokenStore], recipe: SpanSettings, seed: int, start_token: int, closing: np.ndarray
    ) -> None:
        super().__init__(stores, seed, recipe.span_tokens_min + CONTEXT_TOKENS)
        self.recipe, self.seed, self.start, self.closing = recipe, seed, start_token, closing

    def step(self, step: int) -> list[DrawnText]:
        random = stream(self.seed, step, SPANS)
        count = self.recipe.texts_per_step
        drawn = []
        for number in range(count):
            ids = self.started(step * count + number, self.start)
            drawn.append(DrawnText(ids, self.spans(ids, random)))
        return drawn

    def spans(self, ids: np.ndarray, random: np.random.Generator) -> list[tuple[int, int]]:
        """One or two missing spans: a whole sentence, or 8 to 32 tokens (the recipe's bounds) anywhere."""
        first = None
        if random.random() < self.recipe.sentence_spans:
            first = self._sentence(ids, random)
        first = first or self._piece(ids, random)
        spans = [first]
        if random.random() < self.recipe.second_span:
            second = self._piece(ids, random)
            kept = len(ids) - sum(stop - start for start, stop in (first, second))
            if kept > CONTEXT_TOKENS and (second[0] > first[1] + 1 or second[1] + 1 < first[0]):
                spans.append(second)
        return sorted(spans)

    def _sentence(self, ids: np.ndarray, random: np.random.Generator) -> tuple[int, int] | None:
        ends = np.flatnonzero(self.closing[ids[1:]]) + 2
        starts = np.concatenate([[1], ends[:-1]]) if len(ends) else ends
        lengths = ends - starts
        fits = (lengths >= SENTENCE_TOKENS[0]) & (lengths <= SENTENCE_TOKENS[1]) & (lengths < len(ids) - CONTEXT_TOKENS)
        candidates = np.flatnonzero(fits)
        if not len(candidates):
            return None
        chosen = int(random.choice(candidates))
        return int(starts[chosen]), int(ends[chosen])

    def _piece(self, ids: np.ndarray, random: np.random.Generator) -> tuple[int, int]:
        longest = min(self.recipe.span_tokens_max, len(ids) - 1 - CONTEXT_TOKENS)
        length = int(random.integers(self.recipe.span_tokens_min, longest + 1))
        start = int(random.integers(1, len(ids) - length + 1))
        return start, start + length


class PairDraws:
    """Pairs of a step, from a pair store."""

    def __init__(self, store: PairStore, seed: int, per_step: int) -> None:
        self.store, self.per_step = store, per_step
        self.walk = Shuffled(len(store), seed)

    def step(self, step: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        return [self.store[self.walk[step * self.per_step + number]] for number in range(self.per_step)]
