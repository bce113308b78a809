"""``ambilm demo``: adapt a small model, measure it, write a report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ambilm.cli import files


def demo(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Directory of the model and report.html.")
    ] = Path("demo"),
) -> None:
    """Adapt SmolLM2-135M, measure it before and after, write a report.

    It trains on text that every machine has and leaves DIR/report.html, DIR/model and DIR/results-*.json. Stopped, the
    same command goes on; finished, it starts afresh.
    """
    files.check_output_directory(output)

    from ambilm.demo import run_demo

    typer.echo(run_demo(output))
