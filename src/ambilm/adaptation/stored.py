"""Reading what was saved beside a model: a description in JSON, tensors in safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel
from safetensors.torch import load_file
from torch import Tensor

from ambilm.errors import UserError

Description = TypeVar("Description", bound=BaseModel)


def read_settings(kind: type[Description], file: Path, what: str) -> Description:
    """The description in ``file``, of ``what`` ("adapter", ...).

    Raises:
        UserError: when the file is missing or says something else.
    """
    try:
        return kind.model_validate_json(file.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{file} is not a readable {what} description: save the model again.") from error


def read_tensors(file: Path) -> dict[str, Tensor]:
    """Name to tensor.

    Raises:
        UserError: when the file is missing, truncated or no safetensors file.
    """
    try:
        return load_file(file)
    except Exception as error:  # safetensors raises several types
        raise UserError(f"{file} is missing or damaged: save the model again.") from error
