"""Which weights do the work in each direction: a second view of the same weights, adapters on it, and two-expert FFNs."""

from ambilm.adaptation.adapters import (
    MODULE_GROUPS,
    AdapterSettings,
    add_adapter,
    load_adapter,
    merged_copy,
    save_adapter,
    trainable_parameters,
)
from ambilm.adaptation.mixture import (
    MixtureChoices,
    MixtureSettings,
    Recorder,
    add_mixture,
    expert_parameters,
    gate_parameters,
    has_mixture,
    load_mixture,
    routing,
    save_mixture,
    set_route,
    take_experts_from,
    tuned_copy,
    with_mixture,
)
from ambilm.adaptation.views import shared_view, stock_view

__all__ = [
    "MODULE_GROUPS",
    "AdapterSettings",
    "MixtureChoices",
    "MixtureSettings",
    "Recorder",
    "add_adapter",
    "add_mixture",
    "expert_parameters",
    "gate_parameters",
    "has_mixture",
    "load_adapter",
    "load_mixture",
    "merged_copy",
    "routing",
    "save_adapter",
    "save_mixture",
    "set_route",
    "shared_view",
    "stock_view",
    "take_experts_from",
    "trainable_parameters",
    "tuned_copy",
    "with_mixture",
]
