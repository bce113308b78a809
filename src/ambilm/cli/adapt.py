"""``ambilm adapt RECIPE --model M --text FILE... --output DIR``: train a recipe.

``ambilm adapt --help`` lists the recipes, ``ambilm adapt RECIPE --help`` the settings of one.
"""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from ambilm.cli import files
from ambilm.cli.options import Dtype, DtypeOption
from ambilm.errors import UserError

if TYPE_CHECKING:
    from ambilm.recipes import Recipe

LISTS = ("--text", "--pairs", "--set")  # take several values: --text a.txt b.txt, as a shell's *.txt gives them
STEP_FIELDS = re.compile(r"(stage\d+_)?steps")


class AdaptCommand(TyperCommand):
    """Takes several values after ``--text``, and adds the settings of the recipe to the help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[__name__] = list(args)
        return super().parse_args(ctx, repeated(args))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super().format_help(ctx, formatter)
        from ambilm.recipes import RECIPES

        named = [argument for argument in ctx.meta.get(__name__, []) if argument in RECIPES]
        show_recipe(RECIPES[named[0]]) if named else show_recipes(RECIPES)


def repeated(args: list[str]) -> list[str]:
    """``--text a b`` as ``--text a --text b``, which is what typer reads."""
    result: list[str] = []
    flag, filled = "", False
    for argument in args:
        if argument.startswith("--"):
            flag, filled = (argument if argument in LISTS else ""), False
            result.append(argument)
            continue
        if flag and filled:
            result.append(flag)
        result.append(argument)
        filled = True
    return result


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
    from pydantic import ValidationError

    values = dict(setting(kind, item) for item in settings)
    for name, value in {**step_values(kind, steps), **({} if seed is None else {"seed": seed})}.items():
        if name in values:
            flag = "--seed" if name == "seed" else "--steps"
            raise UserError(f"{flag} and --set {name}=… say the same thing twice: leave one of the two out.")
        values[name] = value
    try:
        return kind(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"][:1])
        place = f"--set {where}={values.get(where)}" if where else "--set"
        message = problem["msg"].removeprefix("Value error, ")
        raise UserError(f"{place}: {message} (see ambilm adapt {kind.name} --help).") from None


def setting(kind: type[Recipe], item: str) -> tuple[str, Any]:
    """``key=value`` as a pair; the value is JSON where it parses, else the string itself."""
    key, found, value = item.partition("=")
    if not found:
        raise UserError(f"--set {item} has no '=': write --set key=value.")
    if key not in kind.model_fields:
        known = ", ".join(kind.model_fields)
        raise UserError(
            f"--set {key}: {kind.name} has no such setting{did_you_mean(key, kind.model_fields)}. Settings: {known}."
        )
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


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


def did_you_mean(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def show_recipes(recipes: dict[str, type[Recipe]]) -> None:
    table("Recipes", [(name, kind.summary, "") for name, kind in recipes.items()], ("name", "what it is", ""))


def show_recipe(kind: type[Recipe]) -> None:
    rows = [
        (name, json.dumps(field.default, ensure_ascii=False), field.description or "")
        for name, field in kind.model_fields.items()
    ]
    table(f"Settings of {kind.name} (--set KEY=VALUE)", rows, ("key", "default", "meaning"))
    files_and_settings = "--text notes.txt --output runs/notes --set learning_rate=3e-4"
    typer.echo(f"Example: ambilm adapt {kind.name} --model smollm2-135m {files_and_settings}")


def table(title: str, rows: list[tuple[str, str, str]], columns: tuple[str, str, str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    wanted = [place for place, column in enumerate(columns) if column]
    for place in wanted:
        shown.add_column(columns[place], overflow="fold", style="cyan" if place == 0 else None, no_wrap=place == 0)
    for row in rows:
        shown.add_row(*(Text(row[place]) for place in wanted))
    Console().print(shown)
