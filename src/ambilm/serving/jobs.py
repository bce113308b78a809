"""A job: what one request asks of the model, seen from both sides.

The request's coroutine, in the event loop, follows the job; the worker's thread computes it and tells what it has found.
Whichever ends first, the other one hears of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.requests import Request

from ambilm.errors import UserError
from ambilm.serving.failures import HungUp, Refusal

_END = object()


class Job:
    """One request's work. Made in the event loop.

    Attributes:
        tokens: what it costs: tokens to read and at most to write.
        is_over: done, failed, or no longer wanted; a worker drops it then.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.is_over = False
        self.on_end: Callable[[], None] = lambda: None
        self._ending = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Any] = asyncio.Queue()

    def tell(self, event: Any) -> None:
        """Hands the request something that was found. Any thread."""
        with contextlib.suppress(RuntimeError):  # a loop that was closed has nobody who waits
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more comes. Any thread, any number of times."""
        with self._ending:
            first, self.is_over = not self.is_over, True
        if first:
            self.on_end()
            self.tell(error or _END)

    async def follow(self, connection: Request, seconds: float) -> AsyncGenerator[Any]:
        """What the worker tells, until the job ends.

        Raises:
            HungUp: when the client left.
            Refusal: 504 when ``seconds`` are over, or what the worker refused.
        """
        late = Refusal(
            504, f"The request took longer than {seconds:g} seconds: ask for less, or when less is going on."
        )
        timer = self._loop.call_later(seconds, self.end, late)
        watcher = self._loop.create_task(self._watch(connection))
        try:
            while (event := await self._events.get()) is not _END:
                if isinstance(event, UserError):
                    raise Refusal(400, str(event))
                if isinstance(event, BaseException):
                    raise event
                yield event
        finally:
            timer.cancel()
            watcher.cancel()
            self.end()

    async def result(self, connection: Request, seconds: float) -> Any:
        """The one thing that the worker tells."""
        events = [event async for event in self.follow(connection, seconds)]
        return events[-1]

    async def _watch(self, connection: Request) -> None:
        while (await connection.receive())["type"] != "http.disconnect":
            pass
        self.end(HungUp())
