"""``ambilm sheet`` and ``ambilm ratings``: written infills before human raters, and what they said in total."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ambilm.cli import files


def sheet(
    results: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Files of ambilm evaluate --tasks infills.", show_default=False),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The page, .html; its key goes to .key.json beside it.")
    ],
    task: Annotated[str, typer.Option(help="rocstories:infills or wikitext2:infills.")] = "rocstories:infills",
    rows: Annotated[
        str | None, typer.Option(help="Rows to show, separated by commas; all if not given.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Most texts, a seeded sample; all if not given.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample and of every order.")] = 0,
) -> None:
    """Write a blind side-by-side sheet of infills for human raters.

    The page needs no other file and no network, and works with the keyboard alone. It does not say who wrote what: give raters
    the page, keep the key. Raters send back the file that the page saves; [cyan]ambilm ratings[/cyan] totals them.
    """
    files.check_output(output, (".html",))
    for path in results:
        files.check_input(str(path))

    from ambilm.evaluation.rating import make_sheet

    made = make_sheet(results, task, rows.split(",") if rows else None, limit, seed)
    key = output.with_suffix(".key.json")
    for path, body in ((output, made.html), (key, made.key.model_dump_json(indent=1) + "\n")):
        with files.replacing(path) as part:
            part.write_text(body, encoding="utf-8")
        typer.echo(path)


def ratings(
    key: Annotated[Path, typer.Argument(metavar="KEY", help="The .key.json beside the page.", show_default=False)],
    answers: Annotated[
        list[Path],
        typer.Argument(metavar="ANSWERS...", help="What the page saved, a file a rater.", show_default=False),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="ratings.md (a table) or ratings.json (all figures).")],
) -> None:
    """Total the answers to a sheet: how often each row's infills fit, how often they are the best, how raters agree."""
    files.check_output(output, (".md", ".json"))
    for path in (key, *answers):
        files.check_input(str(path))

    from ambilm.evaluation.rating import markdown, total

    found = total(key, answers)
    table = markdown(found)
    with files.replacing(output) as part:
        part.write_text(table if output.suffix.lower() == ".md" else json.dumps(found) + "\n", encoding="utf-8")
    typer.echo(table, nl=False)
