"""A task of lm-evaluation-harness with documents of ours: what ``knowledge`` asks for and ``harness`` runs.

A module of its own, because importing the harness costs seconds and needs an optional package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Served:
    """One of the harness's tasks, and the documents that it gets in place of the data set on the hub.

    Attributes:
        name: the harness's name of the task.
        splits: documents of each split, with the fields of the data set on the hub.
        folder: where the harness keeps the task's configuration; None when ``changes`` is all of it.
        changes: fields of the configuration that are set otherwise.
    """

    name: str
    splits: dict[str, list[dict[str, Any]]]
    folder: str | None = None
    changes: dict[str, Any] = field(default_factory=dict)
