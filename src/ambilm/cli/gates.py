"""``ambilm gates M --data FILE --output DIR``: which tokens UBMoE's gates send to the bidirectional expert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ambilm.cli import files, models
from ambilm.cli.options import DeviceOption, Dtype, DtypeOption, ModelArgument


def gates(
    model: ModelArgument,
    data: Annotated[
        Path,
        typer.Option(metavar="FILE", help=".jsonl(.gz) with messages, text or sentences; or .txt, a text a line."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Directory of the table and picture.")],
    limit: Annotated[int, typer.Option(min=1, help="Most documents, a seeded sample.")] = 100,
    split: Annotated[
        str | None, typer.Option(help="Only rows with this split; all rows if not given.", show_default=False)
    ] = None,
    max_length: Annotated[int, typer.Option(min=1, help="Tokens after these are left out.")] = 512,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = "auto",
) -> None:
    """Show which tokens the learned gates send to the bidirectional expert.

    For a model trained with [cyan]ambilm adapt ubmoe[/cyan], as it reads and generates with --weights learned. Tokens are
    told apart by their part in a conversation (prompt, answer) and by their form (beginning of a word, punctuation, ...).

    DIR gets gates.json, gates.md and gates.png (every class and layer).
    """
    files.check_input(str(data))
    files.check_output_directory(output)

    from ambilm import __version__
    from ambilm.evaluation.conversations import read_documents
    from ambilm.evaluation.gates import gate_shares
    from ambilm.evaluation.gates_report import figure, markdown
    from ambilm.evaluation.results import versions

    documents = list(read_documents(data, split))  # mistakes in --data, before a model is loaded
    loaded = models.load(model, dtype, device)
    found = gate_shares(loaded, documents, limit=limit, max_length=max_length, seed=seed, progress=True)
    run = {"model": model, "data": data.name, "split": split, "limit": limit, "max_length": max_length, "seed": seed}
    content = {"ambilm_version": __version__, "versions": versions(), "run": run, **found}
    for file, body in {
        "gates.json": json.dumps(content, ensure_ascii=False) + "\n",
        "gates.md": markdown(found),
    }.items():
        with files.replacing(output / file) as part:
            part.write_text(body, encoding="utf-8")
    with files.replacing(output / "gates.png") as part:
        figure(found).savefig(part, dpi=150, format="png")
    for kind, entry in found["classes"].items():
        typer.echo(f"{kind}\t{entry['n']}\texpert 1\t{entry['share']:.1f}")
