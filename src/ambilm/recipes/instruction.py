"""Instruction tuning: the answers of conversations are predicted, under a choice of attention masks.

The comparison of Li et al. (ICML 2025, UBMoE) between causal training, prefix-LM (the prompt is seen both ways, Raffel et
al. 2020, section 3.2) and a mixture of both. Under ``prefix`` one answer of a conversation is drawn and all before it is its
prompt, which is how the model is used afterwards: ``ambilm chat RUN --weights merged --layout prefix``.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ambilm.adaptation import AdapterSettings
from ambilm.recipes.base import ConversationSettings, Recipe


class Instruction(ConversationSettings, AdapterSettings, Recipe):
    """Settings of instruction tuning."""

    name: ClassVar[str] = "instruction"
    summary: ClassVar[str] = "instruction tuning on conversations: causal, prefix-LM, or both mixed"

    steps: int = Field(1000, ge=1, description="steps")
    mask: Literal["causal", "prefix", "mixed"] = Field(
        "causal", description="who sees whom: causal; prefix, the prompt of an answer both ways; mixed, half and half"
    )
    sink: bool = Field(True, description="the first token of a prompt that is seen both ways sees only itself")
    learning_rate: float = Field(2e-4, gt=0, description="peak rate of AdamW; linear warm-up, then linear decay")
    max_length: int = Field(512, ge=16, description="longest conversation, in tokens; the end of a longer one is cut")

    @property
    def total_steps(self) -> int:
        return self.steps
