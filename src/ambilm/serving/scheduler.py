"""Who computes next: one thread owns the model, and each kind of job waits in a lane of its own.

A lane cuts its jobs into small units and puts units of several jobs into one pass. The lane that has had the least time
goes next, so that a thousand embeddings delay a chat by one unit, and the other way round.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from typing import Protocol

from ambilm.serving.failures import Refusal
from ambilm.serving.jobs import Job
from ambilm.serving.limits import Limits

log = logging.getLogger("uvicorn.error")


class Lane(Protocol):
    """Jobs of one kind. All methods run in the worker's thread.

    Attributes:
        tokens: read and written so far.
    """

    tokens: int

    def prepare(self) -> None:
        """Whatever is to be done once, before the first job."""

    def add(self, job: Job) -> None: ...

    def has_work(self) -> bool:
        """Whether a unit of work waits; forgets the jobs that are over."""

    def work(self) -> None:
        """Computes one unit."""

    def fail(self, error: Exception) -> None:
        """Ends the jobs that the failed unit belonged to."""


class Scheduler:
    """Takes jobs on within the limits, and computes them in one thread.

    Attributes:
        is_ready: whether the lanes are prepared; jobs are taken on before, and wait.
        seconds: time that each lane has had; a lane that was idle starts level with the others.
        busy_seconds: the same, without that.
    """

    def __init__(self, lanes: Mapping[str, Lane], limits: Limits) -> None:
        self.lanes, self.limits = dict(lanes), limits
        self.seconds, self.busy_seconds = dict.fromkeys(lanes, 0.0), dict.fromkeys(lanes, 0.0)
        self.requests = self.tokens = 0  # taken on and not yet over
        self._new: list[tuple[str, Job]] = []
        self._closed = self.is_ready = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, lane: str, job: Job) -> None:
        """Takes a job on.

        Raises:
            Refusal: 400 when it is too large for this server, 429 when too much is waiting already.
        """
        limits = self.limits
        if job.tokens > limits.request_tokens:
            reason = (
                f"The request needs {job.tokens:,} tokens, at most {limits.request_tokens:,} are taken: ask for less."
            )
            raise Refusal(400, reason, code="context_length_exceeded")
        with self._changed:
            if self.requests >= limits.open_requests or self.tokens + job.tokens > limits.open_tokens:
                reason = f"{self.requests} requests of {self.tokens:,} tokens are waiting already: try again later."
                raise Refusal(429, reason, headers={"Retry-After": str(self._patience())})
            self.requests += 1
            self.tokens += job.tokens
            job.on_end = lambda: self._over(job)
            self._new.append((lane, job))
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread after the unit that it is at."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _patience(self) -> int:
        """Seconds until half of what waits is done, at the pace so far."""
        done, seconds = sum(lane.tokens for lane in self.lanes.values()), sum(self.busy_seconds.values())
        pace = done / seconds if done and seconds else 100.0
        return min(max(math.ceil(self.tokens / pace / 2), 1), 60)

    def _over(self, job: Job) -> None:
        with self._changed:
            self.requests -= 1
            self.tokens -= job.tokens

    def _run(self) -> None:
        for lane in self.lanes.values():
            lane.prepare()
        self.is_ready = True
        busy: list[str] = []
        while True:
            with self._changed:
                while not (self._new or self._closed or busy):
                    self._changed.wait()
                if self._closed:
                    return
                new, self._new = self._new, []
            for name, job in new:
                self.lanes[name].add(job)
            before, busy = busy, [name for name, lane in self.lanes.items() if lane.has_work()]
            for name in set(busy) - set(before):
                self.seconds[name] = max(self.seconds[name], *(self.seconds[other] for other in before or [name]))
            if busy:
                self._work(min(busy, key=self.seconds.__getitem__))

    def _work(self, name: str) -> None:
        started = time.perf_counter()
        try:
            self.lanes[name].work()
        except Exception as error:  # the server outlives whatever one unit meets
            log.exception("A unit of %s failed", name)
            self.lanes[name].fail(error)
        passed = time.perf_counter() - started
        self.seconds[name] += passed
        self.busy_seconds[name] += passed
