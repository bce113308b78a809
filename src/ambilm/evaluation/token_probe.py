"""Token probes: what does a frozen model's vector of a word say of its part of speech, its phrase, its name?

A linear head is trained on the vectors of the ``train`` part and scored on the other part, or on ``NAME_test`` where a data
folder has it: F1 of whole spans for names (``ner``) and phrases (``chunk``), accuracy of tags for parts of speech (``pos``),
0 to 1. The rows ``@causal`` and ``@bidirectional`` read the base weights; ``@shift-0`` and ``@shift-1`` read the model at the
word's own place or one token earlier, where MNTP training put what it knows of a token (LLM2Vec).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from ambilm.errors import UserError
from ambilm.evaluation.data import ChunkSentence, NerSentence, PosSentence, TaggedSentence, read_rows, sample
from ambilm.evaluation.statistics import bootstrap
from ambilm.evaluation.task import Run, Task
from ambilm.evaluation.token_head import LinearHead, word_features

LAYERS: dict[str, type[TaggedSentence]] = {"ner": NerSentence, "pos": PosSentence, "chunk": ChunkSentence}
PROBES = {"conll2003": ("ner", "pos", "chunk"), "conll2000": ("chunk",), "ud_ewt": ("pos",)}
ROWS: dict[str, dict[str, Any]] = {  # options of encode_tokens
    "causal": {"weights": "base", "layout": "causal", "shift": 0},
    "bidirectional": {"weights": "base", "layout": "bidirectional", "shift": 0},
    "shift-0": {"shift": 0},
    "shift-1": {"shift": 1},
}
TRAIN_SENTENCES = 4000  # without a limit: the 14,041 of conll2003 would take a small processor half an hour
HEADS = 3

Tagging = list[list[str]]  # the tags of each sentence
Spans = Callable[[list[str]], set[Hashable]]


@dataclass(frozen=True)
class Part:
    """Sentences of one part of the data, and the file that they come from."""

    path: Path
    split: str
    rows: list[TaggedSentence]

    @property
    def tags(self) -> Tagging:
        return [row.tags for row in self.rows]


def words(tags: list[str]) -> set[Hashable]:
    """Every word as a span of its own, so that F1 is the accuracy."""
    return set(enumerate(tags))


def named_spans() -> Spans:
    """seqeval's reading of IOB2 tags, which is conlleval's: (type, first word, last word) of each span.

    Raises:
        UserError: when seqeval is not installed.
    """
    try:
        from seqeval.metrics.sequence_labeling import get_entities
    except ImportError:
        raise UserError("F1 over spans needs seqeval, which is missing: pip install 'ambilm[evaluate]'.") from None
    return lambda tags: set(get_entities(tags))


def span_counts(predicted: Tagging, gold: Tagging, spans: Spans) -> np.ndarray:
    """Spans that are right, that were predicted and that there are, (sentences, 3)."""
    pairs = [(spans(ours), spans(theirs)) for ours, theirs in zip(predicted, gold, strict=True)]
    return np.array([(len(ours & theirs), len(ours), len(theirs)) for ours, theirs in pairs])


def span_f1(counts: np.ndarray) -> np.ndarray:
    """Micro F1 over all sentences, (..., sentences, 3) to (...)."""
    right, predicted, there = np.moveaxis(counts.sum(axis=-2), -1, 0)
    return 2 * right / np.maximum(predicted + there, 1)


def figures(heads: Sequence[Tagging], gold: Tagging, spans: Spans, seed: int) -> dict[str, Any]:
    """F1, the mean over heads.

    Returns:
        ``main`` with its ``standard_error`` over sentences and ``confidence_95`` from it, and ``head_error``: the standard
        error over the heads, which differ in the seed of their training.
    """
    counts = np.stack([span_counts(tags, gold, spans) for tags in heads])  # (heads, sentences, 3)
    main = float(span_f1(counts).mean())
    error = bootstrap(lambda index: float(span_f1(counts[:, index]).mean()), len(gold), seed)
    interval = None if error is None else [main - 1.96 * error, main + 1.96 * error]
    head_error = float(span_f1(counts).std(ddof=1) / math.sqrt(len(heads)))
    return {"main": main, "standard_error": error, "confidence_95": interval, "head_error": head_error}


def majorities(train: Part, test: Part) -> dict[str, Tagging]:
    """What takes no model: the commonest tag everywhere, and for each word its commonest tag in training."""
    everywhere: Counter[str] = Counter()
    of_word: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in train.rows:
        everywhere.update(row.tags)
        for word, tag in zip(row.tokens, row.tags, strict=True):
            of_word[word][tag] += 1
    commonest = everywhere.most_common(1)[0][0]
    known = {word: tags.most_common(1)[0][0] for word, tags in of_word.items()}
    return {
        "majority_tag": [[commonest] * len(row.tokens) for row in test.rows],
        "word_majority": [[known.get(word, commonest) for word in row.tokens] for row in test.rows],
    }


def _run(layer: str, run: Run) -> dict[str, Any]:
    spans = words if layer == "pos" else named_spans()
    train, test = _parts(run, LAYERS[layer])
    heads = _heads(run, train, test)
    baselines = majorities(train, test)
    entry = {"n": len(test.rows), **figures(heads, test.tags, spans, run.seed)}
    entry |= {name: float(span_f1(span_counts(tags, test.tags, spans))) for name, tags in baselines.items()}
    if spans is not words:
        accuracy = figures(heads, test.tags, words, run.seed)
        entry |= {"accuracy": accuracy["main"], "accuracy_error": accuracy["standard_error"]}
        entry |= {
            f"{name}_accuracy": float(span_f1(span_counts(tags, test.tags, words))) for name, tags in baselines.items()
        }
    return {**entry, "words": sum(map(len, test.tags)), "train_sentences": len(train.rows), "split": test.split}


def _parts(run: Run, kind: type[TaggedSentence]) -> tuple[Part, Part]:
    """What is learnt from and what is scored.

    Raises:
        UserError: for a broken row, and when either part is missing.
    """
    own = list(read_rows(run.path, kind, None))
    path = run.paths[-1]  # NAME_test, where a folder has it
    others = [row for row in (own if path == run.path else read_rows(path, kind, None)) if row.split != "train"]
    train = [row for row in own if row.split == "train"]
    if not train:
        raise UserError(f"{run.path} has no rows with split 'train' to learn from; give the complete file.")
    if not others:
        raise UserError(f"{path} has rows with split 'train' alone, none to score; give the complete file.")
    split = "test" if any(row.split == "test" for row in others) else others[0].split
    scored = [row for row in others if row.split == split]
    return (
        Part(run.path, "train", sample(train, run.limit or TRAIN_SENTENCES, run.seed)),
        Part(path, split, sample(scored, run.limit, run.seed)),
    )


def _heads(run: Run, train: Part, test: Part) -> list[Tagging]:
    """The tags of the scored part, once for each head."""
    known, fresh = part_features(run, train), part_features(run, test)  # (words, hidden) each
    names = sorted({tag for tags in train.tags for tag in tags})
    labels = np.array([names.index(tag) for tags in train.tags for tag in tags])  # (words,)
    taggings = []
    for seed in tqdm(range(run.seed, run.seed + HEADS), desc="Heads", unit="head", disable=not run.progress):
        predicted = iter(LinearHead(known, labels, len(names), seed).predict(fresh))
        taggings.append([[names[next(predicted)] for _ in tags] for tags in test.tags])
    return taggings


def part_features(run: Run, part: Part) -> np.ndarray:
    """Word vectors of the reading that was asked for, (words, hidden); the tasks on one corpus share them."""
    options = ROWS[run.row] if run.row else {}
    path = run.scratch / f"{part.path.name}-{part.split}-{run.row}.npy"
    return word_features(run.model, [row.tokens for row in part.rows], path, run.progress, **options)


def _task(corpus: str, layer: str) -> Task:
    metric = "accuracy" if layer == "pos" else "span F1"
    return Task(
        f"{corpus}:{layer}", corpus, metric, partial(_run, layer), rows=tuple(ROWS), optional=(f"{corpus}_test",)
    )


TASKS = tuple(_task(corpus, layer) for corpus, layers in PROBES.items() for layer in layers)
GROUPS = {"tokens": tuple(task.name for task in TASKS)}
