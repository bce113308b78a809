"""MNTP alone (BehnamGhader et al. 2024, LLM2Vec, section 2): masked tokens, each predicted one place earlier, from both sides.

LLM2Vec's first stage, and the baseline of both papers' tables. The defaults are the published ones: a fifth of the tokens,
all of them replaced by a rare token, LoRA on every layer's projections. Words are read one token earlier afterwards; the
sentence vector is the mean. Its mask has no sink (``sink=false``).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ambilm.adaptation import AdapterSettings
from ambilm.model.settings import Pooling
from ambilm.recipes.base import EmbeddingSettings, MaskSettings, Recipe, TextSettings


class Mntp(MaskSettings, TextSettings, EmbeddingSettings, AdapterSettings, Recipe):
    """Settings of MNTP."""

    name: ClassVar[str] = "mntp"
    summary: ClassVar[str] = "token vectors from masked next-token prediction alone, LLM2Vec's first stage (COLM 2024)"

    steps: int = Field(1000, ge=1, description="steps")
    texts_per_step: int = Field(32, ge=1, description="texts that lose tokens in each step")
    max_length: int = Field(512, ge=16, description="longest piece of a text, in tokens")
    mask_replaced: float = Field(
        1.0, ge=0, le=1, description="of the picked ones, the share that becomes the mask token"
    )
    mask_random: float = Field(0.0, ge=0, le=1, description="of the picked ones, the share that becomes a random token")
    dropout: float = Field(0.05, ge=0, lt=1, description="dropout on the input of each LoRA difference")
    learning_rate: float = Field(5e-5, gt=0, description="peak rate of AdamW; linear warm-up, then linear decay")
    pooling: Pooling = Field("mean", description="sentence vector: mean, weighted_mean, last (an appended end token)")

    @property
    def total_steps(self) -> int:
        return self.steps
