"""Figures against the libraries and against hand calculation."""

import math

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr

from ambilm.evaluation.data import SentencePair
from ambilm.evaluation.overlap import overlap, repetition
from ambilm.evaluation.statistics import bootstrap, perplexity, perplexity_error
from ambilm.evaluation.sts import correlations


def test_spearman_is_scipys_over_all_pairs_together() -> None:
    generator = np.random.default_rng(0)
    scores, cosines = generator.integers(0, 6, 60).astype(float), generator.normal(size=60)
    pairs = [
        SentencePair(sentence1="a", sentence2="b", score=score, subset="xy"[index % 2], split="test")
        for index, score in enumerate(scores)
    ]
    entry = correlations(cosines, pairs, seed=0)
    assert entry["main"] == spearmanr(cosines, scores).statistic
    assert entry["pearson"] == pytest.approx(pearsonr(cosines, scores).statistic)
    assert entry["subsets"]["x"] == {"spearman": spearmanr(cosines[::2], scores[::2]).statistic, "n": 30}
    assert entry["standard_error"] == correlations(cosines, pairs, seed=0)["standard_error"]
    assert 0.05 < entry["standard_error"] < 0.25  # about 1/sqrt(60)


def test_the_bootstrap_finds_the_error_of_a_mean() -> None:
    values = np.random.default_rng(1).normal(size=400)
    error = bootstrap(lambda index: float(values[index].mean()), len(values), seed=0, resamples=1000)
    assert error == pytest.approx(values.std() / 20, rel=0.1)
    assert bootstrap(lambda index: 0.0, 1, seed=0) is None


def test_perplexity_counts_tokens_not_examples() -> None:
    log_probs = [np.log(np.array([0.5])), np.log(np.array([0.25, 0.25, 0.25]))]
    assert perplexity(log_probs) == pytest.approx(math.exp((math.log(2) + 3 * math.log(4)) / 4))
    error = perplexity_error(log_probs, seed=0)
    assert error is not None and 0 < error < 2


def test_repetition_and_overlap() -> None:
    assert repetition("a b c d a b c d") == pytest.approx(1 - 4 / 5)
    assert repetition("a b c") is None
    same = overlap(["he went home and slept well"], ["he went home and slept well"])
    assert same == {"rouge_l": 1.0, "bleu": pytest.approx(100), "rep_4": 0.0, "length_ratio": 1.0}
    other = overlap(["he went", ""], ["she slept well", "it was late"])
    assert other["rouge_l"] == 0 and other["rep_4"] is None and other["length_ratio"] == pytest.approx(2 / 6)
