"""A report of sections with tables, plots and the commands behind them, as Markdown and as one HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ambilm import __version__
from ambilm.evaluation.results import versions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = (
    "body{font:16px/1.55 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#22303c}"
    "table{border-collapse:collapse;margin:1rem 0}.wide{overflow-x:auto}"
    "td,th{padding:.3rem .8rem;border-bottom:1px solid #ccc;text-align:right;white-space:nowrap}"
    "td:first-child,th:first-child{text-align:left}img{max-width:100%}"
    "pre{background:#f4f6f8;padding:.8rem;overflow-x:auto;font-size:13px}"
)


@dataclass(frozen=True)
class Section:
    """One table with what is to be said about it.

    Attributes:
        rows: the table, its header first; the first column names the row.
        notes: paragraphs under the table.
        commands: how to get the figures by hand.
        figures: plots by the name of their file.
    """

    title: str
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    figures: dict[str, Figure] = field(default_factory=dict)


def write_report(output: Path, name: str, title: str, sections: Sequence[Section]) -> Path:
    """Writes ``NAME.md``, ``NAME.html`` and the plots into ``output``, each complete or absent.

    Returns:
        path of the Markdown file.
    """
    for section in sections:
        for file, figure in section.figures.items():
            temporary = output / f".{file}.part"
            figure.savefig(temporary, dpi=150, format="png")
            temporary.replace(output / file)
    for suffix, text in ((".md", markdown(title, sections)), (".html", page(title, sections))):
        temporary = output / f".{name}{suffix}.part"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(output / f"{name}{suffix}")
    return output / f"{name}.md"


def made_with() -> str:
    """The versions that decide the figures."""
    return f"AmbiLM {__version__}; " + ", ".join(f"{package} {number}" for package, number in versions().items())


def markdown(title: str, sections: Sequence[Section]) -> str:
    """The report as Markdown."""
    parts = [f"# {title}", made_with() + "."]
    for section in sections:
        parts += [f"## {section.title}", _markdown_table(section.rows), *section.notes]
        parts += [f"![{section.title}]({file})" for file in section.figures]
        if section.commands:
            parts.append("```\n" + "\n".join(section.commands) + "\n```")
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_table(rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    rule = ["---", *("---:" for _ in rows[0][1:])]
    lines = [rows[0], rule, *rows[1:]]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def page(title: str, sections: Sequence[Section]) -> str:
    """The report as a page; its plots lie beside it."""
    body = "\n".join(_html_section(section) for section in sections)
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{STYLE}</style>\n<h1>{html.escape(title)}</h1>\n<p>{html.escape(made_with())}.</p>\n{body}\n</html>\n"
    )


def _html_section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.rows:
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in section.rows[0])
        body = "\n".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in section.rows[1:]
        )
        parts.append(f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>')
    parts += [f"<p>{html.escape(note)}</p>" for note in section.notes]
    parts += [f'<p><img src="{file}" alt="{html.escape(section.title)}"></p>' for file in section.figures]
    if section.commands:
        parts.append(f"<pre>{html.escape(chr(10).join(section.commands))}</pre>")
    return "\n".join(parts)
