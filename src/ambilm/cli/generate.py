"""``ambilm generate M "prompt"``: the base model goes on, bit for bit as without AmbiLM."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ambilm.cli import models
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
    checked_text,
    sampling_arguments,
)


def generate(
    model: ModelArgument,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to go on from.", show_default=False)],
    max_new_tokens: MaxNewTokensOption = 128,
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
    """Continue a prompt with the base model, printed as it is written."""
    checked_text(prompt, "PROMPT")
    arguments = generation_arguments(max_new_tokens, sample, temperature, top_k, top_p, repetition_penalty)
    loaded = models.load(model, dtype, device).with_weights(weights.value)
    seed_everything(seed)
    for piece in loaded.generate(prompt, stream=True, layout=layout.value, **arguments):
        typer.echo(piece, nl=False)
    typer.echo()


def generation_arguments(
    max_new_tokens: int,
    sample: bool | None,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float | None,
) -> dict[str, Any]:
    arguments = {"max_new_tokens": max_new_tokens, **sampling_arguments(sample, temperature, top_k, top_p)}
    if repetition_penalty is not None:
        arguments["repetition_penalty"] = repetition_penalty
    return arguments


def seed_everything(seed: int | None) -> None:
    if seed is not None:
        import torch

        torch.manual_seed(seed)
