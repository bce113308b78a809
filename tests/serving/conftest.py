"""A real server on the loopback, and the official client."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import openai
import pytest
import uvicorn

from ambilm.serving.app import create_app
from ambilm.serving.limits import Limits
from ambilm.serving.service import Service

if TYPE_CHECKING:
    from ambilm import AmbiLM

KEY = "a key"
HEADERS = {"Authorization": f"Bearer {KEY}"}


@contextlib.contextmanager
def running(model: "AmbiLM", limits: Limits | None = None) -> Iterator[tuple[str, Service]]:
    """Runs a server in a thread; yields its address and what its routes share."""
    app = create_app(model, "smollm2", [KEY], limits)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", app.state.service
        finally:
            server.should_exit = True
            thread.join()


def client_of(address: str, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=120)


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture(scope="session")
def address(smollm2: "AmbiLM") -> Iterator[str]:
    with running(smollm2) as (address, _):
        yield address


@pytest.fixture(scope="session")
def client(address: str) -> openai.OpenAI:
    return client_of(address)
