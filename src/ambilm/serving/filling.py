"""Infilling under way: the texts of one request, each with its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request as Connection
from transformers import PreTrainedModel

from ambilm.model.decoding import Steps
from ambilm.model.infilling import Decoding, Filling, Gaps, Infilled
from ambilm.serving.batch import Batch
from ambilm.serving.failures import Refusal
from ambilm.serving.service import Service
from ambilm.serving.writing import WritingJob

Plan = tuple[Gaps, Decoding]


@dataclass(frozen=True)
class Filled:
    """A text with its blanks filled: the candidates, best first, and how many tokens were written for all of them."""

    place: int
    candidates: list[Infilled]
    tokens: int


class FillJob(WritingJob):
    """The texts of one request; tells a :class:`Filled` of each."""

    def __init__(self, service: Service, plans: Sequence[Plan]) -> None:
        most = max(decoding.candidates for _, decoding in plans)
        if most > service.limits.rows:
            raise Refusal(400, f"n={most} is more than {service.limits.rows}: ask for fewer.", param="n")
        self.service = service
        self.left = len(plans)
        self.read = sum(len(piece) for gaps, _ in plans for piece in gaps.pieces)
        written = sum(decoding.candidates * sum(decoding.max_tokens) for _, decoding in plans)
        super().__init__([FillTask(self, place, *plan) for place, plan in enumerate(plans)], self.read + written)

    def filled(self, place: int, filling: Filling) -> None:
        tokens = sum(len(span) for spans in filling.spans for span in spans)
        self.tell(Filled(place, filling.candidates(self.service.model.tokenizer), tokens))
        self.left -= 1
        if not self.left:
            self.end()


class FillTask:
    """A text with blanks."""

    def __init__(self, job: FillJob, place: int, gaps: Gaps, decoding: Decoding) -> None:
        self.job, self.place, self.gaps, self.decoding = job, place, gaps, decoding
        self.rows, self.left = decoding.candidates, sum(map(len, gaps.pieces))
        self.filling: Filling

    def read(self, view: PreTrainedModel) -> None:
        model = self.job.service.model
        special = set(model.tokenizer.all_special_ids)
        self.filling = Filling(view, model.settings, self.gaps, self.decoding, special)
        self.left = 0

    def join(self, batch: Batch) -> None:
        batch.join(self.job, self.filling.cache, self._steps())

    def _steps(self) -> Steps[None]:
        yield from self.filling.steps()
        self.job.filled(self.place, self.filling)


async def filled(job: FillJob, connection: Connection) -> list[Filled]:
    """All texts, in the order given."""
    found = [item async for item in job.service.follow("infill", job, connection)]
    return sorted(found, key=lambda item: item.place)
