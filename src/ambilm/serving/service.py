"""What every route shares: the model under the name that clients call it by, the limits, and the lanes of its jobs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from fastapi import Depends, Request

from ambilm import AmbiLM
from ambilm.serving.failures import Refusal
from ambilm.serving.jobs import Job
from ambilm.serving.limits import Limits
from ambilm.serving.scheduler import Lane, Scheduler
from ambilm.serving.vectors import VectorLane


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
        encode = self.model.encode
        lanes: dict[str, Lane] = {"embeddings": VectorLane[str](lambda texts: encode(texts, show_progress_bar=False))}
        self.scheduler = Scheduler(lanes, self.limits)

    async def result(self, lane: str, job: Job, connection: Request) -> Any:
        """What a job of one answer finds; see :meth:`Job.follow` for what it raises."""
        self.scheduler.submit(lane, job)
        return await job.result(connection, self.limits.seconds)

    @property
    def dimension(self) -> int:
        return int(self.model.base.config.get_text_config().hidden_size)

    @property
    def vocabulary(self) -> int:
        return int(self.model.base.get_input_embeddings().num_embeddings)

    @cached_property
    def prompt_tokens(self) -> int:
        """About what an embedded text gets around it: the prompt, a start, an end."""
        return len(self.model.tokenizer(self.model.settings.prompt)["input_ids"]) + 2  # type: ignore[arg-type]

    def check_name(self, name: str) -> None:
        """
        Raises:
            Refusal: 404 for a model that is not the one served.
        """
        if name != self.name:
            reason = f"The model {name!r} is not served here: it is {self.name!r}."
            raise Refusal(404, reason, param="model", code="model_not_found")

    def text_of(self, tokens: list[int]) -> str:
        """The text of token ids of this model's own tokenizer.

        Raises:
            Refusal: 400 for an id that the vocabulary has not.
        """
        if any(token >= self.vocabulary for token in tokens):
            raise Refusal(400, f"A token id is not below the vocabulary's {self.vocabulary}.", param="input")
        return str(self.model.tokenizer.decode(tokens))


def _of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_of)]
