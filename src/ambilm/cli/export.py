"""``ambilm export M --to FORMAT --output DIR``: a directory that stock software loads."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ambilm.cli import files, models
from ambilm.cli.options import Dtype, DtypeOption, ModelArgument


class Format(StrEnum):
    hf = "hf"
    merged = "merged"
    sentence_transformers = "sentence-transformers"
    moe = "moe"


def export(
    model: ModelArgument,
    to: Annotated[
        Format, typer.Option(help="hf, merged, sentence-transformers or moe; see above.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new or empty directory.")],
    dtype: DtypeOption = Dtype.auto,
) -> None:
    """Write a model for other software.

    [cyan]hf[/cyan]: the untouched base model, for transformers and every engine that reads its directories.
    [cyan]merged[/cyan]: the adapted weights as a stock model (the papers' way; its causal text is not the base's).
    [cyan]sentence-transformers[/cyan]: an encoder with the model's own prompt, pooling and mask.
    [cyan]moe[/cyan]: a UBMoE model under its learned gates as stock Mixtral (Llama, Mistral) or Qwen3-MoE (Qwen3).
    """
    files.check_output_directory(output)

    from ambilm.export import export_hf, export_merged, export_moe, export_sentence_transformers

    writers = {
        Format.hf: export_hf,
        Format.merged: export_merged,
        Format.sentence_transformers: export_sentence_transformers,
        Format.moe: export_moe,
    }
    writers[to](models.load(model, dtype), output)
    typer.echo(output)
