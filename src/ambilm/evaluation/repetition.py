"""Repetition: does a model that was taught to look both ways say the same thing again and again? (MAGNET, section 4.4)

``rocstories:repetition`` goes on from the first sentence of a story, ``wikitext2:repetition`` from the first words of a
paragraph, greedily and by sampling. Rep-n is 1 - different n-grams / n-grams over the words of a continuation, Rep-Sen the
same over its sentences; both are means over continuations, 0 to 1. The rows:

- ``switched``: the model as it generates, which is the base itself, so that this row is the base's too;
- ``learned``: for a mixture, the gates pick an expert for each token;
- ``merged``: the adaptation folded into the weights that generate, as in the papers;
- ``people``: how the story or paragraph really goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm

from ambilm.errors import UserError
from ambilm.evaluation.data import Passage, Story, read_rows, sample
from ambilm.evaluation.overlap import repetition
from ambilm.evaluation.statistics import mean_figures
from ambilm.evaluation.task import Run, Task
from ambilm.model.generation import generate
from ambilm.training.text import sentences_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from ambilm import AmbiLM

OPENING_WORDS = 24  # of a paragraph; a story opens with its first sentence
LEAST_WORDS = 16  # that a paragraph must go on for
LONGEST = 128  # tokens of a continuation; it ends earlier where the model ends it
DEFAULT_OPENINGS = 64
BATCH = 8
DECODING: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 0.95},  # nucleus (Holtzman et al. 2020)
}
SAMPLES = 3  # continuations of each row that the results file shows


@dataclass(frozen=True)
class Opening:
    """How a text begins, and how it really goes on."""

    text: str
    rest: str


def sentence_repetition(text: str) -> float | None:
    """Rep-Sen: 1 - different sentences / sentences. None for a text without one."""
    sentences = sentences_of(text)
    return 1 - len(set(sentences)) / len(sentences) if sentences else None


def repetition_figures(texts: Sequence[str]) -> dict[str, Any]:
    """Rep-2, Rep-3, Rep-4 and Rep-Sen of continuations with their standard errors, and the mean number of words.

    A text that has no n-gram, or no sentence, does not count for that figure; a figure that no text counts for is NaN.
    """
    measured = {f"rep_{n}": [repetition(text, n) for text in texts] for n in (2, 3, 4)}
    measured["rep_sen"] = [sentence_repetition(text) for text in texts]
    figures: dict[str, Any] = {}
    for name, values in measured.items():
        known = [value for value in values if value is not None]
        found = mean_figures(known) if known else {"main": math.nan, "standard_error": None}
        figures |= {name: found["main"], f"{name}_error": found["standard_error"]}
    return {**figures, "words": float(np.mean([len(text.split()) for text in texts]))}


def continuations(
    model: AmbiLM, tree: PreTrainedModel, openings: Sequence[Opening], decoding: str, seed: int, progress: bool = False
) -> list[str]:
    """What a tree of causal modules writes after each opening."""
    texts: list[str] = []
    options = {"max_new_tokens": LONGEST, **DECODING[decoding]}
    starts = range(0, len(openings), BATCH)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for start in tqdm(starts, desc=f"writing, {decoding}", disable=not progress, leave=False):
            prompts = [opening.text for opening in openings[start : start + BATCH]]
            texts += generate(tree, model.tokenizer, prompts, model.settings.start_token_id, options)
    return texts


def _trees(model: AmbiLM) -> Iterator[tuple[str, PreTrainedModel]]:
    """The rows that are generated; one at a time, because a merged model is a copy of the weights."""
    yield "switched", model.base
    if model.mixture is not None:
        yield "learned", model.with_weights("learned").base
    if model.is_adapted:
        yield "merged", model.merged().base


def repetition_entry(run: Run, openings: Sequence[Opening]) -> dict[str, Any]:
    """Every row, greedy and sampled; ``main`` and ``rep_sen`` are of what the model as it generates writes greedily.

    Raises:
        UserError: when there are fewer than 2 openings.
    """
    if len(openings) < 2:
        raise UserError(
            f"{run.path}: fewer than 2 texts of split 'valid' have {OPENING_WORDS + LEAST_WORDS} words; give longer text."
        )
    entry: dict[str, Any] = {name: {} for name in DECODING}
    samples: list[dict[str, str]] = []
    for row, tree in _trees(run.model):
        for decoding in DECODING:
            texts = continuations(run.model, tree, openings, decoding, run.seed, run.progress)
            entry[decoding][row] = repetition_figures(texts)
            samples += [
                {"row": row, "decoding": decoding, "opening": opening.text, "continuation": text}
                for opening, text in zip(openings[:SAMPLES], texts, strict=False)
            ]
    switched, merged = entry["greedy"]["switched"], entry["greedy"].get("merged", {})
    beside = ("rep_4", "rep_4_error", "rep_sen", "rep_sen_error")
    return {
        "main": switched["rep_4"],
        "n": len(openings),
        "standard_error": switched["rep_4_error"],
        "rep_sen": switched["rep_sen"],
        "rep_sen_error": switched["rep_sen_error"],
        **{f"merged_{name}": merged[name] for name in beside if merged},
        **entry,
        "people": repetition_figures([opening.rest for opening in openings]),
        "samples": samples,
    }


def _run_stories(run: Run) -> dict[str, Any]:
    rows = sample(read_rows(run.path, Story, "valid"), run.limit or DEFAULT_OPENINGS, run.seed)
    return repetition_entry(run, [Opening(row.sentences[0], " ".join(row.sentences[1:])) for row in rows])


def _run_paragraphs(run: Run) -> dict[str, Any]:
    def long_enough() -> Iterator[Opening]:
        for row in read_rows(run.path, Passage, "valid"):
            words = row.text.split()
            if len(words) >= OPENING_WORDS + LEAST_WORDS:
                yield Opening(" ".join(words[:OPENING_WORDS]), " ".join(words[OPENING_WORDS:]))

    return repetition_entry(run, sample(long_enough(), run.limit or DEFAULT_OPENINGS, run.seed))


TASKS = (
    Task("rocstories:repetition", "rocstories", "Rep-4", _run_stories),
    Task("wikitext2:repetition", "wikitext2", "Rep-4", _run_paragraphs),
)
GROUPS = {"repetition": ("rocstories:repetition", "wikitext2:repetition")}
