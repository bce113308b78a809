"""Recipes: a method is a typed choice over shared parts. One file each."""

from ambilm.recipes.ambi import Ambi
from ambilm.recipes.base import (
    ContrastiveSettings,
    ConversationSettings,
    EmbeddingSettings,
    MaskSettings,
    NamedSettings,
    PairSettings,
    Recipe,
    SpanSettings,
)
from ambilm.recipes.bidirectional import Bidirectional
from ambilm.recipes.causal_control import CausalControl
from ambilm.recipes.grit import Grit
from ambilm.recipes.instruction import Instruction
from ambilm.recipes.llm2vec import Llm2vec
from ambilm.recipes.magnet import Magnet
from ambilm.recipes.mntp import Mntp
from ambilm.recipes.simcse import Simcse
from ambilm.recipes.ubmoe import Ubmoe

RECIPES: dict[str, type[Recipe]] = {
    "ambi": Ambi,
    "magnet": Magnet,
    "bidirectional": Bidirectional,
    "causal_control": CausalControl,
    "ubmoe": Ubmoe,
    "mntp": Mntp,
    "simcse": Simcse,
    "llm2vec": Llm2vec,
    "instruction": Instruction,
    "grit": Grit,
}

__all__ = [
    "RECIPES",
    "Ambi",
    "Bidirectional",
    "CausalControl",
    "ContrastiveSettings",
    "ConversationSettings",
    "EmbeddingSettings",
    "Grit",
    "Instruction",
    "Llm2vec",
    "Magnet",
    "MaskSettings",
    "Mntp",
    "NamedSettings",
    "PairSettings",
    "Recipe",
    "Simcse",
    "SpanSettings",
    "Ubmoe",
]
