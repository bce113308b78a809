"""One text being written: the next token from its logits, and its text piece by piece, up to a stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerBase

from ambilm.attention import Tokens
from ambilm.model.decoding import Step, Steps

Finish = Literal["stop", "length"]
UNFINISHED = "\ufffd"  # how a tokenizer writes bytes that are no whole character yet


class Penalties(LogitsProcessor):  # type: ignore[misc]
    """OpenAI's penalties of tokens that were written already: one for having been, one for each time."""

    def __init__(self, presence: float, frequency: float, prompt_tokens: int) -> None:
        self.presence, self.frequency, self.prompt_tokens = presence, frequency, prompt_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """(1, tokens so far) and (1, vocabulary) to (1, vocabulary)."""
        counts = torch.bincount(input_ids[0, self.prompt_tokens :], minlength=scores.shape[1])
        return scores - self.frequency * counts - self.presence * (counts > 0)


class Unfolding:
    """Text of tokens that come one by one: pieces that no later token changes, none of them from a stop on.

    Attributes:
        stopped: whether a stop was found.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self.tokenizer, self.stops = tokenizer, stops
        self.stopped = False
        self._held = ""  # may be the start of a stop
        self._known: list[int] = []  # the last tokens whose text is known: what follows is decoded beside them
        self._new: list[int] = []

    def add(self, token: int) -> str:
        """What became certain."""
        self._new.append(token)
        text = self._decoded()
        if text.endswith(UNFINISHED):
            return ""
        self._known, self._new = self._new, []
        return self._released(text)

    def rest(self) -> str:
        """What was held back; nothing more comes."""
        return self._released(self._decoded(), is_last=True)

    def _decoded(self) -> str:
        before, whole = (
            str(self.tokenizer.decode(ids, skip_special_tokens=True))
            for ids in (self._known, [*self._known, *self._new])
        )
        return whole[len(before) :]

    def _released(self, text: str, is_last: bool = False) -> str:
        self._held += text
        found = [place for stop in self.stops if (place := self._held.find(stop)) >= 0]
        self.stopped = self.stopped or bool(found)
        if found or is_last:
            kept = min(found, default=len(self._held))
            piece, self._held = self._held[:kept], ""
            return piece
        kept = len(self._held) - max((_begun(self._held, stop) for stop in self.stops), default=0)
        piece, self._held = self._held[:kept], self._held[kept:]
        return piece


def _begun(text: str, stop: str) -> int:
    """How many characters of a stop the text ends with."""
    return next((size for size in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:size])), 0)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen.

    Attributes:
        processors: transformers' logits processors.
        generator: draws; None takes the most likely token.
        ends: tokens that end a text.
        max_tokens: most tokens of a text.
    """

    processors: LogitsProcessorList
    generator: torch.Generator | None
    ends: frozenset[int]
    max_tokens: int

    def choose(self, ids: Sequence[int], scores: Tensor) -> int:
        """The token after ``ids``, from its logits (1, vocabulary)."""
        if len(self.processors):
            scores = self.processors(torch.tensor([list(ids)], device=scores.device), scores)  # type: ignore[arg-type]
        if self.generator is None:
            return int(scores.argmax(-1))
        return int(torch.multinomial(torch.softmax(scores, -1), 1, generator=self.generator))


def continued(
    ids: Sequence[int], scores: Tensor, sampling: Sampling, unfolding: Unfolding, tell: Callable[[str, Finish | None], None]
) -> Steps[None]:  # fmt: skip
    """Writes on after ``ids`` until an end token, a stop, or the most tokens.

    Args:
        scores: logits after the last of ``ids``, (1, vocabulary).
        tell: is given each token's piece of text, and with the last one why it ended.
    """
    written = list(ids)
    places = _places(len(ids) + sampling.max_tokens, scores.device)
    for count in range(1, sampling.max_tokens + 1):
        token = sampling.choose(written, scores)
        if token in sampling.ends:
            return tell(unfolding.rest(), "stop")
        piece = unfolding.add(token)
        if unfolding.stopped:
            return tell(piece, "stop")
        if count == sampling.max_tokens:
            piece += unfolding.rest()
            return tell(piece, "stop" if unfolding.stopped else "length")
        tell(piece, None)
        written.append(token)
        new = places.columns(len(written) - 1, len(written))
        scores = yield Step(torch.tensor([[token]], device=scores.device), new, places.columns(0, len(written)))


def _places(length: int, device: torch.device) -> Tokens:
    """One text left to right, (1, length)."""
    return Tokens.padded([length], torch.ones(1, length, dtype=torch.bool, device=device))
