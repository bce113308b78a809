"""Input lines and output files of the commands: checked before a model is loaded, complete or absent afterwards."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import typer

from ambilm.errors import UserError

STDIN = "-"


def check_input(source: str) -> None:
    """Refuses an input that is missing, a directory or empty."""
    if source == STDIN:
        if sys.stdin.isatty():
            typer.echo("Reading from the terminal, one text a line; end with Ctrl-D.", err=True)
        return
    path = Path(source)
    if not path.exists():
        raise UserError(f"{source} does not exist: give an existing file, or - for standard input.")
    if path.is_dir():
        raise UserError(f"{source} is a directory: give a file, or - for standard input.")
    if not os.access(path, os.R_OK):
        raise UserError(f"{source} cannot be read: check its permissions.")
    if path.is_file() and path.stat().st_size == 0:
        raise UserError(f"{source} is empty: give a file with one text a line.")


def check_output(path: Path, suffixes: tuple[str, ...], flag: str = "--output") -> None:
    """Refuses an output of an unknown suffix, or in a directory that cannot be made or written."""
    if path.suffix.lower() not in suffixes:
        raise UserError(f"{flag} {path} does not end in {' or '.join(suffixes)}: choose one of these.")
    if path.is_dir():
        raise UserError(f"{flag} {path} is a directory: give a file name.")
    check_output_directory(path.parent, flag)


def check_output_directory(path: Path, flag: str = "--output") -> None:
    """Refuses a directory that is a file or could not be made."""
    existing = next(place for place in (path, *path.absolute().parents) if place.exists())
    if not existing.is_dir():
        raise UserError(f"{flag} {path}: {existing} is a file: choose a directory.")
    if not os.access(existing, os.W_OK):
        raise UserError(f"{flag} {path}: the directory {existing} cannot be written: choose another.")


def _opened(source: str) -> contextlib.AbstractContextManager[Iterable[bytes]]:
    if source == STDIN:
        return contextlib.nullcontext(sys.stdin.buffer)
    return gzip.open(source) if source.endswith(".gz") else Path(source).open("rb")


def numbered_lines(source: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line, the line end removed."""
    with _opened(source) as stream:
        lines = enumerate(stream, start=1)
        while True:
            try:
                number, line = next(lines, (0, b""))
            except (gzip.BadGzipFile, EOFError):
                raise UserError(f"{source} is not a complete gzip file: write it anew.") from None
            if not number:
                return
            try:
                yield number, line.decode().removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError:
                raise UserError(f"{_name(source)}, line {number} is not valid UTF-8: convert the file.") from None


def texts(source: str) -> Iterator[str]:
    """The texts of a file or of stdin: one a line, or the ``text`` field of JSON lines.

    A file is JSON lines by its name; stdin is where its first line is an object with a ``text``.
    """
    json_lines = source.removesuffix(".gz").endswith((".jsonl", ".ndjson"))
    for number, line in numbered_lines(source):
        if source == STDIN and number == 1:
            json_lines = _row_text(line) is not None
        if not json_lines:
            yield line
        elif line.strip():
            text = _row_text(line)
            if text is None:
                raise UserError(
                    f'{_name(source)}, line {number} is not a JSON object with a "text" string: correct it.'
                )
            yield text


def _row_text(line: str) -> str | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    text = row.get("text") if isinstance(row, dict) else None
    return text if isinstance(text, str) else None


def _name(source: str) -> str:
    return "standard input" if source == STDIN else source


def empty(source: str) -> UserError:
    return UserError(f"{_name(source)} is empty: give one text a line.")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to; it becomes ``path`` when the block ends well and goes when not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
