"""``ambilm adapt RECIPE --model M --text FILE... --output DIR``: train a recipe.

``ambilm adapt --help`` lists the recipes, ``ambilm adapt RECIPE --help`` the settings of one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ambilm.cli import files
from ambilm.cli.options import Dtype, DtypeOption
from ambilm.cli.settings import did_you_mean, given, made, repeated, show_kinds, show_settings
from ambilm.errors import UserError

if TYPE_CHECKING:
    from ambilm.recipes import Recipe

LISTS = ("--text", "--pairs", "--set")  # take several values: --text a.txt b.txt, as a shell's *.txt gives them
EXAMPLE = "ambilm adapt {} --model smollm2-135m --text notes.txt --output runs/notes --set learning_rate=3e-4"
STEP_FIELDS = re.compile(r"(stage\d+_)?steps")


class AdaptCommand(TyperCommand):
    """Takes several values after ``--text``, and adds the settings of the recipe to the help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[__name__] = list(args)
        return super().parse_args(ctx, repeated(args, LISTS))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        from ambilm.recipes import RECIPES

        named = next((argument for argument in ctx.meta.get(__name__, []) if argument in RECIPES), None)
        if named:
            show_settings(RECIPES[named], EXAMPLE.format(named))
        else:
            show_kinds("Recipes", RECIPES.values())


def adapt(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a recipe; they are listed below.", show_default=False)
    ],
    model: Annotated[str, typer.Option(metavar="M", help="Packaged name, directory, .gguf file or hub id.")],
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the adapted model, its log and checkpoints.")
    ],
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE...",
            help=".txt, .jsonl(.gz), .parquet, a folder or a hub data set; several may follow.",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE...", help="Pairs: .jsonl(.gz) with anchor, positive and perhaps negative.", show_default=False
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps in all; stages keep their shares.", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of everything random.", show_default=False)] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE...", help="Settings of the recipe.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in DIR.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what DIR holds.")] = False,
    dtype: DtypeOption = Dtype.auto,
) -> None:
    """Adapt a model to read in both directions; its own generation stays as it is.

    For the settings of a recipe: [cyan]ambilm adapt magnet --help[/cyan]
    """
    kind = find_recipe(recipe)
    chosen = make_recipe(kind, settings or [], steps, seed)
    for source in text or []:
        check_source(source, "--text")
    for source in pairs or []:
        check_source(source, "--pairs")
    check_directory(output, resume, overwrite)

    from ambilm.training import adapt as train

    directory = train(
        chosen,
        model=model,
        text=text or [],
        output=output,
        pairs=pairs or [],
        resume=resume,
        overwrite=overwrite,
        dtype=dtype.value,
    )
    typer.echo(directory)


def check_source(source: str, flag: str) -> None:
    """Refuses a missing file or an empty one; a name that is no path may be a hub data set."""
    path = Path(source)
    if path.is_file() and path.stat().st_size == 0:
        raise UserError(f"{flag} {source} is empty: give a file with text.")
    is_path = (
        path.is_absolute() or source.startswith(".") or path.suffix in (".txt", ".jsonl", ".gz", ".parquet", ".json")
    )
    if not path.exists() and (is_path or source.count("/") != 1):
        raise UserError(f"{flag} {source} does not exist: give a file, a folder or a hub data set (owner/name).")


def check_directory(output: Path, resume: bool, overwrite: bool) -> None:
    """Refuses to touch what is there unless told so."""
    if resume and overwrite:
        raise UserError("--resume and --overwrite exclude each other: leave one of the two out.")
    files.check_output_directory(output)
    filled = output.is_dir() and any(output.iterdir())
    if filled and not (resume or overwrite):
        raise UserError(f"--output {output} is not empty: add --resume to go on with it or --overwrite to replace it.")
    if resume and not filled:
        raise UserError(f"--output {output} holds nothing to resume: leave --resume out to start.")


def find_recipe(name: str) -> type[Recipe]:
    from ambilm.recipes import RECIPES

    if name not in RECIPES:
        known = "; ".join(f"{known} ({kind.summary})" for known, kind in RECIPES.items())
        raise UserError(f"RECIPE {name!r} is not known{did_you_mean(name, RECIPES)}. Known: {known}.")
    return RECIPES[name]


def make_recipe(kind: type[Recipe], settings: list[str], steps: int | None, seed: int | None) -> Recipe:
    """The recipe with the settings of the command line.

    Raises:
        UserError: for an unknown key, a value that the field refuses, or a setting given twice.
    """
    values = given(kind, settings)
    for name, value in {**step_values(kind, steps), **({} if seed is None else {"seed": seed})}.items():
        if name in values:
            flag = "--seed" if name == "seed" else "--steps"
            raise UserError(f"{flag} and --set {name}=… say the same thing twice: leave one of the two out.")
        values[name] = value
    return made(kind, values, "adapt")


def step_values(kind: type[Recipe], steps: int | None) -> dict[str, int]:
    """``--steps`` shared among the stages of the recipe in the proportion of their defaults."""
    if steps is None:
        return {}
    defaults = {name: field.default for name, field in kind.model_fields.items() if STEP_FIELDS.fullmatch(name)}
    total, spent, done = sum(defaults.values()), 0, 0
    values = {}
    for name, default in defaults.items():
        done += default
        values[name] = round(steps * done / total) - spent
        spent += values[name]
    return values
