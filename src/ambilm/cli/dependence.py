"""``ambilm dependence M... --data FILE --output DIR``: where attention would go if nothing hid the future."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ambilm.cli import files, models
from ambilm.cli.options import DeviceOption, Dtype, DtypeOption
from ambilm.errors import UserError


def dependence(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="M...", help="Models, side by side: packaged names, directories, hub ids.", show_default=False
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(metavar="FILE", help=".jsonl(.gz) with messages, text or sentences; or .txt, a text a line."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Directory of the table and plots.")],
    limit: Annotated[int, typer.Option(min=1, help="Most texts of a length bin, a seeded sample.")] = 20,
    split: Annotated[
        str | None, typer.Option(help="Only rows with this split; all rows if not given.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample.")] = 0,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = "auto",
) -> None:
    """Measure how much attention would go to later tokens.

    The diagnostic of Li et al. 2025: what share of its attention a token would give itself, earlier and later tokens if
    the causal mask were lifted, while the model itself reads causally. Training with bidirectional attention raises the
    share of later tokens; the more it rises, the more generation with the adapted weights suffers.

    Name an adapted model beside its base to see what training changed. Conversations go through the chat template.
    Texts are sorted into 0-256, 256-512, 512-1024 and 1024-2048 tokens; longer ones are left out.

    DIR gets dependence.json, dependence.md, dependence.png (bars by length) and heads.png (every layer and head).
    """
    files.check_input(str(data))
    files.check_output_directory(output)
    labels = _labels(names)

    from ambilm.evaluation.conversations import read_documents
    from ambilm.evaluation.dependence import dependence_by_bin

    documents = list(read_documents(data, split))  # mistakes in --data, before a model is loaded
    found = {}
    for label, name in zip(labels, names, strict=True):
        # No name for the model, so that it is gone before the next one is loaded.
        found[label] = dependence_by_bin(
            models.load(name, dtype, device), documents, limit=limit, seed=seed, progress=True
        )
    _write(output, found, {"data": data.name, "split": split, "limit": limit, "seed": seed})
    for label, entry in found.items():
        for row in entry["bins"]:
            if row["n"]:
                typer.echo(f"{label}\t{row['tokens']}\tDP_after\t{row['after']:.2f}")


def _labels(names: list[str]) -> list[str]:
    """Models by the last part of their names; by the whole where two share one."""
    if len(set(names)) < len(names):
        raise UserError(f"M {' '.join(names)} names a model twice: give each once.")
    short = [Path(name).name or name for name in names]
    return [name if short.count(label) > 1 else label for label, name in zip(short, names, strict=True)]


def _write(output: Path, found: dict[str, dict[str, Any]], run: dict[str, Any]) -> None:
    """The four files, each complete or absent."""
    from ambilm import __version__
    from ambilm.evaluation.dependence_report import bins_figure, heads_figure, json_ready, markdown
    from ambilm.evaluation.results import versions

    content = {"ambilm_version": __version__, "versions": versions(), "run": run, "models": json_ready(found)}
    text = {
        "dependence.json": json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n",
        "dependence.md": markdown(found),
    }
    for name, body in text.items():
        with files.replacing(output / name) as part:
            part.write_text(body, encoding="utf-8")
    for name, figure in {"dependence.png": bins_figure(found), "heads.png": heads_figure(found)}.items():
        with files.replacing(output / name) as part:
            figure.savefig(part, dpi=150, format="png")
