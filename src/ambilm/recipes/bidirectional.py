"""Bidirectional fine-tuning of one module group (Li et al. 2025, section 3): contrastive learning alone, read both ways.

It gives UBMoE its second expert, and the module ablation its rows. Pairs, pairs with hard negatives, or (without
``--pairs``) one text under two dropout masks. The defaults are the paper's prompt, pooling and LoRA; its mask has no
sink (``sink=false``).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ambilm.adaptation import AdapterSettings
from ambilm.model.settings import REPRESENTATIVE_WORD, Pooling
from ambilm.recipes.base import PairSettings, Recipe


class Bidirectional(PairSettings, AdapterSettings, Recipe):
    """Settings of bidirectional fine-tuning."""

    name: ClassVar[str] = "bidirectional"
    summary: ClassVar[str] = "sentence vectors from contrastive tuning of one module group, UBMoE's expert (ICML 2025)"

    steps: int = Field(200, ge=1, description="steps; the paper takes one epoch over about 480,000 triplets")
    modules: str = Field(
        "ffn", description="module groups joined by '+': att, ffn, ffn_gate (up and down), emb; or all"
    )
    rank: int = Field(8, ge=1, description="rank of the LoRA difference")
    alpha: float = Field(16.0, gt=0, description="LoRA scale: the difference counts alpha / rank")
    dropout: float = Field(0.05, ge=0, lt=1, description="dropout on the input of each LoRA difference")
    rank_stabilised: bool = Field(True, description="rsLoRA: the difference counts alpha / sqrt(rank)")
    learning_rate: float = Field(3e-4, gt=0, description="peak rate of AdamW; linear warm-up, then linear decay")
    pairs_per_step: int = Field(64, ge=2, description="pairs compared in each step")
    pooling: Pooling = Field("mean", description="sentence vector: mean, weighted_mean, last (an appended end token)")
    prompt: str = Field(
        REPRESENTATIVE_WORD,
        description="prefix of every text that is embedded, or a template with {text}; '' for none",
    )
    drawn_negatives: bool = Field(
        False, description="a pair without a hard negative gets another text as one, never its own anchor or positive"
    )

    @property
    def total_steps(self) -> int:
        return self.steps

    def reads_text(self, has_pairs: bool) -> bool:
        return not has_pairs or self.views in ("dropout", "both")
