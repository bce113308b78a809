"""What every route shares: the model under the name that clients call it by, the limits, and the lanes of its jobs."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any

from fastapi import Depends, Request

from ambilm import AmbiLM
from ambilm.model.encoding import BATCH_TOKENS, Words, encode_words
from ambilm.model.forward import next_logits, stock_next_logits
from ambilm.serving.failures import Refusal
from ambilm.serving.jobs import Job
from ambilm.serving.limits import Limits
from ambilm.serving.scheduler import Lane, Scheduler
from ambilm.serving.vectors import VectorLane
from ambilm.serving.writing import WritingLane


@dataclass
class Service:
    """One model and what is known about serving it.

    Attributes:
        name: the ``model`` that requests name.
        started: seconds since the epoch.
        scheduler: the thread that computes.
    """

    model: AmbiLM
    name: str
    limits: Limits
    started: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        model, own = self.model, self.model.settings
        lanes: dict[str, Lane] = {
            "embeddings": VectorLane[str](lambda texts: model.encode(texts, show_progress_bar=False)),
            "tokens": VectorLane[Words](
                partial(
                    encode_words, model.view, layout=own.layout, sink=own.sink, subword="mean", shift=own.word_shift,
                    batch_tokens=BATCH_TOKENS,
                )
            ),
            "text": WritingLane(model.base_view, stock_next_logits, self.limits.rows),
            "infill": WritingLane(model.view, next_logits, self.limits.rows),
        }  # fmt: skip
        self.scheduler = Scheduler(lanes, self.limits)

    async def result(self, lane: str, job: Job, connection: Request) -> Any:
        """What a job of one answer finds; see :meth:`Job.follow` for what it raises."""
        self.scheduler.submit(lane, job)
        return await job.result(connection, self.limits.seconds)

    @staticmethod
    def now() -> int:
        """Seconds since the epoch."""
        return int(time.time())

    def follow(self, lane: str, job: Job, connection: Request) -> AsyncGenerator[Any]:
        """What a job tells piece by piece; see :meth:`Job.follow`."""
        self.scheduler.submit(lane, job)
        return job.follow(connection, self.limits.seconds)

    @property
    def dimension(self) -> int:
        return int(self.model.base.config.get_text_config().hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self.model.base.get_input_embeddings().num_embeddings)

    @property
    def context_tokens(self) -> int:
        """Most tokens of a text, read and written together."""
        longest = getattr(self.model.base.config.get_text_config(), "max_position_embeddings", None)
        return min(longest or self.limits.request_tokens, self.limits.request_tokens)

    @cached_property
    def ends(self) -> frozenset[int]:
        """Tokens that end a text that is written."""
        given = self.model.base.generation_config.eos_token_id  # type: ignore[union-attr]
        own = [] if given is None else [given] if isinstance(given, int) else given
        return frozenset(own) or frozenset({self.model.settings.end_token_id})

    @cached_property
    def _prompt_tokens(self) -> int:
        return len(self.model.tokenizer(self.model.settings.prompt)["input_ids"])  # type: ignore[arg-type]

    def tokens_with_prompt(self, count: int) -> int:
        """About how many tokens are read to embed a text of so many: with the prompt, a start, an end."""
        settings = self.model.settings
        times = max(settings.prompt.count("{text}"), 1)
        return min(count * times + self._prompt_tokens + 2, settings.max_length)

    def check_name(self, name: str) -> None:
        """
        Raises:
            Refusal: 404 for a model that is not the one served.
        """
        if name != self.name:
            reason = f"The model {name!r} is not served here: it is {self.name!r}."
            raise Refusal(404, reason, param="model", code="model_not_found")

    def check_tokens(self, tokens: list[int]) -> list[int]:
        """
        Raises:
            Refusal: 400 for an id that the vocabulary has not.
        """
        if any(token >= self.vocabulary for token in tokens):
            raise Refusal(400, f"A token id is not below the vocabulary's {self.vocabulary}.")
        return tokens


def _of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_of)]
