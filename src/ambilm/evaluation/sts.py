"""Semantic textual similarity: does the cosine of two sentence vectors rank pairs as people do?

Spearman correlation over all pairs of a task together (the "all" setting of SimCSE-style papers; 0 to 1, not percent),
never a mean over subsets. The test part unless another is named (``stsb:dev``, ``sickr:trial``). ``sts-baselines``
measures the training-free readings of the base weights, so that a tuned model stands beside the row it has to beat.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import pearsonr, spearmanr

from ambilm.errors import UserError
from ambilm.evaluation.data import SentencePair, check_scores, read_rows, sample
from ambilm.evaluation.statistics import bootstrap
from ambilm.evaluation.task import Run, Task
from ambilm.model.settings import PROMPT_EOL, REPRESENTATIVE_WORD

if TYPE_CHECKING:
    from ambilm import AmbiLM

# Lowest and highest score; 0 to 5 where a data set says nothing else.
SCORES: dict[str, tuple[float, float]] = {"sickr": (1, 5), "str2021": (0, 1)}
# Parts of the data, the one that is scored by default first.
PARTS: dict[str, tuple[str, ...]] = {
    "sts12": ("test", "train"),
    "stsb": ("test", "dev", "train"),
    "sickr": ("test", "trial", "train"),
    "str2021": ("all",),
}
# str2021 is relatedness and a tuning set, so it is no part of the group.
GROUP = ("sts12", "sts13", "sts14", "sts15", "sts16", "sts17", "sts22", "stsb", "sickr", "biosses")


def sts_rows() -> dict[str, dict[str, Any]]:
    """Named ``encode`` options that need no training: every usual reading of the base weights.

    The two templates are PromptEOL (Jiang et al. 2023) and the representative word (Li et al. 2025).
    """
    plain = {"prompt": "", "include_prompt": True, "weights": "base"}
    sink = {**plain, "layout": "bidirectional", "sink": True}
    return {
        "causal-mean": {**plain, "layout": "causal", "pooling": "mean"},
        "causal-weighted-mean": {**plain, "layout": "causal", "pooling": "weighted_mean"},
        "causal-last": {**plain, "layout": "causal", "pooling": "last"},
        "bidirectional-mean": {**plain, "layout": "bidirectional", "sink": False, "pooling": "mean"},
        "bidirectional-sink-mean": {**sink, "pooling": "mean"},
        "representative-word": {**plain, "layout": "causal", "pooling": "last", "prompt": REPRESENTATIVE_WORD},
        "bidirectional-sink-prompt-eol": {**sink, "pooling": "last", "prompt": PROMPT_EOL},
        "prompt-eol": {**plain, "layout": "causal", "pooling": "last", "prompt": PROMPT_EOL},
    }


def similarities(model: AmbiLM, pairs: Sequence[SentencePair], progress: bool = False, **options: Any) -> np.ndarray:
    """Cosine of each pair, (pairs,); every different sentence is encoded once."""
    texts = list(dict.fromkeys(text for pair in pairs for text in (pair.sentence1, pair.sentence2)))
    vectors = model.encode(texts, normalize_embeddings=True, show_progress_bar=progress, **options)  # (texts, d)
    place = {text: index for index, text in enumerate(texts)}
    left = vectors[[place[pair.sentence1] for pair in pairs]]  # (pairs, d)
    right = vectors[[place[pair.sentence2] for pair in pairs]]  # (pairs, d)
    return (left * right).sum(axis=1)


def correlations(cosines: np.ndarray, pairs: Sequence[SentencePair], seed: int) -> dict[str, Any]:
    """Spearman over all pairs as ``main`` with its standard error, Pearson, and Spearman of each subset."""
    scores = np.array([pair.score for pair in pairs])

    def spearman(index: np.ndarray) -> float:
        if np.ptp(scores[index]) == 0 or np.ptp(cosines[index]) == 0:
            return float("nan")
        return float(spearmanr(cosines[index], scores[index]).statistic)

    everything = np.arange(len(pairs))
    subsets: dict[str, list[int]] = {}
    for index, pair in enumerate(pairs):
        subsets.setdefault(pair.subset, []).append(index)
    return {
        "main": spearman(everything),
        "n": len(pairs),
        "standard_error": bootstrap(spearman, len(pairs), seed),
        "pearson": float(pearsonr(cosines, scores).statistic) if np.ptp(cosines) and np.ptp(scores) else None,
        "subsets": {
            name: {"spearman": spearman(np.array(index)), "n": len(index)}
            for name, index in sorted(subsets.items())
            if len(index) > 2
        },
    }


def untrained(model: AmbiLM) -> AmbiLM:
    """The base weights with a base model's settings; an adapted model's own would add an end token to a template."""
    return type(model)(model.base, model.tokenizer, model.name) if model.is_adapted else model


def _run(name: str, run: Run) -> dict[str, Any]:
    part = run.part or _parts(name)[0]
    pairs = list(read_rows(run.path, SentencePair, part))
    check_scores(run.path, pairs, *SCORES.get(name, (0, 5)))
    pairs = sample(pairs, run.limit, run.seed)
    if len({pair.score for pair in pairs}) < 2:
        raise UserError(f"{run.path}: the {len(pairs)} rows of split {part!r} all have one score; give more rows.")
    model = untrained(run.model) if run.row else run.model
    options = sts_rows()[run.row] if run.row else {}
    entry = correlations(similarities(model, pairs, run.progress, **options), pairs, run.seed)
    return {**entry, "split": part}


def _parts(name: str) -> tuple[str, ...]:
    return PARTS.get(name, ("test",))


def _task(name: str) -> Task:
    return Task(name, name, "spearman", lambda run: _run(name, run), _parts(name), tuple(sts_rows()))


TASKS = tuple(_task(name) for name in (*GROUP, "str2021"))
GROUPS = {"sts": GROUP, "sts-baselines": tuple(f"{name}@{row}" for name in GROUP for row in sts_rows())}
