"""The registry of tasks and groups, and :func:`evaluate`, which runs them and keeps the results file.

A family of tasks is a module with ``TASKS`` and ``GROUPS``; adding one to ``FAMILIES`` is all that a new family needs.
"""

from __future__ import annotations

import difflib
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ambilm.errors import UserError
from ambilm.evaluation import (
    infilling,
    infills,
    knowledge,
    mteb_tasks,
    own_text,
    perplexity,
    repetition,
    sts,
    token_probe,
)
from ambilm.evaluation.data import check_data, find
from ambilm.evaluation.results import Results, file_state, model_state
from ambilm.evaluation.task import Run, Task

if TYPE_CHECKING:
    from ambilm import AmbiLM

FAMILIES = (sts, token_probe, mteb_tasks, infilling, infills, perplexity, knowledge, repetition, own_text)
TASKS: dict[str, Task] = {task.name: task for family in FAMILIES for task in family.TASKS}
# A group runs those of its tasks whose data is there.
GROUPS: dict[str, tuple[str, ...]] = {name: names for family in FAMILIES for name, names in family.GROUPS.items()}


@dataclass(frozen=True)
class Job:
    """A task as asked for: ``key`` is its name in the results file."""

    key: str
    task: Task
    paths: list[Path]
    part: str | None = None
    row: str | None = None


def task_names() -> list[str]:
    """All names that ``--tasks`` takes, groups first."""
    return [*GROUPS, *(name for name in TASKS if name not in GROUPS)]


def evaluate(
    model: AmbiLM,
    tasks: str | Sequence[str],
    data: Sequence[str | Path],
    output: str | Path,
    limit: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, Any]:
    """Runs tasks on a model and keeps what is finished in a file.

    Args:
        tasks: names of tasks or groups, a list or separated by commas; ``stsb:dev`` names a part of the data,
            ``sts15@causal-mean`` another reading, ``mteb:SciFact`` a task of mteb.
        data: folders with task files; for ``own_text`` and ``perplexity`` the text files themselves; may be empty for
            ``mteb:`` tasks, whose rows come from the hub.
        output: the results file. Tasks that it already holds for the same model, data, limit and seed are kept.
        limit: most examples of each task, drawn with the seed; None for each task's default.
        progress: one line a task, and progress bars, on stderr.

    Returns:
        The content of the results file.

    Raises:
        UserError: unknown task, missing or broken data, a results file of another model.
    """
    if limit is not None and limit < 2:
        raise UserError(
            f"--limit {limit}: a figure needs at least 2 examples; give a larger number or leave --limit out."
        )
    jobs = expand(tasks, check_data(data))
    results = Results(Path(output), model.name, model_state(model))
    results.path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{results.path.name}.", dir=results.path.parent) as scratch:
        for job in jobs:
            run = {"limit": limit, "seed": seed, "data": file_state(job.paths)}
            if results.has(job.key, run):
                _say(progress, f"{job.key}: kept from {output}")
                continue
            started = time.perf_counter()
            entry = job.task.run(Run(model, job.paths, Path(scratch), job.part, job.row, limit, seed, progress))
            seconds = round(time.perf_counter() - started, 2)
            entry = {"main": entry["main"], "metric": job.task.metric, "n": entry["n"], "seconds": seconds, **entry}
            results.put(job.key, entry, run)
            _say(progress, f"{job.key}: {job.task.metric} {entry['main']:.4g} (n {entry['n']}, {seconds:.0f} s)")
    results.write()
    return results.content()


def expand(tasks: str | Iterable[str], data: Sequence[Path]) -> list[Job]:
    """Names into jobs, in the order asked for, none twice.

    Raises:
        UserError: for an unknown name, a task whose file is missing, or a group of which no file is there.
    """
    names = tasks.split(",") if isinstance(tasks, str) else list(tasks)
    jobs: dict[str, Job] = {}
    for name in (item.strip() for item in names):
        if name:
            jobs.update((job.key, job) for job in _group(name, data) or [_job(name, data)])
    if not jobs:
        raise UserError(f"--tasks names no task; known are {', '.join(task_names())}.")
    return list(jobs.values())


def _group(name: str, data: Sequence[Path]) -> list[Job]:
    if name not in GROUPS:
        return []
    members = [member for member in GROUPS[name] if _paths(TASKS[_split(member)[0]], data)]
    if not members:
        _check_given(name, data)
        stems = sorted({TASKS[_split(member)[0]].stem or member for member in GROUPS[name]})
        raise UserError(f"--tasks {name}: none of its files ({', '.join(stems)}) is in {_listed(data)}; check --data.")
    return [_job(member, data) for member in members]


def _job(name: str, data: Sequence[Path]) -> Job:
    base, part, row = _split(name)
    task = mteb_tasks.hub_task(base) if base.startswith(mteb_tasks.PREFIX) else TASKS.get(base)
    if task is None:
        close = difflib.get_close_matches(name, task_names(), n=3)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UserError(f"--tasks {name}: there is no such task; {hint}Known are {', '.join(task_names())}.")
    _check_option(name, "part", part, task.parts)
    _check_option(name, "row", row, task.rows)
    paths = _paths(task, data)
    if not paths and not task.from_hub:
        _check_given(name, data)
        missing = next(stem for stem in (task.stem, *task.beside) if stem and find(stem, data) is None)
        raise UserError(
            f"--tasks {name}: no file {missing}.jsonl.gz or {missing}.jsonl in {_listed(data)}; check --data."
        )
    return Job(name, task, paths, part, row)


def _split(name: str) -> tuple[str, str | None, str | None]:
    """``stsb:dev@causal-mean`` into task, part and row; a task's own name may hold a colon."""
    base, _, row = name.partition("@")
    if base in TASKS or base.startswith(mteb_tasks.PREFIX):
        return base, None, row or None
    base, _, part = base.partition(":")
    return base, part or None, row or None


def _check_option(name: str, kind: str, value: str | None, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        choice = f"choose from {', '.join(known)}" if known else f"this task has no {kind}s to choose from"
        raise UserError(f"--tasks {name}: unknown {kind} {value!r}; {choice}.")


def _paths(task: Task, data: Sequence[Path]) -> list[Path]:
    """The task's files in the folders, all or none; for the user's own text the files given, or else the folders."""
    if task.stem is None:
        return [] if task.from_hub else [path for path in data if path.is_file()] or list(data)
    folders = [path for path in data if path.is_dir()]
    found = [path for stem in (task.stem, *task.beside) if (path := find(stem, folders)) is not None]
    if len(found) < 1 + len(task.beside):
        return []
    return found + [path for stem in task.optional if (path := find(stem, folders)) is not None]


def _check_given(name: str, data: Sequence[Path]) -> None:
    if not data:
        raise UserError(
            f"--tasks {name} needs --data: a folder with task files such as sts15.jsonl.gz, or a text file for own_text."
        )


def _listed(data: Sequence[Path]) -> str:
    return ", ".join(str(path) for path in data)


def _say(progress: bool, line: str) -> None:
    if progress:
        print(line, file=sys.stderr, flush=True)
