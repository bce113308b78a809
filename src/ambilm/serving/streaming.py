"""Server-sent events, as OpenAI's clients read them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from pydantic_core import to_json

from ambilm.serving.failures import HungUp, Refusal

log = logging.getLogger("uvicorn.error")
# For the OpenAPI document.
STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}


async def streamed(chunks: AsyncGenerator[BaseModel]) -> StreamingResponse:
    """One event a chunk, then ``[DONE]``. What goes wrong before the first chunk is answered with its status, later
    with an event that holds the error."""
    first = await anext(chunks)
    return StreamingResponse(
        _events(first, chunks), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
    )


async def _events(first: BaseModel, rest: AsyncGenerator[BaseModel]) -> AsyncIterator[bytes]:
    async with contextlib.aclosing(rest):
        try:
            yield _event(to_json(first))
            async for chunk in rest:
                yield _event(to_json(chunk))
            yield _event(b"[DONE]")
        except HungUp:
            return
        except Refusal as refusal:
            yield _event(to_json(refusal.body()))
        except Exception as error:
            log.exception("A stream failed")
            yield _event(to_json(Refusal(500, f"Internal error: {type(error).__name__}.").body()))


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
