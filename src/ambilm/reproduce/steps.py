"""The steps that an experiment is made of: trainings, evaluations, dependence and gates. Each is a command of ``ambilm``.

A step writes one file or directory, complete or absent, and is skipped where that is there: a stopped experiment goes on.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ambilm.evaluation import evaluate
from ambilm.evaluation.conversations import read_documents
from ambilm.evaluation.dependence import dependence_by_bin
from ambilm.evaluation.dependence_report import json_ready
from ambilm.evaluation.gates import gate_shares
from ambilm.evaluation.overhead import counted_overhead
from ambilm.evaluation.results import write_json
from ambilm.model.ambilm import SETTINGS_FILE, AmbiLM, EveryJobWeights
from ambilm.recipes import Recipe
from ambilm.training import adapt

LOG = "log.jsonl"


@lru_cache(maxsize=1)
def loaded(model: str) -> AmbiLM:
    """The model, kept for the steps that follow each other and read the same one."""
    return AmbiLM.from_pretrained(model)


@dataclass(frozen=True, kw_only=True)
class Step(ABC):
    """One step.

    Attributes:
        output: what it writes.
        kind: steps of one kind cost the same for each unit.
    """

    output: Path
    kind: str

    @property
    @abstractmethod
    def units(self) -> int:
        """How much it does: training steps, or examples of each task."""

    @property
    def done(self) -> bool:
        return self.output.exists()

    @abstractmethod
    def run(self) -> None:
        """Does it, and leaves ``output``."""

    @abstractmethod
    def seconds(self) -> float:
        """What it took, read from ``output``: the work itself, without loading models."""

    @abstractmethod
    def command(self) -> str:
        """The command that does the same by hand."""


@dataclass(frozen=True, kw_only=True)
class Training(Step):
    """``ambilm adapt``; resumed where it was stopped."""

    recipe: Recipe
    model: str
    text: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()

    @property
    def units(self) -> int:
        return self.recipe.total_steps

    @property
    def done(self) -> bool:
        return (self.output / SETTINGS_FILE).exists()

    def run(self) -> None:
        loaded.cache_clear()  # the memory is needed
        begun = self.output.is_dir() and any(self.output.iterdir())
        adapt(self.recipe, self.model, self.text, self.output, self.pairs, resume=begun)

    def seconds(self) -> float:
        # The first step also fills caches: the last one tells what the others cost.
        last = (self.output / LOG).read_text().splitlines()[-1]
        return float(json.loads(last)["seconds"]) * self.units

    def command(self) -> str:
        changed = {
            name: value
            for name, value in self.recipe.model_dump(mode="json").items()
            if value != type(self.recipe).model_fields[name].default
        }
        sources = [("--text", self.text), ("--pairs", self.pairs)]
        given = " ".join(f"{flag} {' '.join(values)}" for flag, values in sources if values)
        settings = " ".join(f"{name}={value}" for name, value in changed.items())
        flags = f" --set {settings}" if settings else ""
        return f"ambilm adapt {self.recipe.name} --model {self.model} {given} --output {self.output}{flags}"


@dataclass(frozen=True, kw_only=True)
class Evaluation(Step):
    """``ambilm evaluate``; tasks that were finished before a stop are kept."""

    model: str
    weights: EveryJobWeights
    tasks: tuple[str, ...]
    data: Path
    limit: int

    @property
    def units(self) -> int:
        return self.limit

    @property
    def done(self) -> bool:
        return self.output.exists() and set(self.tasks) <= self.entries().keys()

    def entries(self) -> dict[str, Any]:
        """Figures by task."""
        return dict(json.loads(self.output.read_text())["tasks"])

    def run(self) -> None:
        model = loaded(self.model).with_weights(self.weights)
        evaluate(model, self.tasks, [self.data], self.output, limit=self.limit)

    def seconds(self) -> float:
        entries = self.entries()
        return sum(float(entries[task]["seconds"]) for task in self.tasks)

    def command(self) -> str:
        weights = "" if self.weights == "by_job" else f" --weights {self.weights}"
        return (
            f"ambilm evaluate {self.model}{weights} --tasks {','.join(self.tasks)} --limit {self.limit}"
            f" --data {self.data} --output {self.output}"
        )


@dataclass(frozen=True, kw_only=True)
class Measurement(Step):
    """Something whose figures are one JSON file; how long it took stands in it too."""

    model: str
    limit: int = 1

    @property
    def units(self) -> int:
        return self.limit

    @abstractmethod
    def measure(self) -> dict[str, Any]:
        """The figures."""

    def found(self) -> dict[str, Any]:
        """The figures, read from ``output``."""
        return dict(json.loads(self.output.read_text()))

    def run(self) -> None:
        started = time.perf_counter()
        found = self.measure()
        write_json(self.output, {**found, "seconds": round(time.perf_counter() - started, 2)})

    def seconds(self) -> float:
        return float(self.found()["seconds"])


@dataclass(frozen=True, kw_only=True)
class Dependence(Measurement):
    """``ambilm dependence`` of one model."""

    data: Path
    split: str

    def measure(self) -> dict[str, Any]:
        documents = read_documents(self.data, self.split)
        found = dependence_by_bin(loaded(self.model), documents, limit=self.limit, progress=True)
        return json_ready({self.model: found})[self.model]

    def command(self) -> str:
        where = f"--data {self.data} --split {self.split} --limit {self.limit}"
        return f"ambilm dependence {self.model} {where} --output {self.output.with_suffix('')}"


@dataclass(frozen=True, kw_only=True)
class Gates(Measurement):
    """``ambilm gates``."""

    data: Path
    split: str

    def measure(self) -> dict[str, Any]:
        documents = read_documents(self.data, self.split)
        return gate_shares(loaded(self.model), documents, limit=self.limit, progress=True)

    def command(self) -> str:
        where = f"--data {self.data} --split {self.split} --limit {self.limit}"
        return f"ambilm gates {self.model} {where} --output {self.output.with_suffix('')}"


@dataclass(frozen=True, kw_only=True)
class Overhead(Measurement):
    """Counted cost of the two experts; ``benchmarks/mixture.py`` measures the time."""

    def measure(self) -> dict[str, Any]:
        model = loaded(self.model)
        return dict(counted_overhead(model.base, model.with_weights("learned").base))

    def command(self) -> str:
        return "python benchmarks/mixture.py"
