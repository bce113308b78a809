"""Rows of a task: found in the ``--data`` folders, read one line at a time, checked field by field.

A task is a file stem: ``sts15`` is ``sts15.jsonl.gz`` or ``sts15.jsonl`` in the first folder that has one of them.
"""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ambilm.errors import UserError

SUFFIXES = (".jsonl.gz", ".jsonl")
TWO_CHOICES = ("winogrande", "piqa", "boolq_no_passage")  # of the data sets in mcq_commonsense


class Row(BaseModel):
    """Fields that every row has; fields that no task needs are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    split: str


class SentencePair(Row):
    """Two sentences and how alike people find them; the range of the score depends on the data set."""

    sentence1: str
    sentence2: str
    score: Annotated[float, Field(allow_inf_nan=False)]
    subset: str = ""


class Story(Row):
    """Five sentences that tell a story (ROCStories)."""

    sentences: Annotated[list[str], Field(min_length=5, max_length=5)]


class Passage(Row):
    """One paragraph of running text."""

    text: str


class Cloze(Row):
    """A passage without its last word, and that word (LAMBADA)."""

    context: str
    target: Annotated[str, Field(pattern="^[^ ]+$")]


class TaggedSentence(Row):
    """Words with one tag each; a subclass says which field of a file holds the tags."""

    tokens: Annotated[list[str], Field(min_length=1)]
    tags: list[str]

    @model_validator(mode="after")
    def _one_tag_a_word(self) -> Self:
        if len(self.tags) != len(self.tokens):
            raise ValueError(f"there are {len(self.tags)} tags for {len(self.tokens)} tokens")
        return self


SpanTag = Annotated[str, Field(pattern=r"^(O|[BI]-.+)$")]  # IOB2: B-PER I-PER O


class PosSentence(TaggedSentence):
    """Words with their parts of speech."""

    tags: list[str] = Field(validation_alias="pos")


class ChunkSentence(TaggedSentence):
    """Words with the phrases that they are part of."""

    tags: list[SpanTag] = Field(validation_alias="chunk")


class NerSentence(TaggedSentence):
    """Words with the names that they are part of."""

    tags: list[SpanTag] = Field(validation_alias="ner")


class Question(Row):
    """A question with choices; ``answer`` is the place of the right one, from 0."""

    question: Annotated[str, Field(min_length=1)]
    choices: Annotated[list[str], Field(min_length=2)]
    answer: int
    task: str = ""

    @model_validator(mode="after")
    def _answer_is_a_choice(self) -> Self:
        if not 0 <= self.answer < len(self.choices):
            raise ValueError(f"the answer {self.answer} is no place in {len(self.choices)} choices, counted from 0")
        if self.task in TWO_CHOICES and len(self.choices) != 2:
            raise ValueError(f"a question of {self.task} has 2 choices, not {len(self.choices)}")
        if self.task == "winogrande" and "_" not in self.question:
            raise ValueError("a question of winogrande holds the blank _")
        return self


class ExamQuestion(Question):
    """A question of an exam in one subject, with the choices A to D (MMLU, CMMLU)."""

    choices: Annotated[list[str], Field(min_length=4, max_length=4)]
    subject: Annotated[str, Field(min_length=1)]


class LabelledChoices(BaseModel):
    """Answers, and 1 for each that is true, else 0."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    choices: Annotated[list[str], Field(min_length=2)]
    labels: list[Literal[0, 1]]

    @model_validator(mode="after")
    def _labels_are_whole(self) -> Self:
        if len(self.labels) != len(self.choices) or 1 not in self.labels:
            raise ValueError("labels must say 0 or 1 for each choice, and 1 at least once")
        return self


class TruthfulQuestion(Row):
    """A question that people answer wrongly out of habit; ``mc1`` has one true answer, ``mc2`` several (TruthfulQA)."""

    question: Annotated[str, Field(min_length=1)]
    mc1: LabelledChoices
    mc2: LabelledChoices

    @model_validator(mode="after")
    def _one_is_right(self) -> Self:
        if sum(self.mc1.labels) != 1:
            raise ValueError(f"mc1 has {sum(self.mc1.labels)} true answers and must have one")
        return self


class WorkedProblem(Row):
    """A problem in words and its solution, which ends in ``#### ANSWER`` (GSM8K)."""

    question: Annotated[str, Field(min_length=1)]
    solution: Annotated[str, Field(pattern=r"#### \S")]


class Instruction(Row):
    """A task in words, an input, and the outputs that count as right (Super-NaturalInstructions)."""

    task: str
    definition: Annotated[str, Field(min_length=1)]
    input: str
    output: Annotated[list[str], Field(min_length=1)]


class PassageQuestion(Row):
    """A question, passages that were found for it, and the answers that people wrote (DuReader)."""

    question: Annotated[str, Field(min_length=1)]
    contexts: list[str]
    answers: Annotated[list[str], Field(min_length=1)]
    question_type: str = ""


class Document(Row):
    """A document of a search; it belongs to every part."""

    split: str = ""
    id: str
    text: str
    title: str = ""


class SearchQuery(Row):
    """What is searched for."""

    id: str
    text: Annotated[str, Field(min_length=1)]


class Judgement(Row):
    """How relevant a document is to a query, 0 for not at all."""

    query_id: str
    doc_id: str
    score: Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Collection:
    """Documents, the queries of one part, and which documents answer them."""

    documents: list[Document]
    queries: list[SearchQuery]
    judgements: list[Judgement]


RowType = TypeVar("RowType", bound=Row)
Item = TypeVar("Item")


def find(stem: str, folders: Sequence[Path]) -> Path | None:
    """The file of a task in the first folder that has it, or None."""
    for folder in folders:
        for suffix in SUFFIXES:
            path = folder / f"{stem}{suffix}"
            if path.is_file():
                return path
    return None


def check_data(data: Sequence[str | Path]) -> list[Path]:
    """The ``--data`` arguments as paths.

    Raises:
        UserError: when one does not exist.
    """
    paths = [Path(item) for item in data]
    for path in paths:
        if not path.exists():
            raise UserError(f"--data {path}: there is no such file or folder; check the path.")
    return paths


def read_rows(path: Path, kind: type[RowType], split: str | None) -> Iterator[RowType]:
    """Rows of one part of a file, checked.

    Args:
        path: a ``.jsonl`` or ``.jsonl.gz`` file.
        kind: the fields a row must have.
        split: the part that is wanted; None for all rows.

    Raises:
        UserError: broken JSON, a missing or wrong field (file and line are named), or no row of that part.
    """
    seen: set[str] = set()
    for number, content in _objects(path):
        try:
            row = kind.model_validate(content)
        except ValidationError as error:
            raise UserError(f"{path}, line {number}: {first_problem(error)}; correct the line or remove it.") from None
        seen.add(row.split)
        if split is None or row.split == split:
            yield row
    if not seen:
        raise UserError(f"{path} holds no rows; give the folder of the complete data with --data.")
    if split is not None and split not in seen:
        raise UserError(
            f"{path} has no rows with split {split!r}, only {', '.join(sorted(seen))}; "
            "give the complete file, or name another part as TASK:PART."
        )


def read_collection(paths: Sequence[Path], split: str) -> Collection:
    """The files of documents, queries and judgements of a retrieval task.

    Raises:
        UserError: as :func:`read_rows`, and for a judgement of a query or a document that the other files do not have.
    """
    corpus, queries, judgements = paths
    found = Collection(
        list(read_rows(corpus, Document, None)),
        list(read_rows(queries, SearchQuery, split)),
        list(read_rows(judgements, Judgement, split)),
    )
    known = {"query": {row.id for row in found.queries}, "document": {row.id for row in found.documents}}
    for row in found.judgements:
        for kind, identifier, path in (("query", row.query_id, queries), ("document", row.doc_id, corpus)):
            if identifier not in known[kind]:
                raise UserError(
                    f"{judgements} judges the {kind} {identifier!r}, which is not in {path}; correct either."
                )
    return found


def _objects(path: Path) -> Iterator[tuple[int, Any]]:
    """Line numbers, from 1, and the decoded objects."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.strip():
                    continue
                try:
                    yield number, json.loads(line)
                except ValueError as error:
                    raise UserError(f"{path}, line {number}: not a JSON object ({error}); correct the line.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read after line {number} ({error}); get the file again.") from None


def first_problem(error: ValidationError) -> str:
    """What is wrong first, in the words of a sentence's end."""
    problem = error.errors()[0]
    field = ".".join(str(part) for part in problem["loc"]) or "row"
    if problem["type"] == "missing":
        return f"the field {field!r} is missing"
    return f"{field!r}: {problem['msg'][0].lower()}{problem['msg'][1:]}"


def check_scores(path: Path, rows: Iterable[SentencePair], low: float, high: float) -> None:
    """Reads a whole similarity file once more only when a score is out of range, to name its line.

    Raises:
        UserError: for a score outside [low, high].
    """
    if all(low <= row.score <= high for row in rows):
        return
    for number, content in _objects(path):
        if not low <= content["score"] <= high:
            raise UserError(
                f"{path}, line {number}: the score {content['score']} is outside {low:g} to {high:g}; correct the line."
            )


def sample(items: Iterable[Item], size: int | None, seed: int) -> list[Item]:
    """A seeded random sample in the order of appearance; all items when ``size`` is None or not smaller.

    Reservoir sampling: memory for ``size`` items, however many stream by.
    """
    if size is None:
        return list(items)
    generator = random.Random(f"sample {seed}")
    chosen: list[tuple[int, Item]] = []
    for place, item in enumerate(items):
        if place < size:
            chosen.append((place, item))
        else:
            slot = generator.randrange(place + 1)
            if slot < size:
                chosen[slot] = (place, item)
    return [item for _, item in sorted(chosen, key=lambda entry: entry[0])]
