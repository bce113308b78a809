"""Texts and conversations to measure a model on: .jsonl, .jsonl.gz and .txt files, and the chat template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jinja2 import TemplateError
from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError
from transformers import PreTrainedTokenizerBase

from ambilm.errors import UserError
from ambilm.evaluation.data import SUFFIXES, Row, read_rows
from ambilm.training.conversations import rendered
from ambilm.training.text import clean

Document = str | list[dict[str, str]]


class Turn(BaseModel):
    """What one side of a conversation says."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    role: str
    content: str


class DocumentRow(Row):
    """A conversation or a text; a row without a split belongs to ``all``."""

    split: str = "all"
    messages: list[Turn] | None = None
    text: str | None = None
    sentences: list[str] | None = None

    @model_validator(mode="after")
    def _holds_something(self) -> DocumentRow:
        if not self.messages and self.text is None and not self.sentences:
            raise PydanticCustomError("no_text", "Holds none of messages, text and sentences")
        return self

    def document(self) -> Document:
        if self.messages:
            return [turn.model_dump() for turn in self.messages]
        return self.text if self.text is not None else " ".join(self.sentences or [])


def read_documents(path: Path, split: str | None = None) -> Iterator[Document]:
    """Documents of a file, one after the other.

    Args:
        path: ``.jsonl`` or ``.jsonl.gz``, rows with ``messages`` (of ``role`` and ``content``), ``text`` or
            ``sentences``; or ``.txt``, a text a line.
        split: the part that is wanted of rows with a ``split``; None for all rows.

    Raises:
        UserError: for another suffix, or a line that cannot be read, which is named.
    """
    if path.name.endswith(SUFFIXES):
        yield from (row.document() for row in read_rows(path, DocumentRow, split))
    elif path.suffix == ".txt":
        yield from _lines(path)
    else:
        raise UserError(f"{path} is neither {', '.join(SUFFIXES)} nor .txt: give one of these.")


def _lines(path: Path) -> Iterator[str]:
    """Lines that hold something, decoded one by one so that an error can name its line."""
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                text = line.decode().strip()
            except UnicodeDecodeError:
                raise UserError(f"{path}, line {number} is not valid UTF-8: convert the file.") from None
            if text:
                yield text


def turns_of(document: list[dict[str, str]]) -> list[dict[str, str]]:
    """The turns of a conversation with the characters replaced that no tokenizer takes."""
    return [{name: clean(value) for name, value in turn.items()} for turn in document]


def text_of(document: Document, tokenizer: PreTrainedTokenizerBase) -> str:
    """The text that a model reads: a conversation goes through the chat template, or becomes lines ``role: content``.

    Raises:
        UserError: when the template refuses the conversation (some know no system message, for instance).
    """
    if isinstance(document, str):
        return clean(document)
    turns = turns_of(document)
    try:
        return rendered(tokenizer, turns)
    except TemplateError as error:
        beginning = turns[0]["content"][:40]
        raise UserError(
            f"The chat template refuses the conversation that begins {beginning!r} ({error}): remove it from the data."
        ) from None
