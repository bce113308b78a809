"""What the demo trains on and what it holds out: text that every machine has.

With ``../shared/data`` there: stories, encyclopedia paragraphs and paraphrases of the train parts; valid and dev parts are
held out. Without: the documentation inside Python itself, a tenth of its paragraphs held out by a hash of their words.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import itertools
import json
import os
import random
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from ambilm.evaluation.data import Passage, SentencePair, Story, read_rows, sample
from ambilm.training.text import read_pairs, sentences_of

TRAINING_FILES = ("rocstories.jsonl.gz", "wikitext2.jsonl.gz", "paraphrase_pairs.jsonl.gz")
PASSAGE_WORDS = range(25, 71)  # held-out paragraphs: long enough to lose a piece, short enough to be read quickly
DOCUMENTATION_WORDS = range(12, 121)
PROSE = re.compile(r"[A-Z][^|{}<>=]*[.!?]", re.DOTALL)  # begins and ends like a sentence, and no code in between


@dataclass(frozen=True)
class Limits:
    """How much is measured; drawn with the seed. Chosen so that all measuring takes about two and a half minutes."""

    stories: int = 60
    passages: int = 100
    similarity_pairs: int = 200
    neighbours: int = 40
    shown_infills: int = 6
    shown_neighbours: int = 5
    greedy_tokens: int = 24


@dataclass(frozen=True)
class HeldOut:
    """Text that no training step sees.

    Attributes:
        stories: sentences of short texts; a middle sentence is removed.
        passages: paragraphs; a span is removed from them, or a sentence that must find them.
        partners: two texts that belong together, for the table of nearest neighbours.
        similarity: pairs with a person's score of similarity, where the data is there.
    """

    stories: list[list[str]]
    passages: list[str]
    partners: list[tuple[str, str]]
    similarity: list[SentencePair] = field(default_factory=list)


@dataclass(frozen=True)
class DemoText:
    """Training files and held-out text; the strings say to a reader what they are."""

    text: list[str]
    pairs: list[str]
    held_out: HeldOut
    source: str
    stories_name: str
    passages_name: str
    partners_name: str


def demo_text(scratch: Path, limits: Limits, seed: int) -> DemoText:
    """The shared data when it is there, else Python's documentation, written to ``scratch``."""
    folder = shared_data()
    return documentation_text(scratch, limits, seed) if folder is None else shared_text(folder, limits, seed)


def shared_data() -> Path | None:
    """``../shared/data`` beside the working directory or the repository, when it holds the files that are needed."""
    for place in (Path.cwd(), Path(__file__).resolve().parents[3]):
        folder = Path(os.path.relpath(place.parent / "shared" / "data"))
        if all((folder / name).is_file() for name in TRAINING_FILES):
            return folder
    return None


def shared_text(folder: Path, limits: Limits, seed: int) -> DemoText:
    """Train parts for training, valid and dev parts held out."""
    stories, paragraphs, pairs = (folder / name for name in TRAINING_FILES)
    passages = (row.text for row in read_rows(paragraphs, Passage, "valid"))
    similarity = folder / "stsb.jsonl.gz"
    held_out = HeldOut(
        [row.sentences for row in sample(read_rows(stories, Story, "valid"), limits.stories, seed)],
        sample(filter(_is_passage, passages), limits.passages, seed),
        sample(_different((pair[0], pair[1]) for pair in read_pairs([pairs], "valid")), limits.neighbours, seed),
        sample(read_rows(similarity, SentencePair, "dev"), limits.similarity_pairs, seed)
        if similarity.is_file()
        else [],
    )
    return DemoText(
        [str(stories), str(paragraphs)],
        [str(pairs)],
        held_out,
        "five-sentence stories (ROCStories), encyclopedia paragraphs (WikiText-2) and pairs of paraphrases",
        "ROCStories",
        "WikiText-2",
        "paraphrases",
    )


def documentation_text(scratch: Path, limits: Limits, seed: int) -> DemoText:
    """Python's documentation, cut into paragraphs; two sentences that follow one another are a pair for SSCL."""
    train: list[str] = []
    valid: list[str] = []
    for paragraph in dict.fromkeys(documentation()):
        (valid if is_held_out(paragraph) else train).append(paragraph)
    scratch.mkdir(parents=True, exist_ok=True)
    text, pairs = scratch / "train.txt", scratch / "pairs.jsonl"
    text.write_text("\n\n".join(train) + "\n", encoding="utf-8")
    rows = ({"anchor": first, "positive": second} for first, second in neighbouring_sentences(train))
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    stories = [sentences for sentences in map(sentences_of, valid) if 3 <= len(sentences) <= 6]
    held_out = HeldOut(
        sample(stories, limits.stories, seed),
        sample(filter(_is_passage, valid), limits.passages, seed),
        sample(neighbouring_sentences(valid), limits.neighbours, seed),
    )
    return DemoText(
        [str(text)],
        [str(pairs)],
        held_out,
        "the documentation inside Python itself (language reference and docstrings of the standard library)",
        "Python's documentation",
        "Python's documentation",
        "sentences that follow one another",
    )


def documentation() -> Iterator[str]:
    """Paragraphs of prose: the language reference that ``help()`` shows, then docstrings of the standard library."""
    try:
        topics: dict[str, str] = import_module("pydoc_data.topics").topics
    except ImportError:  # some distributions package it apart
        topics = {}
    for name in sorted(topics):
        yield from _prose(topics[name])
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        for docstring in _docstrings(file):
            yield from _prose(docstring)


def _docstrings(file: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old escapes in the library's strings
        tree = ast.parse(file.read_text(encoding="utf-8", errors="replace"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node, clean=False)
            if docstring:
                yield inspect.cleandoc(docstring)


def _prose(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        paragraph = " ".join(block.replace("*", "").replace('"', "").split())
        if PROSE.fullmatch(paragraph) and ">>>" not in block and _has_words(paragraph, DOCUMENTATION_WORDS):
            yield paragraph


def is_held_out(paragraph: str) -> bool:
    """A tenth of all paragraphs, the same on every machine."""
    return hashlib.sha256(paragraph.encode()).digest()[0] % 10 == 0


def neighbouring_sentences(paragraphs: Iterable[str]) -> Iterator[tuple[str, str]]:
    """One pair of consecutive sentences from each paragraph that has two of at least five words."""
    for paragraph in paragraphs:
        sentences = sentences_of(paragraph)
        pairs = [
            (first, second)
            for first, second in itertools.pairwise(sentences)
            if min(len(first.split()), len(second.split())) >= 5
        ]
        if pairs:
            yield random.Random(paragraph).choice(pairs)


def _is_passage(text: str) -> bool:
    return _has_words(text, PASSAGE_WORDS) and len(sentences_of(text)) > 1


def _has_words(text: str, count: range) -> bool:
    return len(text.split()) in count


def _different(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Without pairs that say the same words twice, and without a text that stood in an earlier pair."""
    seen: set[str] = set()
    for first, second in pairs:
        if first.lower() != second.lower() and not {first, second} & seen:
            seen |= {first, second}
            yield first, second
