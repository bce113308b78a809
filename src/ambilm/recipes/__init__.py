"""Recipes: a method is a typed choice over shared parts. One file each."""

from ambilm.recipes.base import Recipe
from ambilm.recipes.causal_control import CausalControl
from ambilm.recipes.magnet import Magnet

RECIPES: dict[str, type[Recipe]] = {"magnet": Magnet, "causal_control": CausalControl}

__all__ = ["RECIPES", "CausalControl", "Magnet", "Recipe"]
