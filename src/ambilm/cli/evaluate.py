"""``ambilm evaluate M --tasks T,T --data DIR --output results.json``: measure a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ambilm.cli import files, models
from ambilm.cli.options import DeviceOption, Dtype, DtypeOption, ModelArgument, WeightsChoice, WeightsOption


def evaluate(
    model: ModelArgument,
    tasks: Annotated[
        str,
        typer.Option(
            metavar="T,T", help="Tasks or groups (sts, mteb:SciFact, infill …); an unknown name lists them all."
        ),
    ],
    *,
    data: Annotated[
        list[Path] | None,
        typer.Option(metavar="DIR", help="Folder with task files, or a text file for own_text; repeatable."),
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="results.json", help="Finished tasks in it are kept.")
    ],
    limit: Annotated[int | None, typer.Option(min=2, help="Most examples of a task.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the examples that --limit picks.")] = 0,
    weights: WeightsOption = WeightsChoice.by_job,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = "auto",
) -> None:
    """Run tasks on a model; the results file is written after each task."""
    files.check_output(output, (".json",))

    from ambilm.evaluation import evaluate as run_tasks
    from ambilm.evaluation.data import check_data
    from ambilm.evaluation.tasks import expand

    folders = data or []
    expand(tasks, check_data(folders))  # mistakes in --tasks and --data, before the model is loaded
    loaded = models.load(model, dtype, device).with_weights(weights.value)
    results = run_tasks(loaded, tasks, folders, output, limit=limit, seed=seed)
    for name, entry in results["tasks"].items():
        typer.echo(f"{name}\t{entry['metric']}\t{entry['main']}")
