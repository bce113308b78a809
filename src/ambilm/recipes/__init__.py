"""Recipes: a method is a typed choice over shared parts. One file each."""

from ambilm.recipes.base import PairSettings, Recipe, SpanSettings
from ambilm.recipes.bidirectional import Bidirectional
from ambilm.recipes.causal_control import CausalControl
from ambilm.recipes.magnet import Magnet

RECIPES: dict[str, type[Recipe]] = {
    "magnet": Magnet,
    "bidirectional": Bidirectional,
    "causal_control": CausalControl,
}

__all__ = [
    "RECIPES",
    "Bidirectional",
    "CausalControl",
    "Magnet",
    "PairSettings",
    "Recipe",
    "SpanSettings",
]
