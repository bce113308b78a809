"""Which weights do the work in each direction: a second view of the same weights, and adapters on it."""

from ambilm.adaptation.adapters import (
    MODULE_GROUPS,
    AdapterSettings,
    add_adapter,
    load_adapter,
    merged_copy,
    save_adapter,
    trainable_parameters,
)
from ambilm.adaptation.views import shared_view

__all__ = [
    "MODULE_GROUPS",
    "AdapterSettings",
    "add_adapter",
    "load_adapter",
    "merged_copy",
    "save_adapter",
    "shared_view",
    "trainable_parameters",
]
