"""``--set KEY=VALUE...``: the settings of a recipe or an experiment on the command line, and in the help."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from ambilm.errors import UserError

if TYPE_CHECKING:
    from ambilm.recipes import NamedSettings

Kind = TypeVar("Kind", bound="NamedSettings")


def repeated(args: Sequence[str], lists: Sequence[str]) -> list[str]:
    """``--text a b`` as ``--text a --text b``, which is what typer reads, for every flag of ``lists``."""
    result: list[str] = []
    flag, filled = "", False
    for argument in args:
        if argument.startswith("--"):
            flag, filled = (argument if argument in lists else ""), False
            result.append(argument)
            continue
        if flag and filled:
            result.append(flag)
        result.append(argument)
        filled = True
    return result


def given(kind: type[NamedSettings], items: Iterable[str]) -> dict[str, Any]:
    """The settings of the command line by key.

    Raises:
        UserError: for an unknown key, or one without a value.
    """
    return dict(_setting(kind, item) for item in items)


def _setting(kind: type[NamedSettings], item: str) -> tuple[str, Any]:
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


def made(kind: type[Kind], values: dict[str, Any], command: str) -> Kind:
    """``kind`` with the values.

    Raises:
        UserError: for a value that the field refuses.
    """
    from pydantic import ValidationError

    try:
        return kind(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"][:1])
        place = f"--set {where}={values.get(where)}" if where else "--set"
        message = problem["msg"].removeprefix("Value error, ")
        raise UserError(f"{place}: {message} (see ambilm {command} {kind.name} --help).") from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {close[0]!r}?" if close else ""


def show_kinds(title: str, kinds: Iterable[type[NamedSettings]]) -> None:
    """Which recipes or experiments there are."""
    show_table(title, ("name", "what it is"), [(kind.name, kind.summary) for kind in kinds])


def show_settings(kind: type[NamedSettings], example: str) -> None:
    """The settings of one of them, and a command that sets one."""
    rows = [
        (name, json.dumps(field.default, ensure_ascii=False), field.description or "")
        for name, field in kind.model_fields.items()
    ]
    show_table(f"Settings of {kind.name} (--set KEY=VALUE)", ("key", "default", "meaning"), rows)
    typer.echo(f"Example: {example}")


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for place, column in enumerate(columns):
        shown.add_column(column, overflow="fold", style="cyan" if place == 0 else None, no_wrap=place == 0)
    for row in rows:
        shown.add_row(*(Text(cell) for cell in row))
    Console().print(shown)
