"""Arguments and options that several commands share, and what they mean to the model."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from ambilm.errors import UserError


class Dtype(StrEnum):
    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class WeightsChoice(StrEnum):
    by_job = "by_job"
    base = "base"
    merged = "merged"
    learned = "learned"


class LayoutChoice(StrEnum):
    bidirectional = "bidirectional"
    causal = "causal"


class PromptLayoutChoice(StrEnum):
    causal = "causal"
    prefix = "prefix"


class PoolingChoice(StrEnum):
    last = "last"
    mean = "mean"
    weighted_mean = "weighted_mean"


class PrecisionChoice(StrEnum):
    float32 = "float32"
    int8 = "int8"
    uint8 = "uint8"
    binary = "binary"
    ubinary = "ubinary"


class SubwordChoice(StrEnum):
    mean = "mean"
    first = "first"
    last = "last"


ModelArgument = Annotated[
    str, typer.Argument(metavar="M", help="Packaged name, directory, .gguf file or hub id.", show_default=False)
]
InputArgument = Annotated[str, typer.Argument(metavar="FILE|-", help="Input file; - is standard input.")]
DtypeOption = Annotated[Dtype, typer.Option(help="Number type of the weights; auto takes the faster one.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps …")]
WeightsOption = Annotated[
    WeightsChoice,
    typer.Option(
        help="by_job: the base generates, the adaptation reads both ways; base or merged (the papers' way) for every job;"
        " learned: the gates of recipe ubmoe choose for each token."
    ),
]
LayoutOption = Annotated[
    LayoutChoice | None, typer.Option(help="Who sees whom; the model's own choice if not given.", show_default=False)
]
PromptLayoutOption = Annotated[
    PromptLayoutChoice, typer.Option(help="prefix: the prompt is seen both ways, as recipe instruction trains it.")
]

SAMPLING = "Sampling"
SampleOption = Annotated[
    bool | None,
    typer.Option(
        "--sample/--greedy", help="Draw tokens, or take the likeliest.", rich_help_panel=SAMPLING, show_default=False
    ),
]
TemperatureOption = Annotated[
    float | None, typer.Option(min=0.01, help="Below 1 sharper; implies --sample.", rich_help_panel=SAMPLING)
]
TopKOption = Annotated[
    int | None, typer.Option(min=1, help="Draw from the k likeliest; implies --sample.", rich_help_panel=SAMPLING)
]
TopPOption = Annotated[
    float | None,
    typer.Option(
        min=0.0, max=1.0, help="Draw from the likeliest with this mass; implies --sample.", rich_help_panel=SAMPLING
    ),
]
RepetitionPenaltyOption = Annotated[
    float | None, typer.Option(min=0.01, help="Above 1 discourages repetition.", rich_help_panel=SAMPLING)
]
SeedOption = Annotated[
    int | None, typer.Option(min=0, help="Seed of the drawing, for a repeatable result.", rich_help_panel=SAMPLING)
]
MaxNewTokensOption = Annotated[int, typer.Option(min=1, help="Most tokens written.")]


def sampling_arguments(
    sample: bool | None, temperature: float | None, top_k: int | None, top_p: float | None
) -> dict[str, Any]:
    """Keyword arguments of transformers' ``generate``; what was not given is left to the model's own configuration."""
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    arguments: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if arguments and sample is False:
        flag = "--" + next(iter(arguments)).replace("_", "-")
        raise UserError(f"{flag} has no effect with --greedy: leave one of the two out.")
    if arguments or sample is not None:
        arguments["do_sample"] = sample is not False
    return arguments


def value_of(choice: StrEnum | None) -> Any:
    """The string of a choice, None where none was made."""
    return None if choice is None else choice.value


def checked_text(text: str, argument: str) -> str:
    """The text of a command-line argument, refused where it is blank or its bytes are no UTF-8."""
    if not text.strip():
        raise UserError(f"{argument} is empty: give a text.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{argument} is not valid UTF-8 at character {error.start + 1}: pass it as UTF-8.") from None
    return text
