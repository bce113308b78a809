"""``ambilm adapt``: from a base model and text to an adapted model directory."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ambilm.errors import UserError
from ambilm.model.ambilm import SETTINGS_FILE, AmbiLM
from ambilm.recipes import Recipe
from ambilm.training.methods import METHODS, Task
from ambilm.training.sources import Sources
from ambilm.training.trainer import Trainer


def adapt(
    recipe: Recipe,
    model: str,
    text: Sequence[str],
    output: Path,
    pairs: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    dtype: str = "auto",
) -> Path:
    """Adapts ``model`` with ``recipe`` on the texts and writes a model directory.

    Args:
        text: files, folders or a hub data set; every entry gives an equal share of the texts of a step. Empty for a
            recipe that compares ``pairs`` only.
        pairs: paraphrase files, for recipes that compare sentences.
        resume: go on from the checkpoint in ``output``; the result equals the uninterrupted run's bit for bit.
        overwrite: throw an earlier run in ``output`` away.

    Returns:
        ``output``, which ``AmbiLM.from_pretrained`` loads.

    Raises:
        UserError: for text, pairs or settings that cannot work, before training starts.
    """
    _check_output(output, resume, overwrite)
    if not text and recipe.reads_text(bool(pairs)):
        or_pairs = "" if pairs or recipe.reads_text(has_pairs=True) else ", or --pairs FILE"
        raise UserError(f"Recipe {recipe.name} reads text: give --text FILE{or_pairs}.")
    loaded = AmbiLM.from_pretrained(model, dtype=dtype)
    print(loaded.notice, file=sys.stderr)
    # An earlier run is thrown away only now that the model, at least, is known to load.
    if overwrite and not resume and output.exists():
        shutil.rmtree(output)
    names = _names(model, text, pairs)
    facts = {"recipe": recipe.name, **names, "model": model, "settings": recipe.model_dump(mode="json")}
    with _nothing_left_by_mistakes(output):
        if not (output / "recipe.json").exists():
            _write_facts(output, facts)

        def before(earlier: Recipe) -> Path:
            return _run_before(earlier, output / earlier.name, model, text, pairs, resume, dtype)

        task = METHODS[type(recipe)](recipe, loaded, Sources(text, pairs, output / "tokens", before))
        trainer = Trainer(recipe, task.parameters, task.losses, output, names)
        start = trainer.resume() if resume else 0
        if start == 0:
            _rehearse(recipe, task, trainer)
    _write_facts(output, facts)
    task.model.view.train()
    trainer.run(start)
    task.model.view.eval()
    task.model.save_pretrained(output)
    shutil.rmtree(output / "tokens", ignore_errors=True)
    return output


def _run_before(
    earlier: Recipe, output: Path, model: str, text: Sequence[str], pairs: Sequence[str], resume: bool, dtype: str
) -> Path:
    """A run that another one builds on, inside the directory of that one; resumed with it."""
    if (output / SETTINGS_FILE).exists():
        return output
    begun = output.exists() and any(output.iterdir())
    needed = text if earlier.reads_text(bool(pairs)) else ()
    return adapt(earlier, model, needed, output, pairs, resume=resume and begun, dtype=dtype)


def _write_facts(output: Path, facts: dict[str, Any]) -> None:
    (output / "recipe.json").write_text(json.dumps(facts, indent=2))


@contextmanager
def _nothing_left_by_mistakes(output: Path) -> Iterator[None]:
    """Makes ``output``; what a refused run began there goes again, so that the corrected command finds it as it was."""
    empty = not (output.exists() and any(output.iterdir()))
    existed = output.exists()
    output.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except UserError:
        if empty:
            shutil.rmtree(output)
            if existed:
                output.mkdir()
        raise


def _check_output(output: Path, resume: bool, overwrite: bool) -> None:
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output} is a file: give a directory.")
    used = output.exists() and any(output.iterdir())
    if used and not resume and not overwrite:
        raise UserError(
            f"--output {output} is not empty: use --resume to go on, --overwrite to start afresh, or another one."
        )
    is_run = (output / "recipe.json").exists() or (output / "ambilm.json").exists()
    if used and overwrite and not resume and not is_run:
        raise UserError(f"--overwrite: {output} holds no run of ambilm, so it is left alone: choose another --output.")


def _names(model: str, text: Sequence[str], pairs: Sequence[str]) -> dict[str, Any]:
    """Names without folders: they name no machine, and a moved run can go on."""
    return {
        "model": Path(model).name,
        "text": [Path(item).name for item in text],
        "pairs": [Path(item).name for item in pairs],
    }


def _rehearse(recipe: Recipe, task: Task, trainer: Trainer) -> None:
    """The whole path on the last step's batch before an hour is spent: loss, gradients, checkpoint, saved model."""
    outcome = task.losses(recipe.total_steps - 1)
    if not bool(torch.isfinite(outcome.total)):
        raise UserError(f"The loss is {outcome.total.item()} before any training: try --dtype float32 or other text.")
    outcome.total.backward()
    if not any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in trainer.parameters.values()):
        raise UserError("No trained parameter gets a gradient: choose other modules=.")
    trainer.optimizer.zero_grad(set_to_none=True)
    with tempfile.TemporaryDirectory(dir=trainer.output) as scratch:
        task.model.save_pretrained(Path(scratch) / "model")
