"""Many requests at once: batching, limits, time-outs, hanging up."""

import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import httpx
import numpy as np
import openai
import pytest
from tests.serving.conftest import HEADERS, client_of, running, wait_until

from ambilm.serving.limits import Limits
from ambilm.serving.service import Service

if TYPE_CHECKING:
    from ambilm import AmbiLM

WORDS = [
    "the",
    "ship",
    "left",
    "harbour",
    "at",
    "dawn",
    "with",
    "forty",
    "barrels",
    "of",
    "salted",
    "fish",
    "and",
    "a",
    "piano",
    "for",
    "its",
    "captain",
]
LONG = [" ".join(WORDS[(start + step * 7) % len(WORDS)] for step in range(300)) for start in range(40)]


@pytest.fixture(scope="module")
def small(smollm2: "AmbiLM") -> Iterator[tuple[str, Service]]:
    limits = Limits(open_requests=2, request_tokens=20_000, open_tokens=25_000, seconds=3)
    with running(smollm2, limits) as (address, service):
        yield address, service


@contextlib.contextmanager
def long_request(address: str, service: Service) -> Iterator[threading.Thread]:
    """A request of many seconds is being computed; what becomes of it is not this one's matter."""

    def ask() -> None:
        with contextlib.suppress(openai.APIError):
            client_of(address).embeddings.create(model="smollm2", input=LONG)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: service.scheduler.requests == 1)
    yield thread
    thread.join()
    wait_until(lambda: service.scheduler.requests == 0)


def test_sixteen_clients_get_what_each_alone_gets(client: openai.OpenAI, smollm2: "AmbiLM") -> None:
    texts = [" ".join(WORDS[: 1 + number % len(WORDS)]) + f" {number}" for number in range(64)]
    expected = smollm2.encode(texts, normalize_embeddings=True, batch_size=1)

    def ask(number: int) -> np.ndarray:
        own = texts[number * 4 : number * 4 + 4]
        answer = client.embeddings.create(model="smollm2", input=own)
        return np.array([item.embedding for item in answer.data])

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        found = np.concatenate(list(pool.map(ask, range(16))))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_short_request_overtakes_a_long_one(client: openai.OpenAI) -> None:
    ended: list[str] = []

    def ask(name: str, texts: list[str]) -> None:
        client.embeddings.create(model="smollm2", input=texts)
        ended.append(name)

    threads = [
        threading.Thread(target=ask, args=("long", LONG[:8])),
        threading.Thread(target=ask, args=("short", ["a"])),
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.3)
    for thread in threads:
        thread.join()
    assert ended == ["short", "long"]


def test_what_is_too_large_is_refused(small: tuple[str, Service]) -> None:
    with pytest.raises(openai.BadRequestError, match="20,000"):
        client_of(small[0]).embeddings.create(model="smollm2", input=LONG * 2)


def test_a_request_has_a_longest_time(small: tuple[str, Service]) -> None:
    address, service = small
    started = time.monotonic()
    answer = httpx.post(
        f"{address}/v1/embeddings", json={"model": "smollm2", "input": LONG}, headers=HEADERS, timeout=60
    )
    assert answer.status_code == 504 and "3 seconds" in answer.json()["error"]["message"]
    assert time.monotonic() - started < 10
    assert service.scheduler.requests == service.scheduler.tokens == 0


def test_a_full_queue_says_when_to_come_back(small: tuple[str, Service]) -> None:
    address, service = small
    with long_request(address, service), pytest.raises(openai.RateLimitError) as refused:
        client_of(address).embeddings.create(model="smollm2", input=LONG)  # too many tokens
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60


def test_hanging_up_ends_the_work(small: tuple[str, Service]) -> None:
    address, service = small
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{address}/v1/embeddings", json={"model": "smollm2", "input": LONG}, headers=HEADERS, timeout=0.5)
    wait_until(lambda: service.scheduler.requests == 0, 1)
    client = client_of(address).with_options(max_retries=3)  # a busy machine may need its three seconds for one unit
    assert client.embeddings.create(model="smollm2", input="next").data
