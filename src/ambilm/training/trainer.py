"""The training loop: steps that are pure functions of their number, live progress, checkpoints, Ctrl-C.

The loop knows no method: it gets a function from step number to losses.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn

from ambilm.errors import UserError
from ambilm.recipes.base import Recipe
from ambilm.training.checkpoint import checkpoint_facts, find_checkpoint, load_checkpoint, save_checkpoint
from ambilm.training.draws import DROPOUT, stream
from ambilm.training.losses import StepLosses


class Interrupted(KeyboardInterrupt):
    """Ctrl-C came; the checkpoint was written."""


@dataclass(frozen=True)
class LogLine:
    """One step. Losses in nats, ``parts`` by the name of the objective."""

    step: int
    stage: int
    loss: float
    parts: dict[str, float]
    lr: float
    tokens: int
    seconds: float

    def record(self) -> dict[str, float]:
        """As it stands in ``log.jsonl``: flat, each objective a column."""
        first = {"step": self.step, "stage": self.stage, "loss": self.loss}
        return {**first, **self.parts, "lr": self.lr, "tokens": self.tokens, "seconds": self.seconds}


def learning_rate(recipe: Recipe, step: int) -> float:
    """Linear warm-up over the first share of the steps, then linear decay to zero."""
    total = recipe.total_steps
    warm = max(1, math.ceil(recipe.warmup * total))
    if step < warm:
        return recipe.learning_rate * (step + 1) / warm
    return recipe.learning_rate * (total - step) / max(1, total - warm)


def _step_of(line: str) -> float:
    """The step of a line of the log; a killed run may have left half of its last line, which no step reaches."""
    try:
        return int(json.loads(line)["step"])
    except ValueError:
        return math.inf


class Trainer:
    """Runs the steps of a recipe.

    Args:
        recipe: optimiser settings and number of steps.
        parameters: what is trained, by name.
        losses: from step number to losses.
        output: directory of ``log.jsonl`` and ``checkpoints``.
        sources: names of the model, text and pairs, which a resumed run must share.
    """

    def __init__(
        self,
        recipe: Recipe,
        parameters: dict[str, nn.Parameter],
        losses: Callable[[int], StepLosses],
        output: Path,
        sources: dict[str, Any],
    ) -> None:
        self.recipe, self.parameters, self.losses, self.output = recipe, parameters, losses, output
        self.optimizer = torch.optim.AdamW(
            parameters.values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, betas=(0.9, 0.98)
        )
        self.sources = sources
        settings = {**recipe.model_dump(mode="json"), **sources}
        self.facts: dict[str, Any] = {"recipe": recipe.name, "settings": settings}

    @property
    def checkpoints(self) -> Path:
        return self.output / "checkpoints"

    def resume(self) -> int:
        """Loads the newest checkpoint and returns the next step; 0 when there is none.

        Raises:
            UserError: when it was made with other settings, since the result would be neither run.
        """
        checkpoint = find_checkpoint(self.checkpoints)
        if checkpoint is None:
            return 0
        facts = checkpoint_facts(checkpoint)
        if facts["recipe"] != self.recipe.name:
            raise UserError(
                f"{self.output} holds a run of recipe {facts['recipe']}: choose another --output or --overwrite."
            )
        changed = [key for key, value in self.facts["settings"].items() if facts["settings"].get(key, value) != value]
        if changed:
            raise UserError(
                f"The run in {self.output} was started with other settings ({', '.join(changed)}):"
                " give the same ones to --resume, or --overwrite to start afresh."
            )
        load_checkpoint(checkpoint, self.parameters, self.optimizer)
        self._trim_log(facts["step"])
        return int(facts["step"])

    def _trim_log(self, step: int) -> None:
        """Steps after the checkpoint are run again; their lines would stand twice."""
        log = self.output / "log.jsonl"
        if log.exists():
            kept = [line for line in log.read_text().splitlines() if _step_of(line) < step]
            log.write_text("".join(line + "\n" for line in kept))

    def step(self, number: int) -> LogLine:
        """One optimiser step.

        Raises:
            UserError: when loss or gradient is not a number; the weights are those of the step before.
        """
        started = time.perf_counter()
        # Dropout of a step depends on its number alone, so that a resumed run repeats it.
        torch.manual_seed(int(stream(self.recipe.seed, number, DROPOUT).integers(2**62)))
        rate = learning_rate(self.recipe, number)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.losses(number)
        self._require_finite("loss", losses.total, number)
        losses.total.backward()
        norm = nn.utils.clip_grad_norm_(list(self.parameters.values()), self.recipe.clip)
        self._require_finite("gradient", norm, number)
        self.optimizer.step()
        parts = {name: value.item() for name, value in losses.parts.items()}
        seconds = time.perf_counter() - started
        return LogLine(number, self.recipe.stage(number), losses.total.item(), parts, rate, losses.tokens, seconds)

    def _require_finite(self, what: str, value: torch.Tensor, number: int) -> None:
        if not bool(torch.isfinite(value)):
            raise UserError(
                f"The {what} became {value.item()} at step {number}: lower learning_rate (now"
                f" {self.recipe.learning_rate}) and start afresh with --overwrite."
            )

    def save(self, step: int) -> None:
        save_checkpoint(self.checkpoints, step, self.parameters, self.optimizer, self.facts)

    def run(self, start: int = 0) -> None:
        """All steps from ``start``; a checkpoint every so often, at Ctrl-C (then ``Interrupted``) and at the end."""
        total = self.recipe.total_steps
        with (
            _stop_on_signal() as stopping,
            _progress(total, start) as report,
            (self.output / "log.jsonl").open("a") as log,
        ):
            for number in range(start, total):
                line = self.step(number)
                log.write(json.dumps(line.record()) + "\n")
                log.flush()
                report(line)
                if stopping() or (number + 1) % self.recipe.checkpoint_every == 0 or number + 1 == total:
                    self.save(number + 1)
                if stopping():
                    raise Interrupted(f"stopped after step {number + 1} of {total}; --resume goes on from there")


@contextmanager
def _stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM end the loop after the current step instead of in its middle; a second Ctrl-C ends it at once."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: the program around it handles signals
        before = {}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(total: int, start: int) -> Iterator[Callable[[LogLine], None]]:
    """A live bar on a terminal, a line now and then in a log file."""
    console = Console(stderr=True)
    every = max(1, total // 50)
    recent: list[LogLine] = []

    def describe(line: LogLine) -> str:
        recent.append(line)
        del recent[:-10]
        speed = sum(item.tokens for item in recent) / sum(item.seconds for item in recent)
        parts = [f"{name} {value:.3f}" for name, value in line.parts.items() if value]
        return f"stage {line.stage}  {'  '.join(parts)}  {speed:,.0f} tokens/s"

    if not console.is_terminal:

        def write(line: LogLine) -> None:
            text = describe(line)
            if (line.step + 1) % every == 0 or line.step + 1 == total:
                left = (total - line.step - 1) * sum(item.seconds for item in recent) / len(recent)
                console.print(
                    f"step {line.step + 1}/{total}  {text}  {left / 60:.1f} min left", highlight=False, soft_wrap=True
                )

        yield write
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("starting", total=total, completed=start)
        yield lambda line: progress.update(task, advance=1, description=describe(line))
