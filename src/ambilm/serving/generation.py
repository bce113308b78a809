"""Continuations by the untouched base: what ``/v1/completions`` and ``/v1/chat/completions`` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import Request as Connection
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ambilm.attention import Layout, Tokens
from ambilm.model.forward import stock_next_logits
from ambilm.model.infilling import processors
from ambilm.serving.batch import Batch
from ambilm.serving.failures import Refusal
from ambilm.serving.schemas import Request
from ambilm.serving.service import Service
from ambilm.serving.text import Finish, Penalties, Sampling, Unfolding, continued
from ambilm.serving.writing import CHUNK, WritingJob

COLD = 1e-5  # below this temperature, the most likely token

Count = Annotated[int, Field(strict=True, ge=1)]
Seed = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
Bounds = (
    Annotated[int, Field(strict=True, ge=0, le=2**31)]
    | Annotated[list[Annotated[int, Field(strict=True, ge=0, le=2**31)]], Field(min_length=1)]
)
Stop = Annotated[str, Field(min_length=1, max_length=256)]


def number(least: float, most: float) -> Any:
    return Field(strict=True, ge=least, le=most, allow_inf_nan=False)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class ShapingRequest(Request):
    """What shapes the distribution that a token is taken from."""

    temperature: Annotated[float, number(0, 2)] | None = None
    top_p: Annotated[float, number(0.001, 1)] | None = None
    top_k: Count | None = None
    min_p: Annotated[float, number(0, 1)] | None = None
    repetition_penalty: Annotated[float, number(0.01, 100)] | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature is not None and self.temperature < COLD

    def shaping(self) -> dict[str, Any]:
        """Options of :func:`ambilm.model.infilling.processors`."""
        return {
            "temperature": None if self.is_greedy else self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }


class SamplingRequest(ShapingRequest):
    """Fields of OpenAI's two requests for text, and ``top_k``, ``min_p``, ``repetition_penalty`` as other servers have them."""

    presence_penalty: Annotated[float, number(-2, 2)] | None = None
    frequency_penalty: Annotated[float, number(-2, 2)] | None = None
    n: Count | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def generator(self, device: torch.device, choice: int) -> torch.Generator:
        """A stream of its own for each choice, the same for the same seed whatever else is going on."""
        generator = torch.Generator(device)
        if self.seed is None:
            generator.seed()
            return generator
        words = np.random.SeedSequence((self.seed % 2**64, choice)).generate_state(1, np.uint64)
        return generator.manual_seed(int(words[0]) % 2**63)

    def sampling(self, service: Service, choice: int, prompt_tokens: int, max_tokens: int) -> Sampling:
        shapers = processors(self.shaping())
        if self.presence_penalty or self.frequency_penalty:
            shapers.insert(0, Penalties(self.presence_penalty or 0.0, self.frequency_penalty or 0.0, prompt_tokens))
        generator = None if self.is_greedy else self.generator(service.model.device, choice)
        return Sampling(shapers, generator, service.ends, max_tokens)


@dataclass(frozen=True)
class Piece:
    """Some text of one choice, one token's worth; the last one says why it ended."""

    choice: int
    text: str
    finish: Finish | None


class TextJob(WritingJob):
    """Continuations of one request's prompts: ``n`` choices of each."""

    def __init__(
        self, service: Service, request: SamplingRequest, prompts: Sequence[list[int]], max_tokens: int
    ) -> None:
        choices = request.n or 1
        if choices > service.limits.rows:
            raise Refusal(400, f"n={choices} is more than {service.limits.rows}: ask for fewer.", param="n")
        room = service.context_tokens
        for prompt in prompts:
            if len(prompt) + max_tokens > room:
                reason = (
                    f"{len(prompt)} tokens of prompt and max_tokens={max_tokens} do not fit into the model's {room}."
                )
                raise Refusal(400, reason, code="context_length_exceeded")
        tasks = [Prompt(self, service, request, ids, max_tokens, place * choices) for place, ids in enumerate(prompts)]
        super().__init__(tasks, sum(len(ids) + choices * max_tokens for ids in prompts))
        self.left = choices * len(prompts)

    def piece(self, choice: int, text: str, finish: Finish | None) -> None:
        self.tell(Piece(choice, text, finish))
        if finish:
            self.left -= 1
            if not self.left:
                self.end()


class Prompt:
    """A prompt, read in chunks once for all of its choices."""

    def __init__(
        self, job: TextJob, service: Service, request: SamplingRequest, ids: list[int], max_tokens: int, first: int
    ) -> None:  # fmt: skip
        self.job, self.ids, self.first = job, ids, first
        self.rows = request.n or 1
        self.sampling = [request.sampling(service, first + row, len(ids), max_tokens) for row in range(self.rows)]
        self.unfolding = [Unfolding(service.model.tokenizer, request.stops) for _ in range(self.rows)]
        self.cache = DynamicCache()
        self.done = 0
        self.scores: Tensor

    @property
    def left(self) -> int:
        return len(self.ids) - self.done

    def read(self, view: PreTrainedModel) -> None:
        start, stop = self.done, min(self.done + CHUNK, len(self.ids))
        ids = torch.tensor([self.ids[start:stop]], device=view.device)  # (1, chunk)
        known = Tokens.padded([stop], torch.ones(1, stop, dtype=torch.bool, device=view.device))
        layout = Layout(known.columns(start, stop), known) if start else Layout.of(known)
        self.scores = stock_next_logits(view, ids, layout, self.cache)  # (1, vocabulary)
        self.done = stop

    def join(self, batch: Batch) -> None:
        for row, (sampling, unfolding) in enumerate(zip(self.sampling, self.unfolding, strict=True)):
            steps = continued(self.ids, self.scores, sampling, unfolding, self._teller(self.first + row))
            batch.join(self.job, self.cache, steps)

    def _teller(self, choice: int) -> Callable[[str, Finish | None], None]:
        return lambda text, finish: self.job.piece(choice, text, finish)


@dataclass
class Written:
    """One choice so far; a finished one when nothing more comes."""

    text: str = ""
    tokens: int = 0
    finish: Finish | None = None


async def written(service: Service, job: TextJob, connection: Connection) -> list[Written]:
    """Every choice, whole."""
    choices = [Written() for _ in range(job.left)]
    async for piece in service.follow("text", job, connection):
        choice = choices[piece.choice]
        choice.text += piece.text
        choice.tokens += 1
        choice.finish = piece.finish
    return choices
