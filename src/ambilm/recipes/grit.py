"""GRIT (Muennighoff et al., ICLR 2025, "Generative Representational Instruction Tuning", section 2): one model, both losses.

Each step compares pairs, read both ways, and predicts the answers of conversations, left to right; the weighted losses are
added. ``--pairs`` gives the pairs, ``--text`` the conversations. GritLM has one set of weights for both jobs: measure and
use it with ``weights=merged``, since by default the base generates here.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ambilm.adaptation import AdapterSettings
from ambilm.model.settings import Pooling
from ambilm.recipes.base import ContrastiveSettings, ConversationSettings, Recipe


class Grit(ConversationSettings, ContrastiveSettings, AdapterSettings, Recipe):
    """Settings of GRIT."""

    name: ClassVar[str] = "grit"
    summary: ClassVar[str] = "one model that embeds and answers: contrastive and answer loss together (ICLR 2025)"

    steps: int = Field(1000, ge=1, description="steps")
    lambda_contrastive: float = Field(1.0, ge=0, description="weight of the contrastive loss")
    lambda_answer: float = Field(1.0, ge=0, description="weight of the answers' loss")
    conversations_per_step: int = Field(8, ge=1, description="conversations answered in each step")
    temperature: float = Field(0.02, gt=0, description="temperature of the contrastive loss")
    learning_rate: float = Field(2e-4, gt=0, description="peak rate of AdamW; linear warm-up, then linear decay")
    pooling: Pooling = Field("mean", description="sentence vector: mean, weighted_mean, last (an appended end token)")
    max_length: int = Field(512, ge=16, description="longest conversation, in tokens; the end of a longer one is cut")

    @property
    def total_steps(self) -> int:
        return self.steps
