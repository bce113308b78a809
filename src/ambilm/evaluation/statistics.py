"""Standard errors by bootstrap: how far a figure would move with other test examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

RESAMPLES = 200


def bootstrap(
    statistic: Callable[[np.ndarray], float], size: int, seed: int, resamples: int = RESAMPLES
) -> float | None:
    """Standard error of ``statistic`` over ``size`` examples.

    Args:
        statistic: takes example indices (size,), some of them repeated, and gives the figure.

    Returns:
        The standard deviation over the resamples; None when there are too few examples for one.
    """
    if size < 2:
        return None
    generator = np.random.default_rng(seed)
    values = [statistic(generator.integers(0, size, size)) for _ in range(resamples)]
    finite = [value for value in values if math.isfinite(value)]
    return float(np.std(finite, ddof=1)) if len(finite) > 1 else None


def perplexity(log_probs: Sequence[np.ndarray]) -> float:
    """exp of the mean negative log-probability (nats) over all tokens of all examples."""
    tokens = sum(len(item) for item in log_probs)
    return math.exp(-sum(float(item.sum(dtype=np.float64)) for item in log_probs) / tokens)


def perplexity_error(log_probs: Sequence[np.ndarray], seed: int) -> float | None:
    """Standard error of :func:`perplexity`, by bootstrap over examples."""
    sums = np.array([item.sum(dtype=np.float64) for item in log_probs])
    counts = np.array([len(item) for item in log_probs])
    return bootstrap(lambda index: math.exp(-sums[index].sum() / counts[index].sum()), len(sums), seed)
