"""Loading the model of a command, with the notice of the chosen dtype and device on stderr."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from ambilm.cli.options import Dtype

if TYPE_CHECKING:
    from ambilm import AmbiLM


def load(name: str, dtype: Dtype = Dtype.auto, device: str = "auto") -> AmbiLM:
    from ambilm import AmbiLM

    model = AmbiLM.from_pretrained(name, dtype=dtype.value, device=device)
    typer.echo(model.notice, err=True)
    return model
