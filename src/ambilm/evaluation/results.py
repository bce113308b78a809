"""The results file: ``{"model", "ambilm_version", "versions": {...}, "tasks": {"sts15": {"main": 0.71, ...}}}``.

It is written after every task, whole or not at all, so that a stopped evaluation goes on where it stopped. Each entry
remembers under ``run`` what it depends on (weights and settings, data, limit, seed) and is kept only while all of that
is the same.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ambilm import __version__
from ambilm.errors import UserError

if TYPE_CHECKING:
    from ambilm import AmbiLM

PACKAGES = ("torch", "transformers", "peft", "numpy", "scipy", "sacrebleu", "rouge-score", "lm-eval", "mteb", "seqeval")


class Results:
    """Finished tasks of one model, kept in a file.

    Raises:
        UserError: when the file exists and is not a results file, or is one of another model.
    """

    def __init__(self, path: Path, model: str, state: str) -> None:
        self.path, self.model, self.state = path, model, state
        if path.is_dir():
            raise UserError(f"--output {path} is a folder; name a file, for instance {path / 'results.json'}.")
        self.tasks: dict[str, dict[str, Any]] = self._earlier() if path.exists() else {}

    def _earlier(self) -> dict[str, dict[str, Any]]:
        content = load(self.path)
        if content["model"] != self.model:
            raise UserError(
                f"--output {self.path} holds results of {content['model']!r}, not of {self.model!r}; "
                "choose another file or remove it."
            )
        if content.get("ambilm_version") != __version__:
            return {}
        return {
            key: entry for key, entry in content["tasks"].items() if entry.get("run", {}).get("state") == self.state
        }

    def has(self, key: str, run: dict[str, Any]) -> bool:
        """Whether the task was already measured under the same circumstances."""
        return self.tasks.get(key, {}).get("run") == {"state": self.state, **run}

    def put(self, key: str, entry: dict[str, Any], run: dict[str, Any]) -> None:
        """Adds a task and writes the file."""
        self.tasks[key] = _finite({**entry, "run": {"state": self.state, **run}})
        self.write()

    def write(self) -> None:
        write_json(self.path, self.content())

    def content(self) -> dict[str, Any]:
        """What the file holds."""
        return {"model": self.model, "ambilm_version": __version__, "versions": versions(), "tasks": self.tasks}


def write_json(path: Path, content: Any) -> None:
    """Writes a JSON file, complete or not at all; makes its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def load(path: Path) -> dict[str, Any]:
    """A results file, checked.

    Raises:
        UserError: when it is missing, not JSON, or without model or tasks.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); give a file that `ambilm evaluate` wrote."
        ) from None
    except ValueError as error:
        raise UserError(f"{path} is not a results file ({error}); give a file that `ambilm evaluate` wrote.") from None
    tasks = content.get("tasks") if isinstance(content, dict) else None
    good = isinstance(tasks, dict) and all(isinstance(entry, dict) and "main" in entry for entry in tasks.values())
    if not good or not isinstance(content.get("model"), str):
        raise UserError(
            f"{path} is not a results file (no 'model' and 'tasks'); give a file that `ambilm evaluate` wrote."
        )
    return content


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide the figures."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _finite(value: Any) -> Any:
    """JSON knows no NaN: such a figure becomes null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def model_state(model: AmbiLM) -> str:
    """A digest of settings, dtype and weights: a model that was trained on under the same name is another model."""
    digest = hashlib.sha256(model.settings.model_dump_json().encode())
    shared = {parameter.data_ptr() for parameter in model.base.parameters()}
    for name, parameter in sorted(model.view.named_parameters()):
        flat = parameter.detach().reshape(-1)
        # The adaptation counts whole; of the many base weights a few of each tensor tell two models apart.
        part = flat[:256] if parameter.data_ptr() in shared else flat
        digest.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}".encode())
        digest.update(part.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def file_state(paths: list[Path]) -> str:
    """A digest of the names and contents of the files (for a folder: names, sizes and times)."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        if path.is_file():
            with path.open("rb") as stream:
                digest.update(hashlib.file_digest(stream, "sha256").digest())
        else:
            for item in sorted(path.rglob("*")):
                status = item.stat()
                digest.update(f"{item.relative_to(path)} {status.st_size} {status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
