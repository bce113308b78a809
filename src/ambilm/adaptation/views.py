"""Two module trees over one set of weights.

An adapter that is switched on and off on a shared module, or a config flag that is flipped for the length of a call, can
turn a causal call in another thread bidirectional. AmbiLM never switches. The base model stays exactly as transformers
built it; a second tree of modules, sharing every weight tensor with the first, carries the adapter and attends by layout.
The cost is the Python objects, not the weights, and causal generation is bit-identical to the base by construction.
"""

from __future__ import annotations

import copy
from itertools import chain
from types import MethodType

from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from ambilm.attention.kernels import ATTENTION_NAME, register_attention


def shared_view(base: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules and the config of ``base`` that shares all its parameters and buffers.

    The copy attends by layout: each forward call needs the keyword ``layout`` (see :mod:`ambilm.attention`).
    """
    register_attention()
    shared = {id(tensor): tensor for tensor in chain(base.parameters(), base.buffers())}
    view: PreTrainedModel = copy.deepcopy(base, shared)
    for module in view.modules():
        config = getattr(module, "config", None)
        if config is not None:
            config._attn_implementation = ATTENTION_NAME
        if isinstance(module, nn.LayerNorm):
            module.forward = MethodType(_layer_norm, module)  # type: ignore[method-assign]
    return view


def _layer_norm(module: nn.LayerNorm, hidden: Tensor) -> Tensor:
    """LayerNorm of a float32 residual stream under half-precision weights, which PyTorch refuses on a CPU.

    (..., hidden) to (..., hidden), in the dtype of ``hidden``.
    """
    weight, bias = (None if tensor is None else tensor.to(hidden.dtype) for tensor in (module.weight, module.bias))
    return F.layer_norm(hidden, module.normalized_shape, weight, bias, module.eps)
