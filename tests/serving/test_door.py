"""What stands before every route: API keys, the limits of a body, the shape of errors; and the command line's checks."""

import json
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import openai
import pytest
from tests.serving.conftest import HEADERS, KEY, client_of, running, wait_until

from ambilm.serving.limits import Limits

if TYPE_CHECKING:
    from ambilm import AmbiLM


@pytest.fixture(scope="module")
def narrow(smollm2: "AmbiLM") -> Iterator[str]:
    with running(smollm2, Limits(body_bytes=1000, body_seconds=0.5)) as (address, _):
        yield address


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").owned_by == "ambilm"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("a/b")


def test_only_the_api_asks_for_a_key(address: str) -> None:
    assert httpx.get(f"{address}/health").json() == {"status": "ok"}
    wait_until(lambda: httpx.get(f"{address}/ready").status_code == 200)
    with pytest.raises(openai.AuthenticationError):
        client_of(address, "wrong").models.list()
    assert httpx.get(f"{address}/v1/models").json()["error"]["code"] == "invalid_api_key"


def test_unknown_paths_and_methods(address: str) -> None:
    for answer, status in (
        (httpx.get(f"{address}/v1/nothing", headers=HEADERS), 404),
        (httpx.get(f"{address}/v1/embeddings", headers=HEADERS), 405),
    ):
        assert answer.status_code == status
        assert answer.json()["error"]["type"] == ("not_found_error" if status == 404 else "invalid_request_error")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff\xfe\x00", b"[" * 900, b'{"model": "\\ud800"}', b"null", b'"text"', b"NaN"]
)
def test_what_is_no_request(narrow: str, body: bytes) -> None:
    answer = httpx.post(f"{narrow}/v1/embeddings", content=body, headers=HEADERS)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_deep_json(address: str) -> None:
    for opening, closing in (("[", "]"), ('{"input":', "}")):
        body = opening * 200_000 + "1" + closing * 200_000
        answer = httpx.post(f"{address}/v1/embeddings", content=body.encode(), headers=HEADERS)
        assert answer.status_code == 400 and len(answer.content) < 500


def test_a_body_has_a_largest_size(narrow: str) -> None:
    large = json.dumps({"model": "smollm2", "input": "a" * 2000}).encode()

    def in_chunks() -> Iterator[bytes]:  # without an announced length
        yield from (large[start : start + 100] for start in range(0, len(large), 100))

    for content in (large, in_chunks()):
        answer = httpx.post(f"{narrow}/v1/embeddings", content=content, headers=HEADERS)
        assert answer.status_code == 413
        assert "1,000 bytes" in answer.json()["error"]["message"]


def test_a_slow_body_is_given_up(narrow: str) -> None:
    host, port = narrow.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(f"POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n".encode())
        connection.sendall(b"Content-Type: application/json\r\nContent-Length: 500\r\n\r\n{")
        started = time.monotonic()
        assert connection.recv(100).startswith(b"HTTP/1.1 408")
        assert time.monotonic() - started < 5


def test_hanging_up_within_a_body_leaves_the_server_well(narrow: str) -> None:
    host, port = narrow.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"POST /v1/models HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n".encode())
        connection.sendall(b"Content-Length: 500\r\n\r\n{")
    assert client_of(narrow).models.list().data[0].id == "smollm2"
