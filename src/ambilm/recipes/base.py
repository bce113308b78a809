"""What every recipe shares: the adapter, the optimiser, the text."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import ConfigDict, Field, model_validator

from ambilm.adaptation import AdapterSettings


class Recipe(AdapterSettings):
    """Base of all recipes. Each field is a setting of ``ambilm adapt RECIPE --set name=value``."""

    model_config = ConfigDict(extra="forbid", validate_default=True)
    name: ClassVar[str]
    summary: ClassVar[str]

    seed: int = Field(0, ge=0, description="seed of everything random: order, spans, masks, dropout")
    learning_rate: float = Field(5e-4, gt=0, description="peak rate of AdamW; linear warm-up, then linear decay")
    warmup: float = Field(0.06, ge=0, lt=1, description="share of the steps that warm up")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay")
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    max_length: int = Field(128, ge=16, description="longest piece of a text, in tokens")
    texts_per_step: int = Field(16, ge=1, description="texts that lose spans and tokens in each step")
    span_tokens_min: int = Field(8, ge=1, description="shortest missing span of random place, in tokens")
    span_tokens_max: int = Field(32, ge=1, description="longest missing span, in tokens")
    sentence_spans: float = Field(
        0.5, ge=0, le=1, description="share of texts that lose a whole sentence, where they have one"
    )
    second_span: float = Field(0.15, ge=0, le=1, description="share of texts that lose a second span")
    checkpoint_every: int = Field(50, ge=1, description="steps between checkpoints")

    @model_validator(mode="after")
    def _spans_fit(self) -> Self:
        if self.span_tokens_min > self.span_tokens_max:
            raise ValueError("span_tokens_min is larger than span_tokens_max")
        return self

    @property
    def total_steps(self) -> int:
        raise NotImplementedError
