"""``ambilm chat M``: a conversation with the base model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from ambilm.cli import models
from ambilm.cli.generate import generation_arguments, seed_everything
from ambilm.cli.options import (
    DeviceOption,
    Dtype,
    DtypeOption,
    MaxNewTokensOption,
    ModelArgument,
    PromptLayoutChoice,
    PromptLayoutOption,
    RepetitionPenaltyOption,
    SampleOption,
    SeedOption,
    TemperatureOption,
    TopKOption,
    TopPOption,
    WeightsChoice,
    WeightsOption,
)
from ambilm.errors import UserError

EXIT = "/exit"


def chat(
    model: ModelArgument,
    system: Annotated[
        str | None, typer.Option(help="System message before the conversation.", show_default=False)
    ] = None,
    max_new_tokens: MaxNewTokensOption = 256,
    sample: SampleOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = None,
    top_p: TopPOption = None,
    repetition_penalty: RepetitionPenaltyOption = None,
    seed: SeedOption = None,
    layout: PromptLayoutOption = PromptLayoutChoice.causal,
    weights: WeightsOption = WeightsChoice.by_job,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = "auto",
) -> None:
    """Talk with the model, one line a turn; /exit or Ctrl-D ends.

    It remembers the conversation. Lines may also come from a pipe.
    """
    arguments = generation_arguments(max_new_tokens, sample, temperature, top_k, top_p, repetition_penalty)
    loaded = models.load(model, dtype, device).with_weights(weights.value)
    if not loaded.tokenizer.chat_template:
        raise UserError(f"{model} has no chat template: use ambilm generate, or a model that was tuned for chat.")
    seed_everything(seed)
    messages = [{"role": "system", "content": system}] if system else []
    for line in user_lines():
        messages.append({"role": "user", "content": line})
        reply = ""
        for piece in loaded.chat(messages, stream=True, layout=layout.value, **arguments):
            reply += piece
            typer.echo(piece, nl=False)
        typer.echo()
        messages.append({"role": "assistant", "content": reply})


def user_lines() -> Iterator[str]:
    """What the user types (with a prompt on stderr where that is a terminal), up to ``/exit`` or the end of input."""
    from rich.console import Console

    console = Console(stderr=True)
    interactive = sys.stdin.isatty()
    if interactive:
        console.print(f"[dim]{EXIT} or Ctrl-D ends the conversation.[/dim]")
    while True:
        if interactive:
            console.print("[bold cyan]you>[/bold cyan] ", end="")
        line = sys.stdin.readline()
        if not line or line.strip() == EXIT:
            return
        if line.strip():
            yield line.strip()
