"""Runs an experiment: a rehearsal in miniature, what it will cost, the steps, the report."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ambilm.errors import UserError
from ambilm.evaluation.results import write_json
from ambilm.reproduce.report import write_report
from ambilm.reproduce.steps import Step
from ambilm.reproduce.ubmoe import UbmoeExperiment, UbmoeSettings
from ambilm.reproduce.ubmoe_report import sections

REHEARSAL, FACTS = "rehearsal", "experiment.json"


def reproduce_ubmoe(settings: UbmoeSettings, model: str, data: Path, output: Path, only_cost: bool = False) -> Path:
    """The tables of Li et al. (ICML 2025) for a model, beside the paper's.

    Args:
        model: packaged name, directory, .gguf file or hub id.
        data: folder of training and evaluation data.
        output: directory of everything that is written; what an earlier, stopped run finished there is kept.
        only_cost: end after saying what it would cost.

    Returns:
        path of the Markdown report; its folder holds the same as HTML, and the plots.

    Raises:
        UserError: for a missing file, or when ``output`` holds an experiment with other settings.
    """
    experiment = UbmoeExperiment(settings, model, data, output)
    check_output(output, {"model": model, "settings": settings.model_dump(mode="json")})
    steps = experiment.steps()
    left = [step for step in steps if not step.done]
    if left or only_cost:
        rehearsal = UbmoeExperiment(settings.miniature(), model, data, output / REHEARSAL).steps()
        say(cost(left, rehearsal))
    if only_cost:
        return output
    run_steps(steps)
    shutil.rmtree(output / REHEARSAL, ignore_errors=True)
    return write_report(output, "ubmoe", "UBMoE, reproduced", sections(experiment))


def check_output(output: Path, facts: dict[str, object]) -> None:
    """Refuses to mix two experiments in one directory.

    Raises:
        UserError: when ``output`` holds another one.
    """
    path = output / FACTS
    if path.exists() and json.loads(path.read_text()) != json.loads(json.dumps(facts)):
        raise UserError(f"--output {output} holds an experiment with another model or settings: choose another one.")
    write_json(path, facts)


def cost(steps: Sequence[Step], rehearsal: Sequence[Step]) -> str:
    """Runs the rehearsal, which finds mistakes before hours are spent, and says what the steps will take."""
    say("Rehearsal in miniature:")
    run_steps(rehearsal)
    each = {step.kind: step.seconds() / step.units for step in rehearsal}
    kinds: dict[str, list[float]] = {}
    for step in steps:
        kinds.setdefault(step.kind, []).append(each[step.kind] * step.units)
    lines = [f"  {kind}: {len(seconds)} × {minutes(seconds[0])}" for kind, seconds in kinds.items()]
    total = minutes(sum(sum(seconds) for seconds in kinds.values()))
    return "\n".join([f"Left to do, about {total}, by the pace of the rehearsal:", *lines])


def minutes(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


def run_steps(steps: Sequence[Step]) -> None:
    """One after the other; what is done already is skipped."""
    for number, step in enumerate(steps, start=1):
        state = "kept" if step.done else step.kind
        say(f"[{number}/{len(steps)}] {state}: {step.output.stem}")
        if not step.done:
            step.run()


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
