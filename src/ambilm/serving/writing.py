"""The lanes of texts that are written: contexts are read one at a time, and all texts under way share one pass a token."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

import torch
from transformers import PreTrainedModel

from ambilm.errors import UserError
from ambilm.serving.batch import Batch, Read, heights
from ambilm.serving.jobs import Job

CHUNK = 512  # tokens of contexts that are read at once: nobody waits longer for the next unit


class Task(Protocol):
    """A context with what is to be written to it.

    Attributes:
        rows: rows that it takes in a batch.
        left: tokens of the context that are not yet read.
    """

    rows: int

    @property
    def left(self) -> int: ...

    def read(self, view: PreTrainedModel) -> None:
        """Reads some of the context."""

    def join(self, batch: Batch) -> None:
        """Begins to write. The context was read."""


class WritingJob(Job):
    """One request's texts.

    Attributes:
        tasks: what nobody has begun to read.
    """

    def __init__(self, tasks: Sequence[Task], tokens: int) -> None:
        super().__init__(tokens)
        self.tasks = deque(tasks)


class WritingLane:
    """Takes a task of each request in turn as rows become free; reading and writing take turns too."""

    def __init__(self, view: PreTrainedModel, read: Read, most: int) -> None:
        self.view, self.read, self.most = view, read, most
        self.jobs: deque[WritingJob] = deque()
        self.reading: tuple[WritingJob, Task] | None = None
        self.at_work: list[Job] = []
        self.tokens = 0
        self._reads_next = True

    def prepare(self) -> None:
        self.batch = Batch(self.view, self.read, heights(self.view, self.read, self.most))

    def add(self, job: Job) -> None:
        assert isinstance(job, WritingJob)
        self.jobs.append(job)

    def has_work(self) -> bool:
        self.jobs = deque(job for job in self.jobs if not job.is_over)
        if self.reading and self.reading[0].is_over:
            self.reading = None
        self.batch.drop_the_finished()
        return bool(self.jobs or self.reading or self.batch.members)

    @torch.inference_mode()
    def work(self) -> None:
        if (self._reads_next or not self.batch.members) and self._take_next():
            self._read_some()
        else:
            self.at_work = [member.owner for member in self.batch.members if member.owner]
            self.tokens += self.batch.rows
            self.batch.forward()
        self._reads_next = not self._reads_next

    def fail(self, error: Exception) -> None:
        for job in self.at_work:
            job.end(error)

    def _take_next(self) -> bool:
        """Whether there is something to be read, for which there are rows."""
        if self.reading:
            return True
        if not self.jobs or self.jobs[0].tasks[0].rows > self.batch.room:
            return False
        job = self.jobs.popleft()
        self.reading = job, job.tasks.popleft()
        if job.tasks:
            self.jobs.append(job)
        return True

    def _read_some(self) -> None:
        """Contexts one after the other, each alone, until a unit's tokens are read."""
        until = self.tokens + CHUNK
        while self.tokens < until and self._take_next():
            assert self.reading
            job, task = self.reading
            self.at_work = [job]
            left = task.left
            try:
                task.read(self.view)
                self.tokens += left - task.left
                if not task.left:
                    self.reading = None
                    task.join(self.batch)
            except UserError as error:
                self.reading = None
                job.end(error)
