"""Written infills before human raters: a blind side-by-side sheet, and the totals of what the raters answered.

The page holds texts and fillings alone; which row wrote which filling stands in a key, a file beside it (MAGNET, section
4.3, has people judge whether an infill fits). Rows that wrote the same text share one place on the sheet and its judgements.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from sklearn.metrics import cohen_kappa_score

from ambilm.errors import UserError
from ambilm.evaluation.data import first_problem, sample
from ambilm.evaluation.results import load
from ambilm.evaluation.statistics import mean_figures

REMOVED = "removed"  # the row of what really stood in the gap
CONTEXT = ("left", "right")


class Key(BaseModel):
    """Who wrote what: for each text of a sheet, for each filling in the order shown, the rows that wrote it."""

    model_config = ConfigDict(extra="forbid")

    sheet: str
    task: str
    seed: int
    items: Annotated[list[list[Annotated[list[str], Field(min_length=1)]]], Field(min_length=1)]


class Answer(BaseModel):
    """Of one text: for each filling whether it fits, and the place of the best; None where nothing was chosen."""

    model_config = ConfigDict(extra="forbid")

    fits: list[bool | None]
    best: Annotated[int, Field(ge=0)] | None

    @model_validator(mode="after")
    def _best_is_one_of_them(self) -> Self:
        if self.best is not None and self.best >= len(self.fits):
            raise ValueError(f"best is {self.best}, but there are {len(self.fits)} fillings")
        return self


class Answers(BaseModel):
    """What one rater answered, one entry for each text of the sheet."""

    model_config = ConfigDict(extra="forbid")

    sheet: str
    rater: Annotated[str, Field(min_length=1)]
    answers: list[Answer]


@dataclass(frozen=True)
class Sheet:
    """A page for raters, and the key that they must not see."""

    html: str
    key: Key


def make_sheet(
    results: Sequence[Path], task: str, rows: Sequence[str] | None = None, limit: int | None = None, seed: int = 0
) -> Sheet:
    """A sheet of the infills in results files.

    Args:
        results: files with a task of the group ``infills``, over the same texts.
        rows: of these rows alone (``infill``, ``removed`` …); None for all.
        limit: most texts, drawn with the seed; None for all.

    Raises:
        UserError: when a file lacks the task, its texts are not those of the first file, or a row is unknown.
    """
    texts, written = _written(results, task)
    chosen = {name: column for name, column in written.items() if rows is None or name.split(":")[-1] in rows}
    unknown = sorted(set(rows or ()) - {name.split(":")[-1] for name in written})
    if unknown or len(chosen) < 2:
        known = ", ".join(sorted({name.split(":")[-1] for name in written}))
        wrong = f"--rows {', '.join(unknown)} not written" if unknown else "one row alone cannot be compared"
        raise UserError(f"{results[0]}: {wrong}; choose two or more of {known}.")
    places = sample(range(len(texts)), limit, seed)
    random.Random(f"sheet {seed}").shuffle(places)
    items, key = [], []
    for place in places:
        writers: dict[str, list[str]] = {}
        for name, column in chosen.items():
            writers.setdefault(column[place], []).append(name)
        candidates = list(writers)
        random.Random(f"sheet {seed} {place}").shuffle(candidates)
        items.append({**texts[place], "candidates": candidates})
        key.append([writers[text] for text in candidates])
    digest = hashlib.sha256(json.dumps(items).encode()).hexdigest()[:12]
    content = json.dumps({"sheet": digest, "items": items}, ensure_ascii=False).replace("<", "\\u003c")
    page = files("ambilm.evaluation").joinpath("sheet.html").read_text(encoding="utf-8")
    return Sheet(page.replace(">SHEET<", f">{content}<"), Key(sheet=digest, task=task, seed=seed, items=key))


def _written(results: Sequence[Path], task: str) -> tuple[list[dict[str, str]], dict[str, list[str]]]:
    """The texts with their gap, and what each row wrote: ``FILE:row``, or ``removed``.

    A row that wrote the same everywhere as an earlier one is left out: two models over one base share the base's rows.
    """
    written: dict[str, list[str]] = {}
    first: list[dict[str, str]] = []
    for path in results:
        entry = load(path)["tasks"].get(task)
        if entry is None or "texts" not in entry:
            raise UserError(f"{path} has no written infills of {task}; run `ambilm evaluate M --tasks {task}` first.")
        texts = [{name: text[name] for name in (*CONTEXT, REMOVED)} for text in entry["texts"]]
        first = first or texts
        if texts != first:
            raise UserError(f"{path} fills other texts than {results[0]}: evaluate both with one --limit and --seed.")
        for row in entry["rows"]:
            column = [text[row] for text in entry["texts"]]
            if column not in written.values():
                written[f"{path.stem}:{row}"] = column
    written[REMOVED] = [text[REMOVED] for text in first]
    return [{name: text[name] for name in CONTEXT} for text in first], written


FileType = TypeVar("FileType", bound=BaseModel)


def read(path: Path, kind: type[FileType]) -> FileType:
    """A key or a file of answers, checked.

    Raises:
        UserError: when it cannot be read or is something else.
    """
    what = "key that `ambilm sheet` wrote" if kind is Key else "file of answers saved from a sheet"
    try:
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); give a {what}.") from None
    except ValidationError as error:
        raise UserError(f"{path} is no {what}: {first_problem(error)}.") from None


def total(key_path: Path, answer_paths: Sequence[Path]) -> dict[str, Any]:
    """What the raters said of each row.

    Returns:
        ``rows``: for each row ``fits`` and ``best``, shares of its judgements over texts (a text's raters averaged first,
        so that the errors are over texts); ``raters``; ``judgements``; ``agreement``, the share of fillings on
        which two raters say the same of fitting, and ``kappa`` (Cohen), over all pairs of raters, None where no two answered
        the same.

    Raises:
        UserError: for broken files, answers to another sheet, a rater twice, or no answer at all.
    """
    key = read(key_path, Key)
    answers: dict[str, list[Answer]] = {}
    for path in answer_paths:
        found = read(path, Answers)
        shape = [len(answer.fits) for answer in found.answers]
        if found.sheet != key.sheet or shape != [len(item) for item in key.items]:
            raise UserError(f"{path} answers another sheet ({found.sheet}) than {key_path} ({key.sheet}) belongs to.")
        if found.rater in answers:
            raise UserError(f"{path}: {found.rater!r} answered twice; give one file a rater.")
        answers[found.rater] = found.answers
    names = list(dict.fromkeys(name for item in key.items for writers in item for name in writers))
    rows = {name: _row(name, key, list(answers.values())) for name in names}
    judged = sum(fit is not None for given in answers.values() for answer in given for fit in answer.fits)
    if not judged or any(figures["fits"] is None for figures in rows.values()):
        raise UserError(f"{key_path}: a row has no judgement at all; let the raters judge more texts.")
    return {
        "task": key.task,
        "raters": list(answers),
        "judgements": judged,
        "rows": rows,
        **_agreement([*answers.values()]),
    }


def _row(name: str, key: Key, raters: Sequence[list[Answer]]) -> dict[str, Any]:
    fits, best = [], []
    for place, item in enumerate(key.items):
        number = next((number for number, writers in enumerate(item) if name in writers), None)
        given = [answers[place] for answers in raters]
        said = [fit for answer in given if number is not None and (fit := answer.fits[number]) is not None]
        chose = [answer.best == number for answer in given if answer.best is not None]
        fits += [float(np.mean(said))] if said else []
        best += [float(np.mean(chose))] if chose else []
    return {"fits": mean_figures(fits) if fits else None, "best": mean_figures(best) if best else None}


def _agreement(raters: Sequence[list[Answer]]) -> dict[str, float | None]:
    pairs = list(_pairs(raters))
    if not pairs:
        return {"agreement": None, "kappa": None}
    left, right = zip(*pairs, strict=True)
    constant = len({*left, *right}) == 1  # kappa is 0 / 0 where all say the same
    return {
        "agreement": float(np.mean(np.equal(left, right))),
        "kappa": None if constant else float(cohen_kappa_score(left, right)),
    }


def _pairs(raters: Sequence[list[Answer]]) -> Iterator[tuple[bool, bool]]:
    """What two raters said of one filling, for every two raters and every filling that both judged."""
    for one, other in combinations(raters, 2):
        for mine, theirs in zip(one, other, strict=True):
            for left, right in zip(mine.fits, theirs.fits, strict=True):
                if left is not None and right is not None:
                    yield left, right


def markdown(found: dict[str, Any]) -> str:
    """The totals as a table, the most fitting row first."""
    lines = ["| row | fits (%) | 95 % | best (%) | texts |", "| --- | ---: | ---: | ---: | ---: |"]
    for name, row in sorted(found["rows"].items(), key=lambda pair: -pair[1]["fits"]["main"]):
        fits, best = row["fits"], row["best"]
        interval = " to ".join(f"{100 * bound:.0f}" for bound in fits["confidence_95"] or ())
        share = "" if best is None else f"{100 * best['main']:.0f}"
        lines.append(f"| {name} | {100 * fits['main']:.0f} | {interval} | {share} | {fits['n']} |")
    told = f"{found['task']}: raters {len(found['raters'])}, judgements {found['judgements']:,}"
    if found["agreement"] is not None:
        told += f"; two raters agree on {100 * found['agreement']:.0f} %"
        told += "" if found["kappa"] is None else f" (kappa {found['kappa']:.2f})"
    return "\n".join(lines) + f"\n\n{told}.\n"
