"""How generated text compares with the text that was removed: ROUGE-L, BLEU, repetition, length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import corpus_bleu


def repetition(text: str, n: int = 4) -> float | None:
    """Rep-n: 1 - different n-grams / n-grams, over words (MAGNET, section 4.4). None for a text without an n-gram."""
    words = text.split()
    grams = [tuple(words[start : start + n]) for start in range(len(words) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def rouge_l(generated: Sequence[str], removed: Sequence[str]) -> list[float]:
    """ROUGE-L F1 of each text, 0 to 1."""
    scorer = RougeScorer(["rougeL"], use_stemmer=False)
    return [scorer.score(target, guess)["rougeL"].fmeasure for guess, target in zip(generated, removed, strict=True)]


def overlap(generated: Sequence[str], removed: Sequence[str]) -> dict[str, float | None]:
    """ROUGE-L F1 and Rep-4 (means over texts, 0 to 1), corpus BLEU (0 to 100), and words generated per word removed."""
    repeated = [value for value in map(repetition, generated) if value is not None]
    words = sum(len(text.split()) for text in removed)
    return {
        "rouge_l": float(np.mean(rouge_l(generated, removed))),
        "bleu": float(corpus_bleu(list(generated), [list(removed)]).score),
        "rep_4": float(np.mean(repeated)) if repeated else None,
        "length_ratio": sum(len(text.split()) for text in generated) / words if words else None,
    }
