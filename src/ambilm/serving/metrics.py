"""``GET /metrics``: what the server did and what waits, as Prometheus reads it."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ambilm.serving.scheduler import Scheduler

BUCKETS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Counters of one server, in a registry of its own."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.registry = CollectorRegistry()
        own = {"registry": self.registry, "namespace": "ambilm"}
        self.requests = Counter("requests", "Requests answered.", ["path", "status"], **own)  # type: ignore[arg-type]
        self.first = Histogram("first_byte_seconds", "Until the first byte.", ["path"], buckets=BUCKETS, **own)  # type: ignore[arg-type]
        self.seconds = Histogram("request_seconds", "Until the last byte.", ["path"], buckets=BUCKETS, **own)  # type: ignore[arg-type]
        self.registry.register(_Work(scheduler))
        ProcessCollector(registry=self.registry)

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Work(Collector):
    """What the scheduler knows, read when it is asked for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        scheduler = self.scheduler
        yield GaugeMetricFamily("ambilm_open_requests", "Taken on and not yet over.", scheduler.requests)
        yield GaugeMetricFamily("ambilm_open_tokens", "What these may need at most.", scheduler.tokens)
        seconds = CounterMetricFamily("ambilm_lane_busy_seconds", "Time of the model's thread.", labels=["lane"])
        tokens = CounterMetricFamily("ambilm_lane_tokens", "Tokens read and written.", labels=["lane"])
        for name, lane in scheduler.lanes.items():
            seconds.add_metric([name], scheduler.busy_seconds[name])
            tokens.add_metric([name], lane.tokens)
        yield from (seconds, tokens)


class Measured:
    """Pure ASGI middleware that counts and times requests. Paths that are no route's count as one."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self.app, self.metrics, self.paths = app, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        started, status = time.perf_counter(), 500
        path = scope["path"] if scope["path"] in self.paths else "other"

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.metrics.first.labels(path).observe(time.perf_counter() - started)
            await send(message)

        try:
            await self.app(scope, receive, watched)
        finally:
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(time.perf_counter() - started)
