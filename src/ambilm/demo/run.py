"""The phases of ``ambilm demo``, in order: text, base model, training, adapted model, report.

OUTPUT holds ``report.html``, ``model``, ``results-base.json`` and ``results-adapted.json``. Stopped in its middle, the same
command goes on with what is there; finished, it starts afresh.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ambilm.demo import measure, report
from ambilm.demo.text import DemoText, Limits, demo_text
from ambilm.errors import UserError
from ambilm.evaluation.results import versions
from ambilm.model.ambilm import AmbiLM
from ambilm.model.settings import PROMPT_EOL
from ambilm.recipes import Magnet
from ambilm.training import adapt
from ambilm.training.checkpoint import find_checkpoint
from ambilm.training.trainer import Interrupted

MODEL = "smollm2-135m"
# What fits into ten minutes on two cores; everything else is the recipe's default.
RECIPE = Magnet(
    stage1_steps=50,
    stage2_steps=40,
    texts_per_step=6,
    max_length=96,
    pairs_per_step=12,
    # The untrained template reads a sentence well already; training starts from there.
    pooling="last",
    prompt=PROMPT_EOL,
    learning_rate=1e-3,
    # In so few steps infilling would pay for masked contexts (docs/log.md).
    lambda_mntp=0.2,
    clean_share=0.8,
    checkpoint_every=10,
)
LIMITS = Limits()
PHASES = 5


class Clock:
    """Says each phase with the time since the start, and keeps how long each took."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        minutes, seconds = divmod(int(begun - self.started), 60)
        print(f"[{minutes:02}:{seconds:02}] {len(self.seconds) + 1}/{PHASES} {name}", file=sys.stderr, flush=True)
        yield
        self.seconds[name] = time.perf_counter() - begun


def run_demo(output: Path, recipe: Magnet = RECIPE, limits: Limits = LIMITS) -> Path:
    """Adapts SmolLM2-135M, measures it before and after, writes the page.

    Args:
        output: directory of the page, the model and the results.
        recipe: training settings.
        limits: how much is measured and shown.

    Returns:
        path of ``report.html``.

    Raises:
        UserError: when the model's package is missing, or ``output`` holds something else under these names.
    """
    clock, page = Clock(), output / "report.html"
    check_model_directory(output / "model")
    output.mkdir(parents=True, exist_ok=True)
    if page.exists():
        for old in (page, *output.glob("results-*.json")):
            old.unlink()
        fresh = True
    else:
        fresh = not _can_resume(output / "model", recipe)
    with clock.phase("Collecting text"):
        text = demo_text(output / "text", limits, recipe.seed)
    with clock.phase("Measuring the base model"):
        base, before = _measure_base(output, text, limits, recipe.seed)
    with clock.phase(f"Training {recipe.total_steps} steps of MAGNET"):
        directory = _train(output / "model", text, recipe, fresh)
    with clock.phase("Measuring the adapted model"):
        found = _measure_adapted(directory, output, text, limits, recipe, base, before)
    with clock.phase("Writing the report"):
        found.seconds.update(clock.seconds)
        report.write_report(page, text, found, directory)
    for line in report.summary(report.measures(found.base, found.adapted, text)):
        print(line, file=sys.stderr)
    return page


def check_model_directory(directory: Path) -> None:
    """Refuses, before anything is spent, a directory that holds something else than a run.

    A run that was stopped before its first step has left nothing but tokens.

    Raises:
        UserError: when it holds anything else.
    """
    names = {item.name for item in directory.iterdir()} if directory.is_dir() else set()
    if directory.is_file() or (names - {"tokens"} and not names & {"recipe.json", "ambilm.json"}):
        raise UserError(f"{directory} is not a model of the demo: choose another --output.")


def _can_resume(directory: Path, recipe: Magnet) -> bool:
    """Whether ``directory`` holds a checkpoint of a run with these very settings."""
    if find_checkpoint(directory / "checkpoints") is None:
        return False
    facts = json.loads((directory / "recipe.json").read_text())
    return bool(facts["settings"] == recipe.model_dump(mode="json"))


def _measure_base(
    output: Path, text: DemoText, limits: Limits, seed: int
) -> tuple[measure.Entries, measure.Generation]:  # fmt: skip
    model = AmbiLM.from_pretrained(MODEL)
    before = measure.generation(model, text.held_out, limits)
    return measure.measure(model, text.held_out, output / "results-base.json", seed), before


def _train(directory: Path, text: DemoText, recipe: Magnet, fresh: bool) -> Path:
    used = directory.is_dir() and any(directory.iterdir())
    # A run that was stopped before its first checkpoint has left nothing but tokens, which the next one may keep.
    only_tokens = used and {item.name for item in directory.iterdir()} == {"tokens"}
    resume = not fresh or only_tokens
    try:
        return adapt(
            recipe,
            model=MODEL,
            text=text.text,
            output=directory,
            pairs=text.pairs,
            resume=resume,
            overwrite=used and not resume,
        )
    except Interrupted as stop:
        step = str(stop).partition(";")[0]
        raise Interrupted(f"{step}; the same command goes on from there") from None


def _measure_adapted(
    directory: Path,
    output: Path,
    text: DemoText,
    limits: Limits,
    recipe: Magnet,
    base: measure.Entries,
    before: measure.Generation,
) -> report.Findings:
    model = AmbiLM.from_pretrained(directory)
    entries = measure.measure(model, text.held_out, output / "results-adapted.json", recipe.seed)
    stories = measure.removals_of(model, text.held_out, recipe.seed)[measure.STORIES]
    infills = measure.shown_infills(model, stories[: limits.shown_infills])
    neighbours = measure.shown_neighbours(model, text.held_out.partners, limits.shown_neighbours)
    dependence = measure.dependence(model, text.held_out)
    after = measure.generation(model, text.held_out, limits)  # last: after every other job has run
    log = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    return report.Findings(
        base,
        entries,
        before.same_logits(after),
        before.same_texts(after),
        infills,
        neighbours,
        dependence,
        log,
        _facts(model, recipe),
        {},
    )


def _facts(model: AmbiLM, recipe: Magnet) -> dict[str, dict[str, Any]]:
    """Settings, versions and machine, for the end of the page."""
    settings = {name: value for name, value in recipe.model_dump(mode="json").items() if value is not None}
    machine = {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": model.device.type,
        "dtype": str(model.base.dtype).removeprefix("torch."),
    }
    return {"Machine": machine, "Versions": versions(), "Settings of the recipe magnet": settings}
