"""What an operator relies on: readiness, metrics, an orderly end."""

import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import httpx
import openai
import pytest
from tests.serving.conftest import client_of, running, wait_until

if TYPE_CHECKING:
    from ambilm import AmbiLM


def test_metrics(smollm2: "AmbiLM") -> None:
    with running(smollm2) as (address, _):
        client = client_of(address)
        client.embeddings.create(model="smollm2", input=["one text", "another"])
        client.completions.create(model="smollm2", prompt="a", max_tokens=3)
        for path in ("/v1/nothing", "/v1/elsewhere"):
            httpx.get(address + path)
        found = httpx.get(f"{address}/metrics")
        assert found.headers["content-type"].startswith("text/plain")

    def value(name: str) -> float:
        match = re.search(rf"^{re.escape(name)} (\S+)$", found.text, re.MULTILINE)
        assert match, name
        return float(match[1])

    assert value('ambilm_requests_total{path="/v1/embeddings",status="200"}') == 1
    assert value('ambilm_requests_total{path="other",status="401"}') == 2
    assert value('ambilm_request_seconds_count{path="/v1/completions"}') == 1
    assert value("ambilm_open_requests") == value("ambilm_open_tokens") == 0
    assert value('ambilm_lane_tokens_total{lane="text"}') == 3  # one read, two written and read again
    assert 0 < value('ambilm_lane_busy_seconds_total{lane="embeddings"}') < 60
    assert value("process_resident_memory_bytes") > 1e8


def test_health_tells_of_a_model_that_has_ended(smollm2: "AmbiLM") -> None:
    with running(smollm2) as (address, service):
        wait_until(lambda: httpx.get(f"{address}/ready").status_code == 200)
        service.scheduler.close()
        assert httpx.get(f"{address}/health").status_code == 503


@pytest.mark.timeout(180)
def test_sigterm_lets_a_stream_finish() -> None:
    """The command line's own process: it answers what it has taken on, takes no more, and ends with 0."""
    command = [sys.executable, "-c", "from ambilm.cli import main; main()", "serve", "smollm2-135m", "--port", "0"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert server.stderr is not None
        address = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+", line)))
        client = openai.OpenAI(base_url=address, api_key="none", max_retries=0)
        stream = client.completions.create(
            model="smollm2-135m", prompt="Once", max_tokens=24, stream=True, temperature=0
        )
        pieces = iter(stream)
        next(pieces)
        server.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        last = list(pieces)[-1]
        assert last.choices[0].finish_reason == "length"
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()
