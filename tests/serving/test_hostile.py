"""What clients should not send: no 500, no stuck row, no memory kept, and the next client is served."""

import json
import re
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from tests.serving.conftest import HEADERS, KEY, client_of, running, wait_until

from ambilm.serving.limits import Limits
from ambilm.serving.service import Service

if TYPE_CHECKING:
    from ambilm import AmbiLM

CHECKS = [
    not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
    checks.response_schema_conformance,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, -1, 0, 2**70, 1e308, float("nan"), float("inf"), "", "\ud800", "\x00", "🦜" * 50, "a" * 5000, [], [None],
    [[[]]], {}, {"": {}}, ["[BLANK]"] * 3, "[BLANK]", "[BLANK] [BLANK]", [0], [2**40], [[1], "a"],
]  # fmt: skip
BODIES: dict[str, dict[str, Any]] = {
    "embeddings": {"input": "a", "dimensions": 3, "encoding_format": "float"},
    "tokens": {"input": "a b", "encoding_format": "float"},
    "completions": {"prompt": "a", "max_tokens": 1, "suffix": "b", "n": 1, "temperature": 1, "stop": "c", "seed": 1},
    "chat/completions": {
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 1,
        "top_p": 0.5,
        "stream": False,
    },
    "infill": {"text": "a [BLANK] b", "max_tokens": 1, "min_tokens": 1, "n": 1, "top_k": 5, "repetition_penalty": 1.1},
}


@pytest.fixture(scope="module")
def small(smollm2: "AmbiLM") -> Iterator[tuple[str, Service]]:
    """A server whose largest request is quickly computed."""
    with running(smollm2, Limits(request_tokens=24, rows=4, inputs=4)) as (address, service):
        yield address, service


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_whatever_the_openapi_allows_or_not(small: tuple[str, Service], path: str, mode: GenerationMode) -> None:
    document = schemathesis.openapi.from_url(f"{small[0]}/openapi.json")
    strategy = document[f"/v1/{path}"]["POST"].as_strategy(generation_mode=mode)

    @hypothesis.settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @hypothesis.given(case=strategy)
    def attack(case: Any) -> None:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = "smollm2"  # else nearly all of them would end there
        case.call_and_validate(headers=HEADERS, checks=CHECKS, timeout=120)

    attack()


def test_each_field_with_each_wrong_value(small: tuple[str, Service]) -> None:
    with httpx.Client(headers={**HEADERS, "Content-Type": "application/json"}, timeout=120) as client:
        for path, body in BODIES.items():
            for field in body:
                for value in VALUES:
                    content = json.dumps({"model": "smollm2", **body, field: value})
                    answer = client.post(f"{small[0]}/v1/{path}", content=content)
                    assert answer.status_code in (200, 400), (path, field, value, answer.text)


def test_garbage_and_hanging_up_leave_nothing_behind(small: tuple[str, Service]) -> None:
    address, service = small
    host, port = address.removeprefix("http://").split(":")
    body = json.dumps({"model": "smollm2", "prompt": "a", "max_tokens": 20, "stream": True, "n": 4}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    )
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    inputs = [
        b"\x00\xff" * 500, b"GET", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"a" * 100_000, head.encode(), request[:-5],
        head.encode() + b"Content-Length: -1\r\n\r\n", head.encode() + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", request,
    ]  # fmt: skip

    def memory() -> float:
        text = httpx.get(f"{address}/metrics").text
        return float(re.search(r"^process_resident_memory_bytes (\S+)$", text, re.MULTILINE)[1])  # type: ignore[index]

    def attack(times: int) -> None:
        for number in range(times):
            with socket.create_connection((host, int(port)), timeout=10) as connection:
                connection.sendall(inputs[number % len(inputs)])
                if number % len(inputs) == len(inputs) - 1 and number % 2:
                    connection.recv(100)  # the stream has begun
        wait_until(lambda: service.scheduler.requests == service.scheduler.tokens == 0)

    attack(len(inputs) * 2)
    before = memory()
    attack(len(inputs) * 20)
    assert memory() - before < 30 * 2**20
    lane: Any = service.scheduler.lanes["text"]
    wait_until(lambda: lane.batch.rows == 0)
    assert client_of(address).completions.create(model="smollm2", prompt="a", max_tokens=2).choices
