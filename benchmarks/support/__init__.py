"""Interleaved timing and the table that every benchmark prints."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable

import torch
import transformers


def machine() -> str:
    """One line of facts without which a figure of speed says nothing."""
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, load {load:.1f} at start, Python"
        f" {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    )


def interleaved(contestants: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Runs the contestants in turn, ``rounds`` times; each returns its own rate. The first turn of each is thrown away."""
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, run in contestants.items():
            rate = run()
            if number:
                rates[name].append(rate)
    return rates


def table(rates: dict[str, list[float]], unit: str, against: str) -> str:
    """Median, range, and the median of the ratios to ``against`` taken within each round."""
    rows = [f"| | {unit} (median) | range | against {against} |", "| --- | ---: | ---: | ---: |"]
    for name, values in rates.items():
        ratio = statistics.median(own / other for own, other in zip(values, rates[against], strict=True))
        middle = statistics.median(values)
        rows.append(f"| {name} | {middle:,.1f} | {min(values):,.1f} - {max(values):,.1f} | {ratio:.2f}x |")
    return "\n".join(rows)


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def gemm_rate(dtype: torch.dtype, tokens: int = 1024) -> Callable[[], float]:
    """GFLOP/s of the matrix product that a SmolLM2-135M layer does most: (tokens, 576) x (576, 1536)."""
    left, right = torch.randn(tokens, 576, dtype=dtype), torch.randn(1536, 576, dtype=dtype)

    def run() -> float:
        repeats = 20
        seconds = timed(lambda: [torch.nn.functional.linear(left, right) for _ in range(repeats)])
        return 2 * tokens * 576 * 1536 * repeats / seconds / 1e9

    return run
