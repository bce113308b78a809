"""What the server refuses to take on, so that a client's mistake costs that client a clear answer and nobody else anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of the server. A token counts where it is read and where it may be written.

    Attributes:
        body_bytes: largest request body.
        body_seconds: how long a client may take to send it.
        inputs: most texts of one request.
        rows: most texts that are written in one pass, and most choices of one request.
        request_tokens: most tokens of one request.
        open_requests: most requests that were taken on and are not yet answered; beyond, 429.
        open_tokens: most tokens of these requests; beyond, 429.
        seconds: how long a request may take, its waiting included.
    """

    body_bytes: int = 8 * 2**20
    body_seconds: float = 30.0
    inputs: int = 2048
    rows: int = 16
    request_tokens: int = 2**17
    open_requests: int = 256
    open_tokens: int = 2**18
    seconds: float = 600.0
