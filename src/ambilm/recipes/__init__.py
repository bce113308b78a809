"""Recipes: a method is a typed choice over shared parts. One file each."""

from ambilm.recipes.base import ConversationSettings, PairSettings, Recipe, SpanSettings
from ambilm.recipes.bidirectional import Bidirectional
from ambilm.recipes.causal_control import CausalControl
from ambilm.recipes.magnet import Magnet
from ambilm.recipes.ubmoe import Ubmoe

RECIPES: dict[str, type[Recipe]] = {
    "magnet": Magnet,
    "bidirectional": Bidirectional,
    "causal_control": CausalControl,
    "ubmoe": Ubmoe,
}

__all__ = [
    "RECIPES",
    "Bidirectional",
    "CausalControl",
    "ConversationSettings",
    "Magnet",
    "PairSettings",
    "Recipe",
    "SpanSettings",
    "Ubmoe",
]
