"""UBMoE as a checkpoint of stock transformers: a mixture of two experts with top-1 routing, which loads without AmbiLM.

Llama- and Mistral-shaped models become Mixtral, Qwen3-shaped ones Qwen3-MoE: their attention, norms and expert FFNs compute
the same, and their routers are a linear layer without bias over the softmax, as UBMoE's gates are. What such a directory
gives is the *learned* routing; the base's own text and the bidirectional jobs need AmbiLM.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen3MoeConfig,
)

from ambilm.adaptation import MixtureSettings, gate_parameters, tuned_copy
from ambilm.errors import UserError
from ambilm.export.stock import fresh_directory
from ambilm.loading.quiet import quiet_transformers
from ambilm.model.ambilm import AmbiLM

EXPERT_PRODUCTS = ("gate_proj", "up_proj", "down_proj")


def export_moe(model: AmbiLM, output: Path) -> None:
    """Writes the two experts and the gates as a stock mixture-of-experts model (Li et al. 2025, section 4).

    Logits under learned routing equal AmbiLM's in float32. In half precision a stock router rounds too, where AmbiLM's
    gates stay in float32: a token near a tie may take the other expert.

    Raises:
        UserError: when the model has no experts, its family or its scaling has no stock counterpart, or ``output`` is not
            empty.
    """
    if model.mixture is None:
        raise UserError(f"{model.name} has no two experts to export: train recipe ubmoe, or export with --to merged.")
    config = _stock_config(model.base.config, model.mixture)
    stock = _stock_model(config, _stock_weights(model))
    stock.generation_config = model.base.generation_config
    with fresh_directory(output) as directory, quiet_transformers():
        stock.save_pretrained(directory)
        model.tokenizer.save_pretrained(directory)


def _stock_config(base: PreTrainedConfig, mixture: MixtureSettings) -> PreTrainedConfig:
    if base.model_type not in STOCK:
        raise UserError(
            f"transformers has no mixture-of-experts model that computes as {base.model_type} does:"
            f" --to moe knows {', '.join(STOCK)}."
        )
    return STOCK[base.model_type](base, mixture)


def _mixtral(base: PreTrainedConfig, mixture: MixtureSettings) -> PreTrainedConfig:
    if mixture.scaling == "switch":
        raise UserError(
            "Mixtral counts the picked expert fully, so scaling=switch cannot be exported:"
            " train with --set scaling=straight_through."
        )
    return MixtralConfig(**_shared(base, MixtralConfig), num_local_experts=2, num_experts_per_tok=1)


def _qwen3_moe(base: PreTrainedConfig, mixture: MixtureSettings) -> PreTrainedConfig:
    return Qwen3MoeConfig(
        **_shared(base, Qwen3MoeConfig),
        head_dim=base.head_dim,
        moe_intermediate_size=base.intermediate_size,
        num_experts=2,
        num_experts_per_tok=1,
        # Normalised over the one that is picked, its weight is 1; else it is the gate's probability.
        norm_topk_prob=mixture.scaling == "straight_through",
    )


STOCK: dict[str, Callable[[PreTrainedConfig, MixtureSettings], PreTrainedConfig]] = {
    "llama": _mixtral,
    "mistral": _mixtral,
    "qwen3": _qwen3_moe,
}


def _shared(base: PreTrainedConfig, kind: type[PreTrainedConfig]) -> dict[str, Any]:
    """What both configs know by the same name, except what they are."""
    known = set(kind().to_dict()) - {"model_type", "architectures", "transformers_version"}
    return {name: value for name, value in base.to_dict().items() if name in known}


def _stock_weights(model: AmbiLM) -> dict[str, Tensor]:
    """Name in the stock model to weight: the base's, without its FFNs, and the gates and both experts of each layer."""
    base, tuned = model.base.state_dict(), tuned_copy(model.view, model.base).state_dict()
    weights = dict(base)
    for gate, weight in gate_parameters(model.view).items():
        ffn = gate.removesuffix(".gate.weight")
        weights[gate] = weight.detach().to(model.base.dtype)  # (2, hidden)
        parts = {
            product: torch.stack([state[f"{ffn}.{product}.weight"] for state in (base, tuned)])
            for product in EXPERT_PRODUCTS
        }
        weights[f"{ffn}.experts.gate_up_proj"] = torch.cat([parts["gate_proj"], parts["up_proj"]], dim=1)
        weights[f"{ffn}.experts.down_proj"] = parts["down_proj"]  # (2, hidden, intermediate)
        for product in EXPERT_PRODUCTS:
            del weights[f"{ffn}.{product}.weight"]
    return weights


def _stock_model(config: PreTrainedConfig, weights: dict[str, Tensor]) -> PreTrainedModel:
    """The model of ``config`` that holds ``weights``, to be saved, not to be run."""
    with torch.device("meta"):  # no time for random values that nobody reads
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    try:
        model.load_state_dict(weights, assign=True)
    except RuntimeError:
        odd = sorted(set(weights) ^ set(model.state_dict()))
        raise UserError(
            f"{config.model_type} has no place for {odd[0]}, so this model cannot be exported with --to moe."
        ) from None
    model.tie_weights()
    return model
