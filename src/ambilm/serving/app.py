"""The application: routes, the door before them, errors in one shape."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

import ambilm
from ambilm import AmbiLM
from ambilm.serving import chat, completions, embeddings, infill, tokens
from ambilm.serving.failures import ErrorResponse, Refusal, answer_errors
from ambilm.serving.guard import Guard
from ambilm.serving.limits import Limits
from ambilm.serving.metrics import Measured, Metrics
from ambilm.serving.service import Served, Service

router = APIRouter()


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["ambilm"] = "ambilm"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class State(BaseModel):
    status: Literal["ok"] = "ok"


def create_app(model: AmbiLM, name: str, keys: Sequence[str] = (), limits: Limits | None = None) -> FastAPI:
    """A server of one model.

    Args:
        name: what requests call the model.
        keys: API keys, any of which opens ``/v1``; none: no key is asked for.
    """
    limits = limits or Limits()
    wrong: dict[int | str, dict[str, Any]] = {
        status: {"model": ErrorResponse} for status in (400, 401, 404, 408, 413, 429, 500, 503, 504)
    }
    service = Service(model, name, limits)

    @contextlib.asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.scheduler.close()

    app = FastAPI(
        title="AmbiLM", version=ambilm.__version__, responses=wrong, lifespan=life, docs_url=None, redoc_url=None
    )
    app.state.service = service
    answer_errors(app)
    app.include_router(router)
    for room in (embeddings, tokens, completions, chat, infill):
        app.include_router(room.router)
    app.state.metrics = Metrics(service.scheduler)
    app.add_middleware(Guard, keys=keys, limits=limits)
    app.add_middleware(Measured, metrics=app.state.metrics, paths=set(app.openapi()["paths"]))  # the outer one
    return app


@router.get("/v1/models")
async def models(service: Served) -> ModelList:
    """The one model that is served."""
    return ModelList(data=[_card(service)])


@router.get("/v1/models/{name:path}")
async def model(name: str, service: Served) -> ModelCard:
    service.check_name(name)
    return _card(service)


def _card(service: Service) -> ModelCard:
    return ModelCard(id=service.name, created=service.started)


@router.get("/health")
async def health(service: Served) -> State:
    """The process answers and its model's thread is alive."""
    if not service.scheduler.is_alive:
        raise Refusal(503, "The model's thread has ended: start the server again.")
    return State()


@router.get("/ready")
async def ready(service: Served) -> State:
    """The model is loaded and warm: requests are computed at once."""
    if not service.scheduler.is_ready:
        raise Refusal(503, "The model is warming up: requests are taken, and wait.", headers={"Retry-After": "1"})
    return State()


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    """Counters and gauges for Prometheus."""
    return Response(request.app.state.metrics.text(), media_type=CONTENT_TYPE_LATEST)
