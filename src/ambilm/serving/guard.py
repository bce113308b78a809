"""The door: API keys, and bodies that are read within their limits of size and time before any route sees them."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ambilm.serving.failures import Refusal
from ambilm.serving.limits import Limits


class Guard:
    """Pure ASGI middleware, so that routes still hear of a client that hangs up."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            headers = Headers(scope=scope)
            if scope["path"].startswith("/v1"):
                self._check_key(headers)
            body = await self._read(headers, receive)
        except Refusal as refusal:
            return await refusal.response()(scope, receive, send)
        if body is not None:
            await self.app(scope, _replay(body, receive), send)

    def _check_key(self, headers: Headers) -> None:
        """Compared in constant time, so that answers do not tell how much of a key was right."""
        given = headers.get("authorization", "").removeprefix("Bearer ").encode()
        if self.keys and not any(secrets.compare_digest(given, key) for key in self.keys):
            raise Refusal(
                401, "Missing or wrong API key: send it as 'Authorization: Bearer KEY'.", code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The whole body; None where the client hung up before its end."""
        announced = headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > self.limits.body_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                while (message := await receive())["type"] == "http.request":
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > self.limits.body_bytes:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            reason = f"The body did not arrive within {self.limits.body_seconds:g} seconds."
            raise Refusal(408, reason, headers={"Connection": "close"}) from None
        return None

    def _too_large(self) -> Refusal:
        reason = f"The body is larger than {self.limits.body_bytes:,} bytes: send it in parts."
        return Refusal(413, reason, headers={"Connection": "close"})


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, then whatever the client sends next: its hanging up."""
    waiting = [body]

    async def next_message() -> Message:
        return {"type": "http.request", "body": waiting.pop(), "more_body": False} if waiting else await receive()

    return next_message
