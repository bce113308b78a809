"""UBMoE (Li et al., ICML 2025, section 4): the FFN and its bidirectionally tuned twin as two experts, and gates between them.

Only the gates are trained: on conversations, left to right, by the loss of the answers plus a little load balancing.
``--model`` is a run of recipe ``bidirectional`` with ``modules=ffn``, which becomes expert 1; given a base model and
``--pairs``, that run is made first.
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ambilm.adaptation import MixtureChoices
from ambilm.recipes.base import ConversationSettings, Recipe


class Ubmoe(ConversationSettings, MixtureChoices, Recipe):
    """Settings of UBMoE."""

    name: ClassVar[str] = "ubmoe"
    summary: ClassVar[str] = (
        "two experts in each FFN, the base's and a bidirectionally tuned one, and gates (ICML 2025)"
    )

    steps: int = Field(1000, ge=1, description="steps of the gates")
    expert_steps: int = Field(200, ge=1, description="steps of expert 1, where it is trained first (--pairs)")
    learning_rate: float = Field(1e-2, gt=0, description="peak rate of AdamW; linear warm-up, then linear decay")
    max_length: int = Field(512, ge=16, description="longest conversation, in tokens; the end of a longer one is cut")

    @property
    def total_steps(self) -> int:
        return self.steps
