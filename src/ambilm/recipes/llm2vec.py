"""LLM2Vec (BehnamGhader et al., COLM 2024): MNTP first, then SimCSE, or with ``--pairs`` its supervised form.

``--model`` is a run of recipe ``mntp``, with settings of its own; given a base model, that run is made first. The paper
merges the first stage's LoRA into the weights and trains a new one on top. Here the second stage goes on with the *same*
adapter: merged weights would no longer generate what the base generates. What both stages learn then has rank r; the
paper's two differences have up to 2 r together (``rank`` makes up for it).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ambilm.recipes.simcse import Simcse


class Llm2vec(Simcse):
    """Settings of LLM2Vec."""

    name: ClassVar[str] = "llm2vec"
    summary: ClassVar[str] = "token and sentence vectors in two stages: MNTP, then SimCSE or pairs (COLM 2024)"

    steps: int = Field(1000, ge=1, description="steps of the second stage")
    mntp_steps: int = Field(1000, ge=1, description="steps of MNTP, where it is trained first")

    def stage(self, step: int) -> int:
        return 2
