"""Attention dependence of several models side by side: a Markdown table, bars by length, heat maps of the heads.

``found`` is what :func:`ambilm.evaluation.dependence.dependence_by_bin` gave, under the name of each model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Found = dict[str, dict[str, Any]]

# The order of the columns and panels: what lies ahead is the finding.
TITLES = {
    "after": "later tokens (DP_after)",
    "before": "earlier tokens (DP_before)",
    "main": "the token itself (DP_main)",
}
AFTER = 2  # place of "after" in the arrays
LEGEND = (
    "Percent of a token's attention without the causal mask, over hidden states of the causal model; mean over texts, "
    "layers and heads, ± its standard error."
)
PANELS_A_ROW = 4


def json_ready(found: Found) -> Found:
    """The same with lists for arrays, rounded to what float32 scores can say."""
    arrays = ("layers", "heads")
    return {
        model: {**entry, **{name: np.round(entry[name].astype(np.float64), 4).tolist() for name in arrays}}
        for model, entry in found.items()
    }


def markdown(found: Found) -> str:
    """A row for each model and side, a column for each bin."""
    bins = [row["tokens"] for row in next(iter(found.values()))["bins"]]
    lines = [["attention to", "model", *bins], ["---", "---", *("---:" for _ in bins)]]
    for side, title in TITLES.items():
        lines += [[title, _escaped(model), *(_cell(row, side) for row in entry["bins"])]
                  for model, entry in found.items()]  # fmt: skip
    lines += [["texts", _escaped(model), *(str(row["n"]) for row in entry["bins"])] for model, entry in found.items()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{LEGEND} The columns are tokens of a text.\n"


def _escaped(model: str) -> str:
    return model.replace("|", "\\|")


def _cell(row: dict[str, Any], side: str) -> str:
    if row[side] is None:
        return "–"
    error = row[f"{side}_error"]
    return f"{row[side]:.2f}" + ("" if error is None else f" ± {error:.2f}")


def bins_figure(found: Found) -> Figure:
    """Bars of the bins, the models side by side, a panel for each side; whiskers of two standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    axes = figure.subplots(1, len(TITLES))
    width = 0.8 / len(found)
    for axis, (side, title) in zip(axes, TITLES.items(), strict=True):
        for number, (model, entry) in enumerate(found.items()):
            rows = [(place, row) for place, row in enumerate(entry["bins"]) if row["n"]]
            axis.bar(
                [place + (number - (len(found) - 1) / 2) * width for place, _ in rows],
                [row[side] for _, row in rows],
                width,
                yerr=[2 * (row[f"{side}_error"] or 0) for _, row in rows],
                label=model,
                error_kw={"linewidth": 0.8},
            )
        names = [row["tokens"] for row in entry["bins"]]
        axis.set_xticks(range(len(names)), names, fontsize=9)
        axis.set_xlabel("tokens of the text")
        axis.set_title(title, fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("attention (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(found), 4), frameon=False)
    return figure


def heads_figure(found: Found) -> Figure:
    """Attention to later tokens of every layer and head, a panel for each model, one scale of colours for all."""
    from matplotlib.figure import Figure

    columns = min(len(found), PANELS_A_ROW)
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(3.2 * columns + 1.2, 4.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    highest = max(entry["heads"][:, :, AFTER].max() for entry in found.values())
    for axis, (model, entry) in zip(axes.flat, found.items(), strict=False):
        image = axis.imshow(
            entry["heads"][:, :, AFTER], cmap="viridis", vmin=0, vmax=highest, aspect="auto", interpolation="nearest"
        )
        axis.set_title(model, fontsize=10, loc="left")
        axis.set_xlabel("head")
        axis.set_ylabel("layer")
        for ticks in (axis.xaxis, axis.yaxis):
            ticks.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=axes, label="attention to later tokens (%)")
    return figure
