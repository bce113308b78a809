"""SimCSE read both ways (Gao et al. 2021; BehnamGhader et al. 2024, LLM2Vec, section 2).

A text under two dropout masks is its own positive, all other texts of the step are negatives; with ``--pairs`` the
supervised form. The same training as recipe ``bidirectional``, with LLM2Vec's defaults: every projection, mean pooling, no
prompt. Dropout sits on the attention, as there.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ambilm.recipes.bidirectional import Bidirectional


class Simcse(Bidirectional):
    """Settings of SimCSE."""

    name: ClassVar[str] = "simcse"
    summary: ClassVar[str] = "sentence vectors from one text under two dropout masks, or from pairs (EMNLP 2021)"

    steps: int = Field(1000, ge=1, description="steps")
    modules: str = Field(
        "att+ffn", description="module groups joined by '+': att, ffn, ffn_gate (up and down), emb; or all"
    )
    rank: int = Field(16, ge=1, description="rank of the LoRA difference")
    alpha: float = Field(32.0, gt=0, description="LoRA scale: the difference counts alpha / rank")
    rank_stabilised: bool = Field(False, description="rsLoRA: the difference counts alpha / sqrt(rank)")
    learning_rate: float = Field(
        3e-5, gt=0, description="peak rate of AdamW; linear warm-up, then linear decay (LLM2Vec with pairs: 2e-4)"
    )
    pairs_per_step: int = Field(128, ge=2, description="pairs compared in each step (LLM2Vec with pairs: 512)")
    pair_tokens_max: int = Field(128, ge=4, description="longest text of a pair, in tokens")
    attention_dropout: float = Field(
        0.3, ge=0, lt=1, description="attention dropout for dropout views (Llama-shaped models have none of their own)"
    )
    prompt: str = Field("", description="prefix of every text that is embedded, or a template with {text}; '' for none")
