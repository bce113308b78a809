"""The server against the model itself: decoding and ``generate``, embeddings and ``encode``, memory of one process and of two.

python benchmarks/serving.py [--rounds 3] [--tokens 32] [--sentences 200] [--dtype auto]
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import openai
from encode import sentences
from support import interleaved, machine, table, timed

from ambilm import AmbiLM
from ambilm.model.forward import stock_next_logits
from ambilm.serving.batch import heights, trial

NAME = "smollm2-135m"
PROMPT = "In the morning she had breakfast with her brother, and then both of them went to the"


@contextlib.contextmanager
def serving(dtype: str) -> Iterator[tuple[openai.OpenAI, int]]:
    """A server in a process of its own: a client of it, and the process's number."""
    command = [
        sys.executable,
        "-c",
        "from ambilm.cli import main; main()",
        "serve",
        NAME,
        "--port",
        "0",
        "--dtype",
        dtype,
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = next(found[0] for line in server.stderr if (found := re.search(r"http://\S+", line)))
        try:
            yield openai.OpenAI(base_url=address, api_key="none", timeout=600), server.pid
        finally:
            server.terminate()


def resident(pid: int) -> float:
    """MiB that a process holds; of what it shares with others, its part."""
    found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) / 1024


def write(client: openai.OpenAI, count: int, clients: int) -> None:
    """So many clients at once, each of whom wants so many tokens."""

    def ask(_: int) -> None:
        answer = client.completions.create(model=NAME, prompt=PROMPT, max_tokens=count, temperature=0)
        assert answer.choices[0].finish_reason == "length"

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(clients)))


def embed(client: openai.OpenAI, texts: list[str]) -> None:
    client.embeddings.create(model=NAME, input=texts, encoding_format="base64")


def bits(model: AmbiLM) -> str:
    """What a pass of each number of rows costs, and whether a row's logits have the bits that they have among 16 rows."""
    view, read = model.base_view, stock_next_logits
    whole = trial(view, read, 16)  # (16, passes, vocabulary)
    lines = ["| rows of a pass | ms | largest difference from a pass of 16 |", "| ---: | ---: | ---: |"]
    for rows in (1, 2, 3, 4, 6, 8, 12, 16):
        seconds = min(timed(partial(trial, view, read, rows)) for _ in range(3)) / whole.shape[1]
        difference = float((trial(view, read, rows) - whole[:rows]).abs().max())
        lines.append(f"| {rows} | {seconds * 1000:.0f} | {difference:.2g} |")
    return "\n".join([*lines, "", f"The server's passes have {heights(view, read, 16)} rows."])


def speed(model: AmbiLM, client: openai.OpenAI, options: argparse.Namespace) -> Iterator[str]:
    """A table for one client, one for eight, one for embeddings."""
    count = options.tokens

    def generate(clients: int) -> None:
        model.generate([PROMPT] * clients, max_new_tokens=count, min_new_tokens=count, do_sample=False)

    def rate(amount: int, work: Callable[[], object]) -> Callable[[], float]:
        return lambda: amount / timed(work)

    for clients in (1, 8):
        contestants = {
            f"model.generate, batch of {clients}": rate(count * clients, partial(generate, clients)),
            f"server, {clients} clients at once": rate(count * clients, partial(write, client, count, clients)),
        }
        yield table(interleaved(contestants, options.rounds), "tokens/s", next(iter(contestants)))
    texts = sentences(options.sentences)
    contestants = {
        "model.encode": rate(len(texts), lambda: model.encode(texts)),
        "server": rate(len(texts), lambda: embed(client, texts)),
    }
    yield table(interleaved(contestants, options.rounds), "sentences/s", "model.encode")


def memory(dtype: str) -> str:
    """One process that does both jobs, and two processes that do one each."""
    texts = sentences(100)

    def held(*jobs: Callable[[openai.OpenAI], None]) -> float:
        with serving(dtype) as (client, pid):
            for job in jobs:
                job(client)
            return resident(pid)

    writes, embeds = (lambda client: write(client, 16, 8)), (lambda client: embed(client, texts))
    both, alone = held(writes, embeds), held(writes) + held(embeds)
    return f"One process {both:,.0f} MiB, two processes {alone:,.0f} MiB: {both / alone:.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--dtype", default="auto")
    options = parser.parse_args()
    print(machine())
    model = AmbiLM.from_pretrained(NAME, dtype=options.dtype)
    print(f"{model.notice}\n\n{bits(model)}\n")
    with serving(options.dtype) as (client, _):
        for text in speed(model, client, options):
            print(f"{text}\n", flush=True)
    print(memory(options.dtype))


if __name__ == "__main__":
    main()
