"""The loop and its checkpoints on one toy parameter: a bad step costs nothing, a killed run leaves something complete."""

import contextlib
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ambilm.errors import UserError
from ambilm.recipes import CausalControl
from ambilm.training.checkpoint import find_checkpoint
from ambilm.training.losses import StepLosses
from ambilm.training.trainer import Trainer, learning_rate

SOURCES = {"model": "m", "text": ["a.txt"], "pairs": []}


def trainer(
    output: Path, loss: Callable[[Tensor, int], Tensor] = lambda weight, _: (weight**2).sum(), sources: object = SOURCES
) -> Trainer:
    weight = nn.Parameter(torch.ones(2))

    def losses(step: int) -> StepLosses:
        return StepLosses(loss(weight, step), {"toy": torch.zeros(())}, 1)

    recipe = CausalControl(steps=4, checkpoint_every=1, warmup=0.0)
    return Trainer(recipe, {"weight": weight}, losses, output, sources)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("words", "bad"),
    [
        ("loss became nan at step 2", lambda weight: weight.sum() * math.nan),
        ("gradient became nan at step 2", lambda weight: (weight - weight).sum().sqrt()),
    ],
)
def test_a_bad_step_leaves_the_weights_of_the_step_before(
    tmp_path: Path, words: str, bad: Callable[[Tensor], Tensor]
) -> None:
    run = trainer(tmp_path, lambda weight, step: bad(weight) if step == 2 else (weight**2).sum())
    with pytest.raises(UserError, match=words):
        run.run()
    assert run.parameters["weight"].isfinite().all()
    again = trainer(tmp_path)
    assert again.resume() == 2 and torch.equal(again.parameters["weight"], run.parameters["weight"])


def test_half_a_log_line_is_dropped(tmp_path: Path) -> None:
    trainer(tmp_path).run()
    log = tmp_path / "log.jsonl"
    whole = log.read_text()
    log.write_text(whole + '{"step": 4, "sta')
    assert trainer(tmp_path).resume() == 4
    assert log.read_text() == whole and [json.loads(line)["step"] for line in whole.splitlines()] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("sources", "words"), [({**SOURCES, "text": ["b.txt"]}, r"\(text\)"), ({**SOURCES, "model": "n"}, r"\(model\)")]
)
def test_other_sources_are_another_run(tmp_path: Path, sources: object, words: str) -> None:
    trainer(tmp_path).save(1)
    with pytest.raises(UserError, match=words):
        trainer(tmp_path, sources=sources).resume()


@pytest.mark.parametrize("first", range(6))
@pytest.mark.parametrize("second", range(6))
def test_saves_killed_anywhere_leave_a_whole_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, second: int
) -> None:
    """Two saves in a row die, each at one of its file operations; after each something complete is found."""
    run = trainer(tmp_path)
    run.save(1)
    for number, dies_at in enumerate((first, second)):
        left = [dies_at]

        def until_death(operation: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def run_or_die(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise KeyboardInterrupt
                return operation(*arguments, **options)

            return run_or_die

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", until_death(Path.rename))
            patch.setattr(shutil, "rmtree", until_death(shutil.rmtree))
            with contextlib.suppress(KeyboardInterrupt):
                run.save(2 + number)
        checkpoint = find_checkpoint(run.checkpoints)
        assert checkpoint is not None
        assert {item.name for item in checkpoint.iterdir()} == {"state.safetensors", "facts.json"}
    assert run.resume() in (1, 2, 3)


def test_the_rate_rises_then_falls() -> None:
    recipe = CausalControl(steps=10, warmup=0.2, learning_rate=1.0)
    rates = [learning_rate(recipe, step) for step in range(10)]
    assert rates[:3] == [0.5, 1.0, 1.0] and rates[2:] == sorted(rates[2:], reverse=True) and rates[-1] == 0.125
