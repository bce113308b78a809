"""``ambilm embed M [FILE|-] --output X.npy|X.jsonl``: one vector a text."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Protocol

import typer

from ambilm.cli import files, models
from ambilm.cli.options import (
    DeviceOption,
    Dtype,
    DtypeOption,
    InputArgument,
    LayoutOption,
    ModelArgument,
    PoolingChoice,
    PrecisionChoice,
    value_of,
)

if TYPE_CHECKING:
    import numpy as np

    from ambilm import AmbiLM

CHUNK = 4096  # texts held at a time; encode sorts them by length among themselves


def embed(
    model: ModelArgument,
    source: InputArgument = files.STDIN,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="X.npy (one row a text) or X.jsonl (text and embedding).")
    ],
    reading: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="A reading that needs no training (echo, prompt-eol, causal-mean …; a wrong name lists them) in place of"
            " the model's own; the options below change it.",
        ),
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help='Prefix, or template holding {text}, perhaps twice; "" for none.', show_default=False),
    ] = None,
    include_prompt: Annotated[
        bool | None,
        typer.Option(
            "--include-prompt/--text-only",
            show_default=False,
            help="What a mean counts: the prompt too, or the text alone (the last one of a template).",
        ),
    ] = None,
    pooling: Annotated[
        PoolingChoice | None, typer.Option(help="How token vectors become one; the model's own if not given.")
    ] = None,
    layout: LayoutOption = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Scale vectors to length 1.")] = False,
    truncate_dim: Annotated[int | None, typer.Option(min=1, help="Keep the first so many dimensions.")] = None,
    precision: Annotated[PrecisionChoice, typer.Option(help="Number type that is written.")] = PrecisionChoice.float32,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = "auto",
) -> None:
    """Write one vector a text: the lines of FILE, or the "text" of its JSON lines."""
    files.check_output(output, (".npy", ".jsonl"))
    files.check_input(source)
    # A file is read through once before the model is loaded: for mistakes in it and for the length of the progress bar.
    total = None if source == files.STDIN else sum(1 for _ in files.texts(source))
    stream = files.texts(source)
    first = next(stream, None)
    if first is None:
        raise files.empty(source)

    from ambilm.model.settings import check_reading  # late: it imports transformers

    options = {
        "reading": None if reading is None else check_reading(reading),
        "prompt": prompt,
        "include_prompt": include_prompt,
        "pooling": value_of(pooling),
        "layout": value_of(layout),
        "normalize_embeddings": normalize,
        "truncate_dim": truncate_dim,
        "precision": precision.value,
    }
    loaded = models.load(model, dtype, device)
    with files.replacing(output) as temporary, temporary.open("wb") as file:
        writer: Writer = NpyWriter(file) if output.suffix.lower() == ".npy" else JsonLinesWriter(file)
        for chunk, vectors in encoded_chunks(loaded, itertools.chain([first], stream), total, options):
            writer.write(chunk, vectors)
        writer.close()


def encoded_chunks(
    model: AmbiLM, stream: Iterator[str], total: int | None, options: dict[str, Any]
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Texts and their vectors, (texts, dimension), a chunk at a time."""
    from tqdm import tqdm

    with tqdm(total=total, desc="Embedding", unit="text", disable=None) as progress:

        def counted(chunk: list[str]) -> Iterator[str]:
            for text in chunk:
                yield text
                progress.update()

        while chunk := list(itertools.islice(stream, CHUNK)):
            yield chunk, model.encode(counted(chunk), show_progress_bar=False, **options)


class Writer(Protocol):
    def write(self, texts: list[str], vectors: np.ndarray) -> None: ...
    def close(self) -> None: ...


class NpyWriter:
    """A .npy file of rows whose number is known only at the end: the header is written again then.

    numpy pads headers so that the first axis may grow in place.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.rows = 0
        self.header: dict[str, Any] | None = None

    def write(self, texts: list[str], vectors: np.ndarray) -> None:
        from numpy.lib import format as npy

        if self.header is None:
            self.header = npy.header_data_from_array_1_0(vectors)
            npy.write_array_header_1_0(self.file, self.header)
        self.file.write(vectors.tobytes())
        self.rows += len(vectors)

    def close(self) -> None:
        from numpy.lib import format as npy

        assert self.header is not None
        self.file.seek(0)
        npy.write_array_header_1_0(self.file, {**self.header, "shape": (self.rows, *self.header["shape"][1:])})


class JsonLinesWriter:
    """JSON lines of ``{"text": ..., "embedding": [...]}``."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def write(self, texts: list[str], vectors: np.ndarray) -> None:
        for text, vector in zip(texts, vectors, strict=True):
            self.file.write(
                json.dumps({"text": text, "embedding": numbers(vector)}, ensure_ascii=False).encode() + b"\n"
            )

    def close(self) -> None:
        self.file.flush()


def numbers(vector: np.ndarray) -> list[float] | list[int]:
    """A vector for JSON: integers as they are, float32 with the nine digits that bring the same float32 back."""
    if vector.dtype.kind in "iu":
        return [int(value) for value in vector]
    return [float(f"{value:.9g}") for value in vector]
