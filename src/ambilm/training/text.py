"""Texts and pairs from the files people have: .txt, .jsonl, .jsonl.gz, .parquet, folders, hub data sets; streamed."""

from __future__ import annotations

import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from ambilm.errors import UserError

ROW_SUFFIXES = (".jsonl", ".jsonl.gz", ".json.gz", ".parquet")
TEXT_SUFFIXES = (".txt", *ROW_SUFFIXES)
PAIR_SUFFIXES = (".tsv", *ROW_SUFFIXES)
TEXT_FIELDS = ("text", "sentences", "content", "story", "document")
PAIR_FIELDS = (("anchor", "positive"), ("sentence1", "sentence2"))
HUB_NAME = re.compile(r"^[\w.-]+/[\w.-]+$")

Row = dict[str, Any]
Pair = tuple[str, str, str | None]


@dataclass
class ReadingReport:
    """How many texts came out of each file (or hub data set), and how many were empty and left out."""

    read: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)

    def count(self, source: str, is_empty: bool) -> None:
        table = self.empty if is_empty else self.read
        table[source] = table.get(source, 0) + 1


def clean(text: str) -> str:
    """NUL goes, lone surrogates become the replacement character: neither can be tokenised."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_texts(
    sources: Sequence[str | Path], split: str | None = "train", report: ReadingReport | None = None
) -> Iterator[str]:
    """Documents of all sources, one after the other, never all in memory.

    A ``.txt`` file is cut at blank lines. Of JSON and parquet rows the text is ``text``, or ``sentences`` joined by spaces,
    or ``content``, ``story``, ``document``. Where rows have a ``split``, only those of ``split`` (or "all") count.

    Raises:
        UserError: for a missing, unreadable or unknown file, naming file and line.
    """
    report = report or ReadingReport()
    for source in sources:
        for text, origin in _documents(source, split):
            cleaned = clean(text).strip()
            report.count(origin, not cleaned)
            if cleaned:
                yield cleaned


def _documents(source: str | Path, split: str | None) -> Iterator[tuple[str, str]]:
    """Texts with the name of what they came from."""
    path = Path(source)
    if _is_on_hub(source):
        name = str(source)
        yield from ((_text_of(row, place), name) for row, place in _hub_places(name, split))
        return
    for file in _files(path, TEXT_SUFFIXES):
        if file.name.endswith(".txt"):
            yield from ((text, str(file)) for text in _paragraphs(file))
        else:
            yield from ((_text_of(row, place), str(file)) for row, place in _of_split(_rows(file), split))


def _is_on_hub(source: str | Path) -> bool:
    path = Path(source)
    return not path.exists() and not path.name.endswith(TEXT_SUFFIXES) and bool(HUB_NAME.match(str(source)))


def _hub_places(name: str, split: str | None) -> Iterator[tuple[Row, str]]:
    yield from ((row, f"{name}, row {number}") for number, row in enumerate(_hub_rows(name, split), 1))


def _rows_of(source: str | Path, suffixes: tuple[str, ...], split: str | None) -> Iterator[tuple[Row, str]]:
    """Rows of a file, of a folder's files or of a hub data set, with the words that name their place."""
    if _is_on_hub(source):
        yield from _hub_places(str(source), split)
        return
    for file in _files(Path(source), suffixes):
        yield from _of_split(_rows(file), split)


def _files(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The file itself, or all files with such a suffix below a folder, sorted."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.name.endswith(suffixes) and file.is_file())
        if not files:
            raise UserError(f"Folder {path} holds no file to read ({', '.join(suffixes)}): give another one.")
        return files
    if not path.exists():
        raise UserError(f"File {path} does not exist: check the path.")
    if not path.name.endswith(suffixes):
        raise UserError(f"{path} has a suffix that is not read here: use {', '.join(suffixes)}.")
    return [path]


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers; decoded one by one, because an error of a text stream cannot say its line."""
    number = 0
    try:
        with cast(IO[bytes], gzip.open(file) if file.suffix == ".gz" else file.open("rb")) as stream:
            for number, line in enumerate(stream, 1):
                # A byte order mark may open the file.
                yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file}, line {number} is not UTF-8 text ({error.reason}): convert the file.") from error
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{file} cannot be read after line {number} ({error}): is it complete?") from error


def _paragraphs(file: Path) -> Iterator[str]:
    for filled, lines in itertools.groupby((line.strip() for _, line in _lines(file)), key=bool):
        if filled:
            yield " ".join(lines)


def _rows(file: Path) -> Iterator[tuple[Row, str]]:
    """Rows with the words that name their place."""
    if file.suffix == ".parquet":
        yield from _parquet_rows(file)
        return
    for number, line in _lines(file):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{file}, line {number} is not JSON ({error}): mend or drop it.") from error
        if not isinstance(row, dict):
            raise UserError(f'{file}, line {number} is no JSON object: each line must be one, such as {{"text": ...}}.')
        yield row, f"{file}, line {number}"


def _parquet_rows(file: Path) -> Iterator[tuple[Row, str]]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
        number = 0
        for batch in table.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield row, f"{file}, row {number}"
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{file} is not a readable parquet file ({str(error).splitlines()[0]}).") from error


def _hub_rows(name: str, split: str | None) -> Iterator[Row]:
    try:
        from datasets import load_dataset

        found = load_dataset(name, split=split, streaming=True)
        # Without a split the hub gives a table of all of them.
        yield from itertools.chain.from_iterable([found] if split else found.values())
    except Exception as error:  # the hub client raises dozens of types
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{name} is no file here, and no data set that the hub gives ({reason}): check name and network."
        ) from error


def _of_split(rows: Iterator[tuple[Row, str]], split: str | None) -> Iterator[tuple[Row, str]]:
    for row, place in rows:
        if split is None or (row.get("split") or "all") in (split, "all"):
            yield row, place


def _text_of(row: Row, place: str) -> str:
    for name in TEXT_FIELDS:
        value = row.get(name)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return " ".join(value)
    raise UserError(
        f"{place} has no text: it has the fields {', '.join(row) or 'none'}, and needs one of {', '.join(TEXT_FIELDS)}."
    )


def read_conversations(sources: Sequence[str | Path], split: str | None = "train") -> Iterator[list[dict[str, str]]]:
    """Messages, each with ``role`` and ``content``, of rows with ``messages``; from files, folders or hub data sets.

    Raises:
        UserError: for a missing file or a row without messages, naming file and line.
    """
    for source in sources:
        yield from (_messages_of(row, place) for row, place in _rows_of(source, ROW_SUFFIXES, split))


def _messages_of(row: Row, place: str) -> list[dict[str, str]]:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{place} has no conversation: it needs 'messages', a list of role and content.")
    for message in messages:
        parts = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if not all(isinstance(part, str) for part in parts):
            raise UserError(f"{place} has a message without a text as role or content: mend or drop the row.")
    return [{"role": clean(message["role"]), "content": clean(message["content"])} for message in messages]


def read_pairs(sources: Sequence[str | Path], split: str | None = "train") -> Iterator[Pair]:
    """(anchor, positive, negative or None) of rows with such fields, of sentence1/sentence2, or of .tsv columns.

    Raises:
        UserError: for a missing file or a row without a pair, naming file and line.
    """
    for source in sources:
        for file in _files(Path(source), PAIR_SUFFIXES):
            if file.suffix == ".tsv":
                yield from _tsv_pairs(file)
            else:
                yield from (_pair_of(row, place) for row, place in _of_split(_rows(file), split))


def _tsv_pairs(file: Path) -> Iterator[Pair]:
    for number, line in _lines(file):
        cells = [clean(cell).strip() for cell in line.rstrip("\r\n").split("\t")]
        if len(cells) not in (2, 3) or not all(cells[:2]):
            raise UserError(
                f"{file}, line {number} is no pair ({len(cells)} columns): write anchor, positive and perhaps negative."
            )
        yield cells[0], cells[1], cells[2] if len(cells) == 3 and cells[2] else None


def _pair_of(row: Row, place: str) -> Pair:
    negative = row.get("negative")
    if negative is not None and not isinstance(negative, str):
        raise UserError(f"{place} has a 'negative' that is neither a text nor null: give one text.")
    for first, second in PAIR_FIELDS:
        anchor, positive = row.get(first), row.get(second)
        if isinstance(anchor, str) and isinstance(positive, str) and clean(anchor).strip() and clean(positive).strip():
            return clean(anchor), clean(positive), clean(negative or "").strip() or None
    raise UserError(
        f"{place} has no pair: it needs the texts 'anchor' and 'positive' (it has {', '.join(row) or 'no field'})."
    )


_BOUNDARY = re.compile(r"""(?<=[.!?])["'”’)\]]*\s+(?=["'“‘(\[]*[A-Z0-9])""")
_ABBREVIATION = re.compile(
    r"""(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Sr|Jr|vs|etc|e\.g|i\.e|cf|No|Fig|Vol|Inc|Ltd|Co|Gen|Col|Sen|Rep|Gov)|\b[A-Z])\.$"""
)


def sentences_of(text: str) -> list[str]:
    """A text cut into sentences by rule: at closing punctuation before a capital or digit, not after abbreviations."""
    sentences, start = [], 0
    for match in _BOUNDARY.finditer(text):
        if _ABBREVIATION.search(text[start : match.end()].rstrip()):
            continue
        sentences.append(text[start : match.end()].strip())
        start = match.end()
    return [*sentences, text[start:].strip()] if text[start:].strip() else sentences
