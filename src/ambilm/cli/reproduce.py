"""``ambilm reproduce EXPERIMENT --model M --data DIR --output DIR``: a paper's tables for one's own model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from ambilm.cli import files
from ambilm.cli.settings import did_you_mean, given, made, repeated, show_kinds, show_settings
from ambilm.errors import UserError

EXAMPLE = "ambilm reproduce {} --model smollm2-135m --data data --output runs/paper --set seeds=1 limit=100"


class ReproduceCommand(TyperCommand):
    """Takes several values after ``--set``, and adds the settings of the experiment to the help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[__name__] = list(args)
        return super().parse_args(ctx, repeated(args, ("--set",)))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        from ambilm.reproduce import EXPERIMENTS

        named = next((argument for argument in ctx.meta.get(__name__, []) if argument in EXPERIMENTS), None)
        if named:
            show_settings(EXPERIMENTS[named].settings, EXAMPLE.format(named))
        else:
            show_kinds("Experiments", (experiment.settings for experiment in EXPERIMENTS.values()))


def reproduce(
    experiment: Annotated[
        str,
        typer.Argument(metavar="EXPERIMENT", help="A paper's experiments; they are listed below.", show_default=False),
    ],
    model: Annotated[str, typer.Option(metavar="M", help="Packaged name, directory, .gguf file or hub id.")],
    data: Annotated[Path, typer.Option(metavar="DIR", help="Folder of training and evaluation data.")],
    output: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Directory for models, figures and the report; a stopped run goes on in it."),
    ],
    *,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE...", help="Settings of the experiment.", show_default=False),
    ] = None,
    cost: Annotated[bool, typer.Option("--cost", help="Say what it will take, and end.")] = False,
) -> None:
    """Fill a paper's tables for a model: train, measure, and write them beside the paper's rows.

    It rehearses everything in miniature first and says what the rest will take. Run it again to go on after a stop.
    """
    from ambilm.reproduce import EXPERIMENTS

    if experiment not in EXPERIMENTS:
        known = "; ".join(f"{name} ({found.settings.summary})" for name, found in EXPERIMENTS.items())
        raise UserError(
            f"EXPERIMENT {experiment!r} is not known{did_you_mean(experiment, EXPERIMENTS)}. Known: {known}."
        )
    chosen = EXPERIMENTS[experiment]
    values = made(chosen.settings, given(chosen.settings, settings or []), "reproduce")
    if not data.is_dir():
        raise UserError(f"--data {data} is not a folder: give the one that holds the training and evaluation data.")
    files.check_output_directory(output)
    typer.echo(chosen.run(values, model, data, output, only_cost=cost))
