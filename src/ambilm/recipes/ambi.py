"""AmbiLM's own recipe: MAGNET's objectives with quiet MNTP, hard negatives, and a teacher that says who is near whom.

Every choice was measured on dev parts; ``docs/log.md`` has the steps.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ambilm.model.settings import PROMPT_EOL
from ambilm.recipes.magnet import Magnet


class Ambi(Magnet):
    """Settings of the recipe; what is not named here is MAGNET's."""

    name: ClassVar[str] = "ambi"
    summary: ClassVar[str] = "AmbiLM's own: MAGNET's objectives, hard negatives and distillation from a teacher encoder"

    teacher: str | None = Field(
        None,
        description="encoder to learn from: all-minilm-l6-v2, or what sentence-transformers loads (directory, hub id); null: none",
    )
    lambda_distillation: float = Field(1.0, ge=0, description="weight of the distillation")

    # The untrained template reads a sentence well already; training starts from there.
    prompt: str = Field(PROMPT_EOL, description="prefix or template of every text that is embedded; '' for none")
    pairs_per_step: int = Field(32, ge=2, description="pairs compared in each step")
    learning_rate: float = Field(1e-3, gt=0, description="peak rate of AdamW; linear warm-up, then linear decay")
    # Every objective beside MSG costs infilling a little.
    lambda_mntp: float = Field(0.1, ge=0, description="weight of MNTP")
    clean_share: float = Field(
        0.9, ge=0, le=1, description="share of texts with spans whose context stays clean, as it is when infilling"
    )
    natural_gap: float = Field(
        0.8, ge=0, le=1, description="share of texts whose gap is exactly the length of the span"
    )
