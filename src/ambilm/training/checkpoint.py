"""Checkpoints that are complete or absent: written under another name, then renamed. safetensors and JSON only.

A step is a pure function of the seed, its number, the weights and the optimiser's moments, so these are all there is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from ambilm.errors import UserError

LATEST = "latest"


def save_checkpoint(
    directory: Path,
    step: int,
    parameters: dict[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    facts: dict[str, Any],
) -> None:
    """Writes ``directory/latest``, replacing the one before only when the new one is whole."""
    directory.mkdir(parents=True, exist_ok=True)
    fresh, old = directory / "incomplete", directory / "previous"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    tensors = {f"parameter.{name}": parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        for key, value in optimizer.state[parameter].items():
            tensors[f"optimizer.{key}.{name}"] = value.detach().cpu().contiguous()
    save_file(tensors, fresh / "state.safetensors")
    (fresh / "facts.json").write_text(json.dumps({"step": step, **facts}))
    if (directory / LATEST).exists():  # else "previous" is the only complete one until the last rename
        shutil.rmtree(old, ignore_errors=True)
        (directory / LATEST).rename(old)
    fresh.rename(directory / LATEST)
    shutil.rmtree(old, ignore_errors=True)


def find_checkpoint(directory: Path) -> Path | None:
    """The newest complete checkpoint; a stop between the two renames leaves it under ``previous``."""
    for name in (LATEST, "previous"):
        if (directory / name / "facts.json").exists():
            return directory / name
    return None


def checkpoint_facts(checkpoint: Path) -> dict[str, Any]:
    """What was written beside the tensors."""
    facts: dict[str, Any] = json.loads((checkpoint / "facts.json").read_text())
    return facts


def load_checkpoint(checkpoint: Path, parameters: dict[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    """Puts weights and moments back, in place.

    Raises:
        UserError: when the checkpoint belongs to another adapter or model.
    """
    tensors = load_file(checkpoint / "state.safetensors")
    stored = {key.removeprefix("parameter.") for key in tensors if key.startswith("parameter.")}
    if stored != set(parameters):
        raise UserError(
            f"The checkpoint in {checkpoint} is of another model or adapter: use --overwrite to start afresh."
        )
    moments: dict[str, dict[str, torch.Tensor]] = {name: {} for name in parameters}
    with torch.no_grad():
        for key, value in tensors.items():
            kind, _, rest = key.partition(".")
            if kind == "parameter":
                parameters[rest].copy_(value)
            else:
                moment, _, name = rest.partition(".")
                # Moments live where their parameter lives; the step counter stays on the CPU.
                moments[name][moment] = value if value.dim() == 0 else value.to(parameters[name].device)
    for name, parameter in parameters.items():
        if moments[name]:
            optimizer.state[parameter] = moments[name]
