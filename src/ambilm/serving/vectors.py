"""The lanes of vectors: texts of several requests in one packed row, each vector as if its text had been alone.

That is :meth:`AmbiLM.encode`'s own promise: neighbours change no vector by more than rounding.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from ambilm.model.encoding import BATCH_TOKENS
from ambilm.model.forward import token_budget_batches
from ambilm.serving.jobs import Job

Item = TypeVar("Item")


class VectorJob(Job, Generic[Item]):
    """Items that want vectors.

    Attributes:
        items: a text or a list of words each.
        lengths: tokens of each.
        pieces: indices of items that share a row, still to be computed.
        found: what was computed, in the order of the items.
    """

    def __init__(self, items: Sequence[Item], lengths: Sequence[int]) -> None:
        super().__init__(sum(lengths))
        self.items, self.lengths = items, lengths
        self.pieces = deque(token_budget_batches(lengths, BATCH_TOKENS))
        self.found: list[Any] = [None] * len(items)
        self.left = len(items)

    def next_tokens(self) -> int:
        return sum(self.lengths[index] for index in self.pieces[0])

    def keep(self, index: int, vector: np.ndarray) -> None:
        self.found[index] = vector
        self.left -= 1


class VectorLane(Generic[Item]):
    """Takes a piece of each request in turn while they fit into one row."""

    def __init__(self, compute: Callable[[list[Item]], Iterable[np.ndarray]]) -> None:
        self.compute = compute
        self.jobs: deque[VectorJob[Item]] = deque()
        self.at_work: list[VectorJob[Item]] = []
        self.tokens = 0

    def prepare(self) -> None: ...

    def add(self, job: Job) -> None:
        assert isinstance(job, VectorJob)
        self.jobs.append(job)

    def has_work(self) -> bool:
        self.jobs = deque(job for job in self.jobs if not job.is_over)
        return bool(self.jobs)

    def work(self) -> None:
        row = self._next_row()
        self.at_work = list({id(job): job for job, _ in row}.values())
        vectors = self.compute([job.items[index] for job, index in row])
        self.tokens += sum(job.lengths[index] for job, index in row)
        for (job, index), vector in zip(row, vectors, strict=True):
            job.keep(index, vector)
        for job in self.at_work:
            if not job.left:
                job.tell(job.found)
                job.end()

    def fail(self, error: Exception) -> None:
        for job in self.at_work:
            job.end(error)

    def _next_row(self) -> list[tuple[VectorJob[Item], int]]:
        """(request, index of the item) of a row; the request that was first is last the next time."""
        row: list[tuple[VectorJob[Item], int]] = []
        room = BATCH_TOKENS
        for job in list(self.jobs):
            if not row or job.next_tokens() <= room:
                room -= job.next_tokens()
                row += [(job, index) for index in job.pieces.popleft()]
        self.jobs.rotate(-1)
        self.jobs = deque(job for job in self.jobs if job.pieces)
        return row
