"""Semantic textual similarity: does the cosine of two sentence vectors rank pairs as people do?

Spearman correlation over all pairs of a task together (the "all" setting of SimCSE-style papers; 0 to 1, not percent),
never a mean over subsets. The test part unless another is named (``stsb:dev``, ``sickr:trial``). ``sts-baselines``
measures the training-free ``READINGS`` of the base weights, so that a tuned model stands beside the row it has to beat.
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
from ambilm.model.settings import READINGS

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


def _run(name: str, run: Run) -> dict[str, Any]:
    part = run.part or _parts(name)[0]
    pairs = list(read_rows(run.path, SentencePair, part))
    check_scores(run.path, pairs, *SCORES.get(name, (0, 5)))
    pairs = sample(pairs, run.limit, run.seed)
    if len({pair.score for pair in pairs}) < 2:
        raise UserError(f"{run.path}: the {len(pairs)} rows of split {part!r} all have one score; give more rows.")
    entry = correlations(similarities(run.model, pairs, run.progress, **run.row_options), pairs, run.seed)
    return {**entry, "split": part}


def _parts(name: str) -> tuple[str, ...]:
    return PARTS.get(name, ("test",))


def _task(name: str) -> Task:
    return Task(name, name, "spearman", lambda run: _run(name, run), _parts(name), tuple(READINGS))


TASKS = tuple(_task(name) for name in (*GROUP, "str2021"))
GROUPS = {"sts": GROUP, "sts-baselines": tuple(f"{name}@{row}" for name in GROUP for row in READINGS)}
