"""The demo's pictures, drawn by matplotlib: attention layouts, loss curves, attention dependence."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from ambilm.attention.layout import Layout, may_see

INK, FAINT, GRID = "#22303c", "#6b7a87", "#e3e7ea"
BASE, ADAPTED, SPAN = "#9aa7b2", "#0f766e", "#d97706"
WORDS = ("start", "She", "took", "the", "train", "home", "and", "slept")
MISSING = (3, 4, 5)  # the words that are a missing span in the picture of the infill layout
PREFIX = 4


def layouts() -> dict[str, np.ndarray]:
    """Who sees whom in the four layouts for eight tokens, as the package's own rule says it: (8, 8) each.

    0 hidden, 1 seen by a context token, 2 seen by a span token.
    """
    length = len(WORDS)
    is_span = torch.tensor([[place in MISSING for place in range(length)]])
    named = {
        "causal": Layout.padded("causal", [length]),
        "bidirectional": Layout.padded("bidirectional", [length]),
        "prefix": Layout.padded("prefix", [length], prefix=[PREFIX]),
        "infill": Layout.padded("infill", [length], is_span=is_span),
    }
    pictures = {}
    for name, layout in named.items():
        tokens = layout.queries.with_sinks()
        visible = may_see(tokens, tokens)[0]  # (length, length)
        pictures[name] = (visible * torch.where(tokens.is_span[0], 2, 1)[:, None]).numpy()
    return pictures


def layouts_figure(columns: int = 4) -> Figure:
    """The four layouts as matrices."""
    rows = 4 // columns
    figure = Figure(figsize=(2.75 * columns, 2.95 * rows), layout="constrained")
    colours = ListedColormap(["#f4f6f7", ADAPTED, SPAN])
    for axis, (name, picture) in zip(figure.subplots(rows, columns).flat, layouts().items(), strict=True):
        axis.imshow(picture, cmap=colours, vmin=0, vmax=2)
        axis.set_title(name, fontsize=11, color=INK, loc="left", fontweight="bold")
        axis.set_xticks(range(len(WORDS)), WORDS, rotation=90, fontsize=8, color=FAINT)
        axis.set_yticks(range(len(WORDS)), WORDS, fontsize=8, color=FAINT)
        axis.set_xticks(np.arange(-0.5, len(WORDS)), minor=True)
        axis.set_yticks(np.arange(-0.5, len(WORDS)), minor=True)
        axis.grid(which="minor", color="white", linewidth=1.5)
        axis.tick_params(which="both", length=0)
        axis.spines[:].set_visible(False)
    return figure


def losses_figure(log: Sequence[dict[str, Any]]) -> Figure:
    """The losses of every step, one panel for the token losses and one for the contrastive one."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [line["step"] + 1 for line in log]
    for name, label, colour in (("mntp", "MNTP", ADAPTED), ("msg", "MSG", SPAN)):
        left.plot(steps, [line[name] for line in log], color=colour, linewidth=1.8, marker=".", label=label)
    second = [line for line in log if "sscl" in line]
    right.plot(
        [line["step"] + 1 for line in second], [line["sscl"] for line in second],
        color=INK, linewidth=1.8, marker=".", label="SSCL",
    )  # fmt: skip
    if second and second[0]["step"] > 0:
        left.axvline(second[0]["step"] + 0.5, color=FAINT, linewidth=0.8, linestyle=":", label="second stage begins")
    for axis, title in ((left, "predicting tokens (nats)"), (right, "telling sentences apart (nats)")):
        _plain(axis, title)
        axis.set_xlabel("step", color=FAINT)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend(frameon=False, fontsize=8, labelcolor=INK)
    return figure


def dependence_figure(dependence: dict[str, dict[str, Any]]) -> Figure:
    """Where attention would go without a mask: in all, and towards later tokens layer by layer."""
    figure = Figure(figsize=(9, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    parts = (("before", "earlier tokens", BASE), ("main", "the token itself", INK), ("after", "later tokens", SPAN))
    start = np.zeros(len(dependence))
    for key, label, colour in parts:
        values = np.array([found[key] for found in dependence.values()])
        left.barh(list(dependence), values, left=start, color=colour, height=0.55, label=label)
        start = start + values
    left.invert_yaxis()
    left.set_xlim(0, 100)
    _plain(left, "attention goes to (%)")
    left.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.12), labelcolor=INK)
    for name, colour in (("base", BASE), ("adapted", ADAPTED)):
        later = dependence[name]["layers"][:, 2]  # (layers,)
        right.plot(range(1, len(later) + 1), later, color=colour, linewidth=1.8, label=name)
    _plain(right, "to later tokens, layer by layer (%)")
    right.set_xlabel("layer", color=FAINT)
    right.set_ylim(bottom=0)
    right.legend(frameon=False, fontsize=8, labelcolor=INK)
    return figure


def _plain(axis: Axes, title: str) -> None:
    axis.set_title(title, fontsize=10, color=INK, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(GRID)
    axis.tick_params(colors=FAINT, labelsize=8)


def data_uri(figure: Figure) -> str:
    """The figure as a PNG inside a ``data:`` address, so that a page needs no other file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
