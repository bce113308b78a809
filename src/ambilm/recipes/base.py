"""What recipes share: the optimiser; texts that lose tokens or spans; pairs that are compared; conversations that are answered."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ambilm.model.settings import Pooling


class NamedSettings(BaseModel):
    """Settings that a command takes as ``--set name=value``; its help shows each field with its description."""

    model_config = ConfigDict(extra="forbid", validate_default=True)
    name: ClassVar[str]
    summary: ClassVar[str]


class Recipe(NamedSettings, ABC):
    """Base of all recipes. Each field is a setting of ``ambilm adapt RECIPE``."""

    seed: int = Field(0, ge=0, description="seed of everything random: order, spans, masks, dropout")
    learning_rate: float = Field(5e-4, gt=0, description="peak rate of AdamW; linear warm-up, then linear decay")
    warmup: float = Field(0.06, ge=0, lt=1, description="share of the steps that warm up")
    weight_decay: float = Field(0.0, ge=0, description="AdamW weight decay")
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    max_length: int = Field(128, ge=16, description="longest piece of a text, in tokens")
    checkpoint_every: int = Field(50, ge=1, description="steps between checkpoints")

    @property
    @abstractmethod
    def total_steps(self) -> int:
        """Optimiser steps of all stages."""

    def stage(self, step: int) -> int:
        """The stage that a step belongs to, from 1; for the log."""
        return 1

    def reads_text(self, has_pairs: bool) -> bool:
        """Whether training needs ``--text``, given ``--pairs`` or not."""
        return True


class TextSettings(BaseModel):
    """Running text, for recipes that learn to predict what it lost."""

    texts_per_step: int = Field(16, ge=1, description="texts that lose spans or tokens in each step")


class MaskSettings(BaseModel):
    """Tokens that are masked, for recipes with MNTP."""

    mask_probability: float = Field(0.2, gt=0, lt=1, description="share of context tokens picked for MNTP")
    mask_replaced: float = Field(
        0.8, ge=0, le=1, description="of the picked ones, the share that becomes the mask token"
    )
    mask_random: float = Field(0.1, ge=0, le=1, description="of the picked ones, the share that becomes a random token")
    mask_token: str | None = Field(
        None, description="the mask token; by default the vocabulary's own, else a rare one ('_')"
    )

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        if self.mask_replaced + self.mask_random > 1:
            raise ValueError("mask_replaced and mask_random are more than 1 together: lower one of the two")
        return self


class SpanSettings(TextSettings):
    """Texts that lose spans, for recipes that learn to fill them in."""

    span_tokens_min: int = Field(8, ge=1, description="shortest missing span of random place, in tokens")
    span_tokens_max: int = Field(32, ge=1, description="longest missing span, in tokens")
    sentence_spans: float = Field(
        0.5, ge=0, le=1, description="share of texts that lose a whole sentence, where they have one"
    )
    second_span: float = Field(0.15, ge=0, le=1, description="share of texts that lose a second span")

    @model_validator(mode="after")
    def _spans_fit(self) -> Self:
        if self.span_tokens_min > self.span_tokens_max:
            raise ValueError("span_tokens_min is larger than span_tokens_max")
        return self


class EmbeddingSettings(BaseModel):
    """How the adapted model embeds, for recipes that teach it to read both ways."""

    pooling: Pooling = Field("last", description="sentence vector: last (an appended end token), mean, weighted_mean")
    prompt: str = Field("", description="prefix of every text that is embedded, or a template with {text}; '' for none")
    sink: bool = Field(
        True,
        description="the start token of every text sees only itself, which keeps the attention sink that the model learned;"
        " false: the papers' mask",
    )


class ContrastiveSettings(EmbeddingSettings):
    """Sentence vectors that are pulled together, for recipes with a contrastive objective."""

    pairs_per_step: int = Field(48, ge=2, description="pairs compared in each step")
    pair_tokens_max: int = Field(48, ge=4, description="longest text of a pair, in tokens")
    temperature: float = Field(0.05, gt=0, description="temperature of the contrastive loss")


class PairSettings(ContrastiveSettings):
    """The same for recipes that can do without a file of pairs: a text is compared with itself then."""

    views: Literal["pairs", "dropout", "both"] | None = Field(
        None,
        description="what is compared: the pairs of --pairs, one text under two dropout masks, or both; by what is given",
    )
    attention_dropout: float = Field(
        0.1, ge=0, lt=1, description="attention dropout for dropout views (Llama-shaped models have none of their own)"
    )


class ConversationSettings(BaseModel):
    """Conversations whose answers are predicted, for recipes of instruction tuning."""

    conversations_per_step: int = Field(32, ge=1, description="conversations answered in each step")
