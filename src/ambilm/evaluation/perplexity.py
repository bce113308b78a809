"""Causal perplexity: generation is the base model's own, and this figure shows it.

Task ``perplexity`` takes any text file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from tqdm.auto import tqdm

from ambilm.errors import UserError
from ambilm.evaluation.data import sample
from ambilm.evaluation.statistics import perplexity, perplexity_error
from ambilm.evaluation.task import Run, Task
from ambilm.model.forward import token_budget_batches

if TYPE_CHECKING:
    from ambilm import AmbiLM

WINDOW = 1024  # tokens; a longer text is read in windows of this length
BATCH_TOKENS = 1024  # tokens of one scoring pass; their logits are the largest thing in memory
DEFAULT_TEXTS = 500

Item = TypeVar("Item")


def token_ids(model: AmbiLM, text: str) -> list[int]:
    """Tokens of a text without special ones."""
    return list(model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def in_batches(
    items: Sequence[Item],
    lengths: Sequence[int],
    score: Callable[[list[Item]], list[np.ndarray]],
    progress: bool,
    label: str,
) -> list[np.ndarray]:
    """Scores items in batches of similar length; results in the order given."""
    result: list[np.ndarray] = [np.empty(0)] * len(items)
    for batch in tqdm(token_budget_batches(lengths, BATCH_TOKENS), desc=label, disable=not progress, leave=False):
        for index, log_probs in zip(batch, score([items[index] for index in batch]), strict=True):
            result[index] = log_probs
    return result


def causal_log_probs(
    model: AmbiLM,
    sequences: Sequence[list[int]],
    weights: Literal["base", "adapted"] = "base",
    progress: bool = False,
    label: str = "left to right",
) -> list[np.ndarray]:
    """Log-probability of every token from those before it, (tokens,) for each sequence."""
    return in_batches(
        sequences,
        [len(ids) for ids in sequences],
        lambda batch: model.causal_log_probs(batch, weights=weights),
        progress,
        label,
    )


def causal_perplexity(model: AmbiLM, texts: Iterable[str], seed: int = 0, progress: bool = False) -> dict[str, Any]:
    """Perplexity of texts read left to right by the base weights, in windows of 1024 tokens, each begun anew.

    Returns:
        ``main`` the perplexity of a token, its ``standard_error`` (bootstrap over windows), ``bits_per_byte``
        (comparable between tokenizers), ``n`` windows and ``tokens``.
    """
    kept = [text for text in texts if text.strip()]
    windows = [window for text in kept for window in _windows(token_ids(model, text))]
    if not windows:
        raise ValueError("no text to score")
    log_probs = causal_log_probs(model, windows, progress=progress, label="causal perplexity")
    total = -sum(float(item.sum(dtype=np.float64)) for item in log_probs)
    return {
        "main": perplexity(log_probs),
        "n": len(windows),
        "standard_error": perplexity_error(log_probs, seed),
        "bits_per_byte": total / math.log(2) / sum(len(text.encode("utf-8", "replace")) for text in kept),
        "tokens": sum(len(window) for window in windows),
    }


def _windows(ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(ids), WINDOW):
        yield ids[start : start + WINDOW]


def own_texts(run: Run) -> list[str]:
    """A seeded sample of the user's own texts (500, or ``--limit``).

    Raises:
        UserError: when the files hold no text.
    """
    from ambilm.training.text import read_texts

    texts = sample((text for text in read_texts(run.paths) if text.strip()), run.limit or DEFAULT_TEXTS, run.seed)
    if not texts:
        raise UserError(f"--data {', '.join(map(str, run.paths))}: no text in it; give a file with text.")
    return texts


def run_perplexity(run: Run) -> dict[str, Any]:
    """Causal perplexity of the user's own texts."""
    texts = own_texts(run)
    return {**causal_perplexity(run.model, texts, run.seed, run.progress), "texts": len(texts)}


TASKS = (Task("perplexity", None, "perplexity", run_perplexity),)
GROUPS: dict[str, tuple[str, ...]] = {}
