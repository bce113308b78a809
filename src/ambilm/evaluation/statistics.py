"""Standard errors and intervals: how far a figure would move with other test examples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import binomtest

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


def mean_figures(values: Sequence[float]) -> dict[str, Any]:
    """The mean of a figure over examples, with its uncertainty.

    Returns:
        ``main`` the mean, ``n``, its ``standard_error``, and ``confidence_95``: Wilson's interval for a share (values
        that are all 0 or 1; it holds at 0 and at 1 too), else the mean ± 1.96 standard errors. Both None for one value.
    """
    numbers = np.asarray(values, dtype=np.float64)
    count, mean = len(numbers), float(numbers.mean())
    if count < 2:
        return {"main": mean, "n": count, "standard_error": None, "confidence_95": None}
    error = float(numbers.std(ddof=1) / math.sqrt(count))
    if np.isin(numbers, (0, 1)).all():
        interval = binomtest(int(numbers.sum()), count).proportion_ci(method="wilson")
        low, high = float(interval.low), float(interval.high)
    else:
        low, high = mean - 1.96 * error, mean + 1.96 * error
    return {"main": mean, "n": count, "standard_error": error, "confidence_95": [low, high]}
