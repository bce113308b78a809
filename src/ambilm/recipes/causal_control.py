"""The equally tuned control of every infilling table: a causal LoRA on the same spans, left to right.

Same seed, same texts, same spans, same number of steps as MAGNET; it sees only what comes before the span.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ambilm.adaptation import AdapterSettings
from ambilm.recipes.base import Recipe, SpanSettings


class CausalControl(SpanSettings, AdapterSettings, Recipe):
    """Settings of the control."""

    name: ClassVar[str] = "causal_control"
    summary: ClassVar[str] = "the fair control for infilling: a causal LoRA on the same spans, left to right"

    steps: int = Field(300, ge=1, description="steps")

    @property
    def total_steps(self) -> int:
        return self.steps
