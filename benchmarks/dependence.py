"""Attention dependence of one 2,048-token text: block by block against the plain definition; seconds, memory, values.

The plain definition keeps softmax(QK^T / sqrt(d)) of all layers and heads, as it reads. Each run is a process of its
own, since a peak never falls; its memory is the peak over what the process held with the model loaded.

python benchmarks/dependence.py [--rounds 1] [--tokens 2048]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from support import machine, table, timed
from torch import Tensor

from ambilm import AmbiLM
from ambilm.evaluation import dependence

WORDS = ("rain", "sun", "wind", "snow", "fog", "river", "stone", "bread", "table", "music", "letter", "garden", "road")
BLOCKS, PLAIN = "block by block", "plain definition"


class Plain:
    """The definition without a thought for memory."""

    def __init__(self) -> None:
        self.layers: list[Tensor] = []

    def __call__(self, query: Tensor, key: Tensor, scaling: float | None, softcap: float | None) -> Tensor:
        """(heads, 3) of a layer; its weights, (heads, length, length), stay."""
        keys = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)  # (1, heads, length, head dimension)
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        weights = (query @ keys.transpose(2, 3) * scale).softmax(dim=-1)[0]  # (heads, length, length)
        self.layers.append(weights)
        main = weights.diagonal(dim1=1, dim2=2).mean(dim=-1)  # (heads,)
        sides = [side.sum(dim=-1).mean(dim=-1) for side in (weights.tril(-1), weights.triu(1))]  # (heads,) each
        return torch.stack([main, *sides], dim=1)


def measure(way: str, tokens: int) -> None:
    """One run, in this process; prints seconds, MiB above the loaded model, and the values (layers, heads, 3)."""
    model = AmbiLM.from_pretrained("smollm2-135m", dtype="float32", device="cpu")
    if way == PLAIN:
        dependence.head_dependence = Plain()  # type: ignore[assignment]
    text = " ".join(random.Random(0).choices(WORDS, k=tokens))
    dependence.attention_dependence(model, ["A short text warms up."])
    held = resident()
    found = {}
    seconds = timed(lambda: found.update(dependence.attention_dependence(model, [text], max_length=tokens)))
    assert found["lengths"] == [tokens]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "memory": peak - held, "values": found["heads"].tolist()}))


def resident() -> float:
    """MiB that this process holds now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def run(way: str, tokens: int) -> dict[str, Any]:
    """What :func:`measure` prints, in a process of its own."""
    command = [sys.executable, __file__, "--measure", way, "--tokens", str(tokens)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def memory_table(peaks: dict[str, list[float]]) -> str:
    """Median peak of each way, and its share of the plain definition's."""
    middles = {way: statistics.median(found) for way, found in peaks.items()}
    rows = ["| | MiB above the loaded model (median) | against plain definition |", "| --- | ---: | ---: |"]
    rows += [f"| {way} | {middle:,.0f} | {middle / middles[PLAIN]:.3f}x |" for way, middle in middles.items()]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="each way once a round, in turn")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--measure", choices=(PLAIN, BLOCKS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.tokens)
        return
    print(machine())
    # Every process warms up by itself: no round is thrown away.
    rounds = [{way: run(way, options.tokens) for way in (PLAIN, BLOCKS)} for _ in range(options.rounds)]
    rates = {way: [options.tokens / found[way]["seconds"] for found in rounds] for way in (PLAIN, BLOCKS)}
    peaks = {way: [found[way]["memory"] for found in rounds] for way in (PLAIN, BLOCKS)}
    print(table(rates, "tokens/s", PLAIN))
    print(f"\n{memory_table(peaks)}")
    plain, blocks = (torch.tensor(rounds[0][way]["values"]) for way in (PLAIN, BLOCKS))  # (layers, heads, 3)
    heads, mean = (plain - blocks).abs().max(), (plain - blocks).mean(dim=(0, 1)).abs().max()
    print(f"\nLargest difference in percentage points: of a head {heads:.1e}, of the means {mean:.1e}")


if __name__ == "__main__":
    main()
