"""Views: what one text becomes before the model sees it (MAGNET, section 3.2).

A view says for each token its role (context or span), its position, and what its output has to predict, if anything:

- MNTP, masked next-token prediction: some context tokens are masked; the output one place *before* predicts them.
- MSG, missing-span generation: every span token is predicted from the place before it, the first one from the context
  token before the span, and the last span token predicts the end-of-span token, so that the model can stop by itself.
- CLM, causal language modelling: the tokens of answers are predicted from all that stands before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NO_TARGET = -100
MNTP, MSG, CLM = 1, 2, 3


@dataclass(frozen=True)
class View:
    """One text as the model sees it; every array has shape (length,).

    Attributes:
        ids: token ids.
        is_span: true for span tokens.
        position: position ids; positions reserved for a missing span are skipped by the context after it.
        targets: the token that the output at this place predicts, ``NO_TARGET`` for none.
        objective: ``MNTP``, ``MSG``, ``CLM`` or 0, whose target it is.
    """

    ids: np.ndarray
    is_span: np.ndarray
    position: np.ndarray
    targets: np.ndarray
    objective: np.ndarray

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Masking:
    """How MNTP corrupts: the share of context tokens picked, and of those what becomes of them (the rest stays).

    BERT's 80/10/10 is MAGNET's; LLM2Vec replaces all picked tokens. ``never_none`` picks one token where the draw picks
    none, for recipes that learn from nothing else.
    """

    probability: float
    mask_token: int
    vocabulary: int
    replaced: float = 0.8
    random: float = 0.1
    never_none: bool = False


def plain_view(ids: Sequence[int] | np.ndarray) -> View:
    """A clean text, all context, nothing to predict: what the contrastive objective compares."""
    array = np.asarray(ids, dtype=np.int64)
    zeros = np.zeros(len(array), dtype=np.int64)
    return View(array, zeros.astype(bool), np.arange(len(array)), zeros + NO_TARGET, zeros)


def infill_view(
    ids: Sequence[int] | np.ndarray,
    spans: Sequence[tuple[int, int]],
    gaps: Sequence[int],
    end_of_span: int,
    masking: Masking | None = None,
    random: np.random.Generator | None = None,
) -> View:
    """The masked-and-spanned view.

    Args:
        ids: token ids of the whole text; ``ids[0]`` is never part of a span (a start token), it predicts what follows.
        spans: (start, stop) of each missing span, ascending, apart by at least one context token.
        gaps: positions reserved for each span, at least its length; the context after it starts behind them.
        end_of_span: the token that the last token of a span predicts.
        masking: corrupts context tokens for MNTP when given (needs ``random``).

    Raises:
        ValueError: for spans that touch, overlap, are empty or hold the first token.
    """
    tokens = np.array(ids, dtype=np.int64)
    length = len(tokens)
    is_span = np.zeros(length, dtype=bool)
    position = np.arange(length)
    targets = np.full(length, NO_TARGET, dtype=np.int64)
    objective = np.zeros(length, dtype=np.int64)
    before = 0
    for (start, stop), gap in zip(spans, gaps, strict=True):
        if not before < start < stop <= length or gap < stop - start:
            raise ValueError(f"span ({start}, {stop}) with gap {gap} does not fit a text of {length} tokens")
        before = stop
        is_span[start:stop] = True
        position[stop:] += gap - (stop - start)
        targets[start - 1 : stop - 1] = tokens[start:stop]
        targets[stop - 1] = end_of_span
        objective[start - 1 : stop] = MSG
    if masking is not None and random is not None:
        _mask(tokens, is_span, targets, objective, masking, random)
    return View(tokens, is_span, position, targets, objective)


def _mask(
    tokens: np.ndarray, is_span: np.ndarray, targets: np.ndarray, objective: np.ndarray, masking: Masking,
    random: np.random.Generator,
) -> None:  # fmt: skip
    """Corrupts picked context tokens in place and sets their targets one place earlier."""
    candidate = ~is_span
    candidate[0] = False
    candidate[1:] &= ~is_span[
        :-1
    ]  # the output before the first token after a span already predicts the end of the span
    draws = np.where(candidate, random.random(len(tokens)), np.inf)
    picked = np.flatnonzero(draws < masking.probability)
    if masking.never_none and not len(picked):
        picked = np.array([draws.argmin()])
    targets[picked - 1] = tokens[picked]
    objective[picked - 1] = MNTP
    fate = random.random(len(picked))
    tokens[picked[fate < masking.replaced]] = masking.mask_token
    randomised = picked[(fate >= masking.replaced) & (fate < masking.replaced + masking.random)]
    tokens[randomised] = random.integers(0, masking.vocabulary, len(randomised))


def causal_span_view(ids: Sequence[int] | np.ndarray, spans: Sequence[tuple[int, int]]) -> View:
    """The control of every infilling table: the same spans predicted left to right, text after the last span cut off."""
    stop = spans[-1][1]
    tokens = np.array(ids[:stop], dtype=np.int64)
    targets = np.full(stop, NO_TARGET, dtype=np.int64)
    for start, end in spans:
        targets[start - 1 : end - 1] = tokens[start:end]
    objective = np.where(targets == NO_TARGET, 0, MSG)
    return View(tokens, np.ones(stop, dtype=bool), np.arange(stop), targets, objective)


def answers_view(ids: Sequence[int] | np.ndarray, answers: Sequence[tuple[int, int]], prefix: int = 0) -> View:
    """A conversation whose answers, (start, stop) each, are predicted: read left to right but for its prefix.

    The first ``prefix`` tokens are context, seen both ways (prefix-LM); no answer may begin among them. The first token of
    a text has nothing before it: an answer that begins there loses it.
    """
    tokens = np.array(ids, dtype=np.int64)
    targets = np.full(len(tokens), NO_TARGET, dtype=np.int64)
    for start, stop in answers:
        first = max(start, 1)
        targets[first - 1 : stop - 1] = tokens[first:stop]
    objective = np.where(targets == NO_TARGET, 0, CLM)
    place = np.arange(len(tokens))
    return View(tokens, place >= prefix, place, targets, objective)
