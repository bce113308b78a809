"""What the server refuses to take on, so that a client's mistake costs that client a clear answer and nobody else anything."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of the server.

    Attributes:
        body_bytes: largest request body.
        body_seconds: how long a client may take to send it.
        inputs: most texts of one request.
    """

    body_bytes: int = 8 * 2**20
    body_seconds: float = 30.0
    inputs: int = 2048
