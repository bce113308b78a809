"""A step's views as tensors: packed into one row, or padded for the three-pass reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ambilm.attention import Layout, Tokens
from ambilm.objectives.views import NO_TARGET, View


@dataclass(frozen=True)
class Batch:
    """Views as the model takes them.

    Attributes:
        ids, targets, objective: (batch, length).
        layout: roles and positions.
        lengths: tokens of each view, in order.
    """

    ids: Tensor
    targets: Tensor
    objective: Tensor
    layout: Layout
    lengths: list[int]

    @property
    def tokens(self) -> int:
        return sum(self.lengths)


def _layout(tokens: Tokens, dropout: float, sink: bool) -> Layout:
    return Layout.of(tokens.with_sinks() if sink else tokens, dropout=dropout)


def packed_batch(views: Sequence[View], device: torch.device | str, dropout: float, sink: bool) -> Batch:
    """All views one after the other in a single row: no padding, one pass."""

    def row(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([getattr(view, name) for view in views])).to(device)[None]

    lengths = [len(view) for view in views]
    layout = _layout(Tokens.packed(lengths, row("is_span"), row("position")), dropout, sink)
    return Batch(row("ids"), row("targets"), row("objective"), layout, lengths)


def padded_batch(views: Sequence[View], device: torch.device | str, dropout: float, sink: bool) -> Batch:
    """One view a row, padded to the longest."""
    lengths = [len(view) for view in views]

    def rows(name: str, fill: int) -> Tensor:
        table = np.full((len(views), max(lengths)), fill, dtype=getattr(views[0], name).dtype)
        for number, view in enumerate(views):
            table[number, : len(view)] = getattr(view, name)
        return torch.from_numpy(table).to(device)

    layout = _layout(Tokens.padded(lengths, rows("is_span", 0), rows("position", 0)), dropout, sink)
    return Batch(rows("ids", 0), rows("targets", NO_TARGET), rows("objective", 0), layout, lengths)
