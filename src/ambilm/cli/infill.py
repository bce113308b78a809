"""``ambilm infill M "text with [BLANK]"``: what is missing, written from both sides."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from ambilm.cli import models
from ambilm.cli.options import (
    DeviceOption,
    Dtype,
    DtypeOption,
    ModelArgument,
    SampleOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    checked_text,
    sampling_arguments,
)
from ambilm.errors import UserError

if TYPE_CHECKING:
    from ambilm.model.infilling import Infilled

BLANK = "[BLANK]"  # the one of ambilm.model.settings, whose import would bring torch


def infill(
    model: ModelArgument,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text with one or more [BLANK]s.", show_default=False)],
    candidates: Annotated[int, typer.Option(min=1, help="How many infills, best first.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a blank.")] = 32,
    min_tokens: Annotated[int, typer.Option(min=0, help="Fewest tokens of a blank.")] = 1,
    sample: SampleOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    seed: SeedOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object with text, spans, score, candidates.")
    ] = False,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = "auto",
) -> None:
    """Fill the [BLANK]s of a text from both sides; prints the candidates, best first."""
    checked_text(text, "TEXT")
    if BLANK not in text:
        raise UserError(f"TEXT holds no {BLANK}: write {BLANK} where something is missing.")
    if min_tokens > max_tokens:
        raise UserError(
            f"--min-tokens {min_tokens} is above --max-tokens {max_tokens}: lower the one or raise the other."
        )
    sampling = sampling_arguments(sample, temperature, top_k, top_p)
    result = models.load(model, dtype, device).infill(
        text, num_candidates=candidates, min_tokens=min_tokens, max_tokens=max_tokens, seed=seed, **sampling
    )
    found = list(result.candidates) or [result]
    if as_json:
        row = {**as_row(result), "candidates": [as_row(candidate) for candidate in found]}
        typer.echo(json.dumps(row, ensure_ascii=False))
        return
    for candidate in found:
        show(text, candidate)


def as_row(infilled: Infilled) -> dict[str, object]:
    return {"text": infilled.text, "spans": list(infilled.spans), "score": float(infilled.score)}


def show(text: str, infilled: Infilled) -> None:
    """Prints the filled text; on a terminal with the filled spans in colour."""
    pieces = text.split(BLANK)
    if sys.stdout.isatty():
        coloured = [typer.style(span, fg="green", bold=True) for span in infilled.spans]
        # Only where the text is exactly its pieces and spans; a tokenizer may have joined them in another way.
        if joined(pieces, infilled.spans) == infilled.text:
            typer.echo(joined(pieces, coloured))
            return
    typer.echo(infilled.text)


def joined(pieces: list[str], spans: list[str]) -> str:
    return "".join(piece + span for piece, span in zip(pieces, [*spans, ""], strict=True))
