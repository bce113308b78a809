"""The gates' decisions as a Markdown table and as a picture: kinds of tokens against layers.

``found`` is what :func:`ambilm.evaluation.gates.gate_shares` gave.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEGEND = "Percent of the tokens that the gates send to expert 1, the bidirectionally tuned FFN."


def markdown(found: dict[str, Any]) -> str:
    """A row for each class of tokens: how many, the mean over layers, and the layers with the least and the most."""
    lines = ["| tokens | n | expert 1 (%) | least, layer | most, layer |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, entry in found["classes"].items():
        layers = np.array(entry["layers"])
        least, most = (f"{layers[place]:.1f}, {place}" for place in (layers.argmin(), layers.argmax()))
        lines.append(f"| {name} | {entry['n']:,} | {entry['share']:.1f} | {least} | {most} |")
    return "\n".join(lines) + f"\n\n{LEGEND} {found['documents']:,} documents; mean over layers, numbered from 0.\n"


def figure(found: dict[str, Any]) -> Figure:
    """A heat map, classes down and layers across."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    classes = found["classes"]
    shares = np.array([entry["layers"] for entry in classes.values()])  # (classes, layers)
    drawing = Figure(figsize=(3.5 + 0.24 * shares.shape[1], 1.6 + 0.32 * len(classes)), layout="constrained")
    axis = drawing.subplots()
    image = axis.imshow(shares, cmap="viridis", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    axis.set_yticks(range(len(classes)), [f"{name} ({entry['n']:,})" for name, entry in classes.items()], fontsize=9)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("layer")
    axis.set_title("Tokens on expert 1", fontsize=10, loc="left")
    drawing.colorbar(image, ax=axis, label="percent of the tokens")
    return drawing
