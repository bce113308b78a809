"""Decoding as steps: a text being written asks for one forward pass after the other, and whoever answers may put several texts
into one pass."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor
from transformers import Cache, PreTrainedModel

from ambilm.attention import Layout, Tokens
from ambilm.model.forward import next_logits


@dataclass(frozen=True)
class Step:
    """One token of each row that is to be read.

    Attributes:
        ids: (rows, 1).
        new: what these tokens are, (rows, 1).
        cached: what the cache holds once they are read, themselves last, (rows, cached).
    """

    ids: Tensor
    new: Tokens
    cached: Tokens


Result = TypeVar("Result")
# Yields steps, is sent the logits after each one's tokens, (rows, vocabulary), and returns what was written.
Steps = Generator[Step, Tensor, Result]


def answer(view: PreTrainedModel, cache: Cache, step: Step) -> Tensor:
    """The logits after a step's tokens, (rows, vocabulary); their keys and values join the cache."""
    return next_logits(view, step.ids, Layout(step.new, step.cached), cache)


def decode(view: PreTrainedModel, cache: Cache, steps: Steps[Result]) -> Result:
    """Answers the steps of one text until it is written."""
    try:
        step = next(steps)
        while True:
            step = steps.send(answer(view, cache, step))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
