"""What the demo measures: the base model in its usual readings, the adapted model, and whether generation stayed the same.

The entries have the form of ``ambilm evaluate``, so that ``ambilm compare`` reads the demo's results files too.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ambilm.demo.text import HeldOut, Limits
from ambilm.evaluation.dependence import attention_dependence
from ambilm.evaluation.infilling import (
    Removal,
    hybrid_log_probs,
    left_to_right_log_probs,
    remove_sentence,
    remove_span,
)
from ambilm.evaluation.own_text import queries_of, retrieval
from ambilm.evaluation.perplexity import causal_perplexity
from ambilm.evaluation.results import Results, model_state
from ambilm.evaluation.statistics import perplexity, perplexity_error
from ambilm.evaluation.sts import correlations, similarities

if TYPE_CHECKING:
    from ambilm import AmbiLM

SIMILARITY, RETRIEVAL, STORIES, PASSAGES, CAUSAL = "stsb:dev", "own_text:retrieval", "stories", "passages", "perplexity"
SIMILARITY_ROWS = ("causal-mean", "bidirectional-mean")  # beside PromptEOL, the base model's default
LONGEST_INFILL = 32  # tokens

Entries = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Generation:
    """What must be the same before and after: logits of some texts, (1, length, vocabulary) each, and greedy texts."""

    logits: list[Tensor]
    texts: list[str]

    def same_logits(self, other: Generation) -> bool:
        return len(self.logits) == len(other.logits) and all(map(torch.equal, self.logits, other.logits))

    def same_texts(self, other: Generation) -> bool:
        return self.texts == other.texts


@dataclass(frozen=True)
class ShownInfill:
    """A text with a piece removed, what stood there, and what two readings of the model write instead."""

    left: str
    right: str
    removed: str
    infill: str
    left_to_right: str


@dataclass(frozen=True)
class ShownNeighbours:
    """A text, the one that belongs to it, and the closest ones before and after, best first."""

    text: str
    partner: str
    before: list[str]
    after: list[str]


def removals_of(model: AmbiLM, held_out: HeldOut, seed: int) -> dict[str, list[Removal]]:
    """The pieces that are removed: a middle sentence of each story, 8 to 32 tokens of each passage."""
    generator = random.Random(f"demo {seed}")
    stories = [
        remove_sentence(model, sentences, generator.randint(1, len(sentences) - 2)) for sentences in held_out.stories
    ]
    passages = [remove_span(model, passage, generator) for passage in held_out.passages]
    return {STORIES: [item for item in stories if item], PASSAGES: [item for item in passages if item]}


def measure(model: AmbiLM, held_out: HeldOut, path: Path, seed: int) -> Entries:
    """Measures a model and keeps the results in ``path``; what the file already holds for this model and text is kept."""
    results = Results(path, model.name, model_state(model))
    run = {"seed": seed, "data": hashlib.sha256(repr(held_out).encode()).hexdigest()[:16]}
    for key, (metric, task) in _tasks(model, held_out, seed).items():
        if results.has(key, run):
            continue
        started = time.perf_counter()
        entry = task()
        seconds = round(time.perf_counter() - started, 2)
        head = {"main": entry["main"], "metric": metric, "n": entry["n"], "seconds": seconds}
        results.put(key, {**head, **entry}, run)
    return results.tasks


def _tasks(model: AmbiLM, held_out: HeldOut, seed: int) -> dict[str, tuple[str, Callable[[], dict[str, Any]]]]:
    """Metric and function of everything that is measured on this model."""
    tasks: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {}
    if held_out.similarity:
        tasks[SIMILARITY] = ("spearman", partial(_similarity, model, held_out, seed))
        if not model.is_adapted:
            for row in SIMILARITY_ROWS:
                tasks[f"{SIMILARITY}@{row}"] = ("spearman", partial(_similarity, model, held_out, seed, reading=row))
    queries = queries_of(held_out.passages, seed)
    tasks[RETRIEVAL] = ("recall@1", partial(retrieval, model, queries, seed))
    if not model.is_adapted:
        tasks[f"{RETRIEVAL}@causal-mean"] = ("recall@1", partial(retrieval, mean_pooled(model), queries, seed))
    for name, removals in removals_of(model, held_out, seed).items():
        tasks[name] = ("infill perplexity", partial(_infill, model, removals, seed))
    texts = [" ".join(sentences) for sentences in held_out.stories]
    tasks[CAUSAL] = ("perplexity", partial(causal_perplexity, model, texts, seed))
    return tasks


def mean_pooled(model: AmbiLM) -> AmbiLM:
    """The base weights, read causally, mean of the last hidden states: what most people try first."""
    settings = model.settings.read_as("causal-mean").model_copy(update={"recipe": None})
    return type(model)(model.base, model.tokenizer, model.name, settings)


def _similarity(model: AmbiLM, held_out: HeldOut, seed: int, **options: Any) -> dict[str, Any]:
    return correlations(similarities(model, held_out.similarity, **options), held_out.similarity, seed)


def _infill(model: AmbiLM, removals: Sequence[Removal], seed: int) -> dict[str, Any]:
    """Both sides given is ``main``; a base model's entry has the left-to-right reading and the paper's mask too."""
    own = hybrid_log_probs(model, removals)
    entry = {
        "main": perplexity(own),
        "standard_error": perplexity_error(own, seed),
        "n": len(removals),
        "tokens": sum(map(len, own)),
    }
    if model.is_adapted:
        return entry
    left = left_to_right_log_probs(model, removals)
    return {
        **entry,
        "left_to_right": perplexity(left),
        "left_to_right_error": perplexity_error(left, seed),
        "untrained_paper_mask": perplexity(hybrid_log_probs(model, removals, sink=False)),
    }


@torch.inference_mode()
def generation(model: AmbiLM, held_out: HeldOut, limits: Limits) -> Generation:
    """Logits of three held-out stories, and greedy continuations of their first sentences, by the base model."""
    stories = held_out.stories[:3]
    rows = [model.tokenizer(" ".join(sentences), return_tensors="pt")["input_ids"] for sentences in stories]
    logits = [model.base(row.to(model.device)).logits.cpu() for row in rows]  # (1, length, vocabulary) each
    texts = [
        str(model.generate(sentences[0], max_new_tokens=limits.greedy_tokens, do_sample=False)) for sentences in stories
    ]
    return Generation(logits, texts)


def shown_infills(model: AmbiLM, removals: Sequence[Removal]) -> list[ShownInfill]:
    """Infills that the model writes, without knowing the length, beside the base's continuation of the left side."""
    shown = []
    for removal in removals:
        infill = model.infill(removal.blanked, max_tokens=LONGEST_INFILL).spans[0]
        length = removal.stop - removal.start
        text = model.generate(removal.left.rstrip(), max_new_tokens=length, min_new_tokens=length, do_sample=False)
        shown.append(ShownInfill(removal.left, removal.right, removal.removed, infill.strip(), str(text).strip()))
    return shown


def shown_neighbours(model: AmbiLM, partners: Sequence[tuple[str, str]], count: int) -> list[ShownNeighbours]:
    """The two texts closest to the first few, of all partners, before (base, causal, mean pooling) and after."""
    texts, pool = [first for first, _ in partners[:count]], [second for _, second in partners]

    def closest(reader: AmbiLM) -> list[list[str]]:
        queries = reader.encode(texts, normalize_embeddings=True)  # (queries, d)
        found = reader.encode(pool, normalize_embeddings=True)  # (pool, d)
        order = np.argsort(-(queries @ found.T), axis=1, kind="stable")  # (queries, pool)
        return [[pool[place] for place in row[:2]] for row in order]

    rows = zip(partners[:count], closest(mean_pooled(model)), closest(model), strict=True)
    return [ShownNeighbours(text, partner, before, after) for (text, partner), before, after in rows]


def dependence(model: AmbiLM, held_out: HeldOut) -> dict[str, dict[str, Any]]:
    """Attention dependence of the base and of the adapted weights on three held-out stories."""
    texts = [" ".join(sentences) for sentences in held_out.stories[:3]]
    return {
        "base": attention_dependence(model, texts, "base"),
        "adapted": attention_dependence(model, texts, "adapted"),
    }
