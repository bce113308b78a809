"""Results files side by side: a table (.md or .html) or a bar chart (.png).

The first file is the "before": every other column shows its difference from it. The best figure of a row is bold, and
``≈`` marks a difference from the best that is within two standard errors.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ambilm.errors import UserError
from ambilm.evaluation.results import load

SUFFIXES = (".md", ".html", ".png")
# Readings of the same examples that infilling tasks report beside ``main``: key, its error, label.
BESIDE = (
    ("left_to_right", "left_to_right_error", "base, left to right"),
    ("untrained_hybrid", None, "both sides, untrained"),
    ("untrained_paper_mask", None, "both sides, untrained, paper's mask"),
    ("fixed_gap", None, "both sides, reserved gap"),
    ("causal_perplexity", "causal_perplexity_error", "causal perplexity"),
    ("mrr", "mrr_error", "MRR"),
    ("recall_at_10", "recall_at_10_error", "recall@10"),
    ("recall_at_100", "recall_at_100_error", "recall@100"),
    ("mrr_at_10", None, "MRR@10"),
    ("target_perplexity", "target_perplexity_error", "target perplexity"),
    ("acc_norm", "acc_norm_error", "by length of the choice"),
    ("mc1", "mc1_error", "mc1"),
    ("flexible", "flexible_error", "last number"),
    ("f1", "f1_error", "F1"),
    ("exact_match", "exact_match_error", "exact match"),
    ("rep_sen", "rep_sen_error", "Rep-Sen"),
    ("merged_rep_4", "merged_rep_4_error", "merged"),
    ("merged_rep_sen", "merged_rep_sen_error", "Rep-Sen, merged"),
)
# Of these, metrics of their own; the others are the task's metric in another reading.
OWN_METRICS = {
    "mrr": "MRR", "recall_at_10": "recall", "recall_at_100": "recall", "mrr_at_10": "MRR", "mc1": "mc1", "f1": "F1",
    "exact_match": "exact match", "rep_sen": "Rep-Sen", "merged_rep_sen": "Rep-Sen",
}  # fmt: skip
STS_TASKS = ("sts12", "sts13", "sts14", "sts15", "sts16", "sts17", "sts22", "stsb", "sickr", "biosses")
LEGEND = (
    "Bold: the best of the row. ≈: within two standard errors of the best. "
    "In brackets: the difference from the first column."
)


@dataclass(frozen=True)
class Figure:
    value: float
    error: float | None = None


@dataclass(frozen=True)
class Line:
    """One row of the table; ``figures`` has one entry a model, None where that model was not measured."""

    name: str
    metric: str
    figures: list[Figure | None]

    @property
    def is_perplexity(self) -> bool:
        return "perplexity" in self.metric

    @property
    def lower_is_better(self) -> bool:
        return self.is_perplexity or self.metric.startswith("Rep-")

    def best(self) -> Figure | None:
        known = [figure for figure in self.figures if figure is not None]
        if len({figure.value for figure in known}) < 2:
            return None
        return (min if self.lower_is_better else max)(known, key=lambda figure: figure.value)


def compare(results: Sequence[str | Path], output: str | Path) -> None:
    """Writes a comparison of results files.

    Args:
        results: files that ``ambilm evaluate`` wrote, the "before" first.
        output: ``.md``, ``.html`` or ``.png``.

    Raises:
        UserError: a file that is not a results file, or another suffix.
    """
    target = Path(output)
    if target.suffix.lower() not in SUFFIXES:
        raise UserError(f"--output {target}: the suffix says the format and must be one of {', '.join(SUFFIXES)}.")
    names, lines = comparison([Path(path) for path in results])
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".part-{target.name}")
    if target.suffix.lower() == ".png":
        _plot(names, lines, temporary)
    else:
        text = markdown(names, lines) if target.suffix.lower() == ".md" else html_page(names, lines)
        temporary.write_text(text, encoding="utf-8")
    temporary.replace(target)


def comparison(paths: Sequence[Path]) -> tuple[list[str], list[Line]]:
    """Column names and rows of the comparison.

    Raises:
        UserError: no file, a wrong file, or no task in any of them.
    """
    if not paths:
        raise UserError("compare needs at least one results file; give files that `ambilm evaluate` wrote.")
    contents = [load(path) for path in paths]
    tables = [content["tasks"] for content in contents]
    tasks = list(dict.fromkeys(task for table in tables for task in table))
    if not tasks:
        raise UserError(f"{', '.join(map(str, paths))}: no finished task in it; run `ambilm evaluate` first.")
    lines = [line for task in tasks for line in _lines(task, [table.get(task) for table in tables])]
    return _names(contents, paths), lines + _sts_means(lines)


def _names(contents: Sequence[dict[str, Any]], paths: Sequence[Path]) -> list[str]:
    """Models by name; by file too where two share one."""
    models = [Path(content["model"]).name or content["model"] for content in contents]
    return [
        f"{model} ({path.stem})" if models.count(model) > 1 else model
        for model, path in zip(models, paths, strict=True)
    ]


def _lines(task: str, entries: Sequence[dict[str, Any] | None]) -> list[Line]:
    metric = next(str(entry.get("metric", "")) for entry in entries if entry is not None)
    lines = [Line(task, metric, [_figure(entry, "main", "standard_error") for entry in entries])]
    for key, error, label in BESIDE:
        figures = [_figure(entry, key, error) for entry in entries]
        if any(figures):
            beside = label if "perplexity" in label else OWN_METRICS.get(key, metric)
            lines.append(Line(f"{task}: {label}", beside, figures))
    return lines


def _figure(entry: dict[str, Any] | None, key: str, error: str | None) -> Figure | None:
    value = (entry or {}).get(key)
    if not isinstance(value, int | float):
        return None
    return Figure(float(value), (entry or {}).get(error) if error else None)


def _sts_means(lines: Sequence[Line]) -> list[Line]:
    """The mean over the STS tasks that every model has, one row for the models and one for each training-free row."""
    rows: dict[str, list[Line]] = {}
    for line in lines:
        task, _, row = line.name.partition("@")
        if task in STS_TASKS:
            rows.setdefault(row, []).append(line)
    means = []
    for row, members in rows.items():
        columns = [index for index in range(len(members[0].figures)) if any(line.figures[index] for line in members)]
        shared = [line for line in members if all(line.figures[index] for index in columns)]
        if len(shared) > 1:
            name = f"STS mean of {len(shared)}" + (f"@{row}" if row else "")
            means.append(
                Line(
                    name,
                    "spearman",
                    [_mean([line.figures[i] for line in shared]) for i in range(len(shared[0].figures))],
                )
            )
    return means


def _mean(figures: Sequence[Figure | None]) -> Figure | None:
    known = [figure for figure in figures if figure is not None]
    if len(known) < len(figures):
        return None
    errors = [figure.error for figure in known if figure.error is not None]
    error = math.sqrt(sum(e * e for e in errors)) / len(known) if len(errors) == len(known) else None
    return Figure(sum(figure.value for figure in known) / len(known), error)


def within_noise(first: Figure, second: Figure) -> bool:
    """Whether two figures differ by at most two standard errors of their difference (taken as independent)."""
    if first.error is None or second.error is None:
        return first.value == second.value
    return abs(first.value - second.value) <= 2 * math.hypot(first.error, second.error)


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"


def _cell(line: Line, column: int, bold: tuple[str, str]) -> str:
    figure, first, best = line.figures[column], line.figures[0], line.best()
    if figure is None:
        return "–"
    text = _number(figure.value) + (f" ± {_number(figure.error)}" if figure.error is not None else "")
    if best is not None and figure.value == best.value:
        text = f"{bold[0]}{text}{bold[1]}"
    elif best is not None and within_noise(figure, best):
        text += " ≈"
    if column and first is not None:
        difference = figure.value - first.value
        text += f" ({'+' if difference >= 0 else '−'}{_number(abs(difference))})"
    return text


def _table(names: Sequence[str], lines: Sequence[Line], bold: tuple[str, str]) -> list[list[str]]:
    rows = [["task", "metric", *names]]
    for line in lines:
        metric = f"{line.metric} {'↓' if line.lower_is_better else '↑'}"
        rows.append([line.name, metric, *(_cell(line, column, bold) for column in range(len(names)))])
    return rows


def markdown(names: Sequence[str], lines: Sequence[Line]) -> str:
    """The comparison as a Markdown table."""
    rows = _table([name.replace("|", "\\|") for name in names], lines, ("**", "**"))
    rows.insert(1, ["---", "---", *("---:" for _ in names)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{LEGEND}\n"


def html_table(names: Sequence[str], lines: Sequence[Line]) -> str:
    """The comparison as one HTML ``<table>``, for a page of one's own."""
    header, *body = _table([html.escape(name) for name in names], lines, ("<b>", "</b>"))
    head = "".join(f"<th>{cell}</th>" for cell in header)
    rows = "\n".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in body)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>"


def html_page(names: Sequence[str], lines: Sequence[Line]) -> str:
    """The comparison as a page that needs no other file."""
    style = (
        "body{font:15px system-ui,sans-serif;margin:2rem}table{border-collapse:collapse}"
        "td,th{padding:.3rem .8rem;border-bottom:1px solid #ccc;text-align:left}"
        "td:nth-child(n+3),th:nth-child(n+3){text-align:right}"
    )
    return (
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>AmbiLM results</title><style>{style}</style>\n'
        f"<h1>AmbiLM results</h1>\n{html_table(names, lines)}\n<p>{LEGEND}</p>\n</html>\n"
    )


def _plot(names: Sequence[str], lines: Sequence[Line], path: Path) -> None:
    """Bars of every row, one panel for each direction, whiskers of two standard errors."""
    from matplotlib.figure import Figure as Canvas

    panels = [
        ("higher is better", [line for line in lines if not line.lower_is_better]),
        ("lower is better (log scale)", [line for line in lines if line.is_perplexity]),
        ("lower is better", [line for line in lines if line.lower_is_better and not line.is_perplexity]),
    ]
    panels = [panel for panel in panels if panel[1]]
    heights = [len(members) * (0.2 * len(names) + 0.25) + 0.6 for _, members in panels]
    canvas = Canvas(figsize=(9, sum(heights) + 0.6), layout="constrained")
    axes = canvas.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    thickness = 0.8 / len(names)
    for axis, (title, members) in zip(axes, panels, strict=True):
        for column, name in enumerate(names):
            known = [(place, line.figures[column]) for place, line in enumerate(members)]
            bars = [(place, figure) for place, figure in known if figure is not None]
            axis.barh(
                [place + (column - (len(names) - 1) / 2) * thickness for place, _ in bars],
                [figure.value for _, figure in bars],
                thickness,
                xerr=[2 * (figure.error or 0) for _, figure in bars],
                label=name,
                error_kw={"linewidth": 0.8},
            )
        axis.set_yticks(range(len(members)), [line.name for line in members])
        axis.invert_yaxis()
        axis.set_title(title, fontsize=10, loc="left")
        if members[0].is_perplexity:
            axis.set_xscale("log")
            axis.set_xlim(left=1)  # the perplexity of a model that knows everything
            axis.xaxis.set_major_formatter("{x:g}")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.12), ncols=min(len(names), 3), frameon=False)
    canvas.savefig(path, dpi=150, format="png")
