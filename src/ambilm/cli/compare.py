"""``ambilm compare results.json... --output table.md|.html|.png``: results side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ambilm.cli import files


def compare(
    results: Annotated[
        list[Path], typer.Argument(metavar="RESULTS...", help="Files that ambilm evaluate wrote.", show_default=False)
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="table.md, table.html or plot.png.")],
) -> None:
    """Set results files side by side, in a table or a plot."""
    files.check_output(output, (".md", ".html", ".png"))
    for path in results:
        files.check_input(str(path))

    from ambilm.evaluation import compare as write_comparison

    write_comparison(results, output)
    typer.echo(output)
