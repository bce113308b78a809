"""``ambilm tokens M [FILE|-]``: one vector a word."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer

from ambilm.cli import files, models
from ambilm.cli.embed import numbers
from ambilm.cli.options import (
    DeviceOption,
    Dtype,
    DtypeOption,
    InputArgument,
    LayoutOption,
    ModelArgument,
    SubwordChoice,
    value_of,
)

CHUNK = 256  # sentences held at a time; their word vectors are large


def tokens(
    model: ModelArgument,
    source: InputArgument = files.STDIN,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="X.jsonl; standard output if not given.", show_default=False)
    ] = None,
    layout: LayoutOption = None,
    subword: Annotated[
        SubwordChoice, typer.Option(help="Which of a word's tokens make its vector.")
    ] = SubwordChoice.mean,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = "auto",
) -> None:
    """Write one vector a word, for lines of words with spaces between them.

    Each line of output is {"words": [...], "vectors": [[...], ...]}.
    """
    if output is not None:
        files.check_output(output, (".jsonl",))
    files.check_input(source)
    stream = (line.split() for _, line in files.numbered_lines(source))
    first = next(stream, None)
    if first is None:
        raise files.empty(source)
    loaded = models.load(model, dtype, device)
    sentences = itertools.chain([first], stream)
    with writing(output) as file:
        while chunk := list(itertools.islice(sentences, CHUNK)):
            arrays = loaded.encode_tokens(chunk, layout=value_of(layout), subword=subword.value)
            for words, vectors in zip(chunk, arrays, strict=True):
                row = {"words": words, "vectors": [numbers(vector) for vector in vectors]}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def writing(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    with files.replacing(output) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield file
