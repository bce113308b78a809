"""``POST /v1/infill``: the blanks of a text are filled, seeing both sides; several candidates, scored."""

from __future__ import annotations

import asyncio
import uuid
from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi import Request as Connection
from pydantic import BaseModel, Field

from ambilm.serving.filling import FillJob, filled
from ambilm.serving.generation import Bounds, Count, Seed, ShapingRequest
from ambilm.serving.schemas import TextUsage
from ambilm.serving.service import Served

router = APIRouter()


class InfillRequest(ShapingRequest):
    """Without a ``temperature``, the most likely tokens; candidates then differ in their first ones."""

    text: Annotated[str, Field(description="a text with `[BLANK]` wherever something is missing")]
    n: Count = Field(default=1, description="how many candidates")
    min_tokens: Bounds = Field(default=1, description="of a blank: one number, or one for each")
    max_tokens: Bounds = Field(default=32, description="of a blank: one number, or one for each")
    seed: Seed | None = None
    user: str | None = None


class Candidate(BaseModel):
    """A filling; ``score`` is the log-probability (nats) of its spans and their ends, ``finish_reason`` is ``length`` where
    a span was cut."""

    text: str
    spans: list[str]
    score: float
    finish_reason: Literal["stop", "length"]


class InfillAnswer(BaseModel):
    id: str
    object: Literal["infill"] = "infill"
    created: int
    model: str
    candidates: list[Candidate]
    usage: TextUsage


@router.post("/v1/infill")
async def infill(request: InfillRequest, service: Served, connection: Connection) -> InfillAnswer:
    """The candidates, best first."""
    service.check_name(request.model)
    plan = await asyncio.to_thread(
        service.model.plan_infill, request.text, num_candidates=request.n, min_tokens=request.min_tokens,
        max_tokens=request.max_tokens, do_sample=request.temperature is not None and not request.is_greedy,
        seed=request.seed, **request.shaping(),
    )  # fmt: skip
    job = FillJob(service, [plan])
    (found,) = await filled(job, connection)
    candidates = [
        Candidate(text=item.text, spans=item.spans, score=item.score, finish_reason="stop" if item.ended else "length")
        for item in found.candidates
    ]
    return InfillAnswer(
        id=f"infill-{uuid.uuid4().hex}", created=service.now(), model=service.name, candidates=candidates,
        usage=TextUsage.of(job.read, found.tokens),
    )  # fmt: skip
