"""MAGNET (Khosla et al., ACL 2025): MNTP + SSCL + MSG under the hybrid mask, in two stages.

What the paper leaves open is a choice here, named and described; ``docs/magnet.md`` gives the reasons.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ambilm.adaptation import AdapterSettings
from ambilm.model.settings import MAGNET_PROMPT
from ambilm.recipes.base import MaskSettings, PairSettings, Recipe, SpanSettings


class Magnet(PairSettings, SpanSettings, MaskSettings, AdapterSettings, Recipe):
    """Settings of MAGNET."""

    name: ClassVar[str] = "magnet"
    summary: ClassVar[str] = (
        "sentence vectors, token vectors and infilling from one adapter: MNTP + SSCL + MSG (ACL 2025)"
    )

    stage1_steps: int = Field(
        100, ge=0, description="steps of the first stage: MNTP + MSG teach the model to use the future"
    )
    stage2_steps: int = Field(200, ge=0, description="steps of the second stage: all three objectives")
    lambda_mntp: float = Field(1.0, ge=0, description="weight of MNTP")
    lambda_sscl: float = Field(1.0, ge=0, description="weight of SSCL")
    lambda_msg: float = Field(1.0, ge=0, description="weight of MSG")

    clean_share: float = Field(
        0.5, ge=0, le=1, description="share of texts with spans whose context stays clean, as it is when infilling"
    )
    gap_jitter: int = Field(
        32, ge=0, description="up to so many positions more than the span needs are reserved for it"
    )
    natural_gap: float = Field(
        0.3, ge=0, le=1, description="share of texts whose gap is exactly the length of the span"
    )

    prompt: str = Field(MAGNET_PROMPT, description="prefix of every text that is embedded; '' for none")
    packed: bool = Field(
        True, description="all views in one packed forward pass; false: three padded passes, the reference"
    )

    @property
    def total_steps(self) -> int:
        return self.stage1_steps + self.stage2_steps

    def stage(self, step: int) -> int:
        return 1 if step < self.stage1_steps else 2
