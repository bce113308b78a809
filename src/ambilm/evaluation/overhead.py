"""What a second expert costs, counted: parameters, and floating-point operations of a forward pass."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

SHAPE = (8, 128)  # texts, tokens


def parameter_count(model: PreTrainedModel) -> int:
    """Parameters, shared ones once."""
    return sum(parameter.numel() for parameter in model.parameters())


@torch.inference_mode()
def prefill(model: PreTrainedModel, ids: Tensor) -> None:
    """Reads prompts, (batch, length), as generation does: all keys and values, logits of the last token only."""
    model(ids, use_cache=True, logits_to_keep=1)


def prefill_flops(model: PreTrainedModel, ids: Tensor) -> int:
    """Floating-point operations of :func:`prefill`, as PyTorch counts them: matrix products and attention."""
    with FlopCounterMode(display=False) as counter:
        prefill(model, ids)
    return int(counter.get_total_flops())


def counted_overhead(base: PreTrainedModel, gated: PreTrainedModel) -> dict[str, int]:
    """Parameters and operations of both, for ``SHAPE`` random tokens."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(base.get_input_embeddings().num_embeddings, SHAPE, generator=generator)  # (texts, tokens)
    ids = ids.to(base.device)
    return {
        "base_parameters": parameter_count(base),
        "parameters": parameter_count(gated),
        "base_flops": prefill_flops(base, ids),
        "flops": prefill_flops(gated, ids),
    }
