"""What a task is: a name, where its rows come from, and a function from a run to figures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ambilm import AmbiLM


@dataclass(frozen=True)
class Run:
    """One task on one model.

    Attributes:
        paths: the task's files, or the user's own text files for tasks without a stem; none where the hub has the rows.
        part: the part (``split``) of the data; None for the task's own choice.
        row: another reading, mostly one of ``READINGS`` (``causal-mean`` …); None for the model as it is.
        limit: most examples, drawn with the seed; None for the task's default.
        scratch: a folder that the tasks of one evaluation share and that is gone after it.
    """

    model: AmbiLM
    paths: list[Path]
    scratch: Path
    part: str | None = None
    row: str | None = None
    limit: int | None = None
    seed: int = 0
    progress: bool = False

    @property
    def path(self) -> Path:
        return self.paths[0]

    @property
    def row_options(self) -> dict[str, Any]:
        """Options of ``encode`` for a training-free row: it reads the base weights."""
        return {"reading": self.row, "weights": "base"} if self.row else {}


@dataclass(frozen=True)
class Task:
    """A task that ``ambilm evaluate`` knows.

    Attributes:
        stem: stem of the data file; None for a task on the user's own text.
        metric: what ``main`` is.
        run: gives the entry: ``main``, ``n`` and whatever else the task reports.
        parts: data parts that may be asked for as ``NAME:PART``; the first one is the default.
        rows: other readings, most of them training-free, that may be asked for as ``NAME@ROW``.
        beside: stems of the other files that the task needs, beside the first one.
        optional: stems of files that the task takes where they are there.
        from_hub: whether the rows come from the hub where no data folder has the files.
    """

    name: str
    stem: str | None
    metric: str
    run: Callable[[Run], dict[str, Any]]
    parts: tuple[str, ...] = ()
    rows: tuple[str, ...] = field(default=())
    beside: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    from_hub: bool = False
