"""Two module trees over one set of weights.

An adapter that is switched on and off on a shared module, or a config flag that is flipped for the length of a call, can
turn a causal call in another thread bidirectional. AmbiLM never switches. The base model stays exactly as transformers
built it; a second tree of modules, sharing every weight tensor with the first, carries the adapter and attends by layout.
The cost is the Python objects, not the weights, and causal generation is bit-identical to the base by construction.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from ambilm.attention.kernels import ATTENTION_NAME, register_attention


def stock_view(base: PreTrainedModel) -> PreTrainedModel:
    """A copy of the modules and the config of ``base`` that shares all its parameters and buffers.

    The copy attends by layout: each forward call needs the keyword ``layout`` (see :mod:`ambilm.attention`). Nothing else
    differs from the base, not even its rounding.
    """
    register_attention()
    shared = {id(tensor): tensor for tensor in chain(base.parameters(), base.buffers())}
    view: PreTrainedModel = copy.deepcopy(base, shared)
    for module in view.modules():
        config = getattr(module, "config", None)
        if config is not None:
            config._attn_implementation = ATTENTION_NAME
    return view


def shared_view(base: PreTrainedModel) -> PreTrainedModel:
    """A stock view made ready for a float32 residual stream over half-precision weights (``ambilm.model.forward``)."""
    view = stock_view(base)
    for module in view.modules():
        if isinstance(module, nn.LayerNorm):
            module.forward = MethodType(_layer_norm, module)  # type: ignore[method-assign]
        elif type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = _half_rotary(module.forward)  # type: ignore[method-assign]
    for layer in (item for module in view.modules() if isinstance(module, nn.ModuleList) for item in module):
        for module in layer.modules():
            if type(module).__name__.endswith("RMSNorm"):
                _make_norm_lean(module)
    return view


def _layer_norm(module: nn.LayerNorm, hidden: Tensor) -> Tensor:
    """LayerNorm of a float32 residual stream under half-precision weights, which PyTorch refuses on a CPU.

    (..., hidden) to (..., hidden), in the dtype of ``hidden``.
    """
    weight, bias = (None if tensor is None else tensor.to(hidden.dtype) for tensor in (module.weight, module.bias))
    return F.layer_norm(hidden, module.normalized_shape, weight, bias, module.eps)


# Under half-precision weights the residual stream stays in float32 (ambilm.model.forward), but what is read from it goes
# into half-precision products only. Rounded where it is made, it is rounded once instead of before every product, and
# half as many bytes move: on a CPU with AMX these bytes, not the products, are most of the time.


def _half(tensor: Tensor) -> Tensor:
    """In the dtype of the products: autocast's while it is on, else unchanged."""
    kind = tensor.device.type
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


def _half_rotary(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Cosines and sines in the dtype of the queries that they turn, as in a stock half-precision model."""

    def forward(*arguments: Any, **keywords: Any) -> Any:
        return tuple(_half(turn) for turn in stock(*arguments, **keywords))

    return forward


def _make_norm_lean(module: nn.Module) -> None:
    """Gives an RMSNorm inside a layer a forward with fewer passes over memory, if it is one of the two known kinds.

    Families scale by ``weight`` (Llama) or by ``1 + weight`` (Gemma); which one, the module's own answer on a probe tells.
    """
    weight = getattr(module, "weight", None)
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    if not isinstance(weight, Tensor) or not isinstance(epsilon, float):
        return
    probe = torch.linspace(-2, 3, len(weight), device=weight.device)[None]  # (1, hidden)
    stock = module.forward(probe)
    for offset in (0.0, 1.0):
        lean = _lean_norm(module, epsilon, offset)
        if torch.allclose(lean(probe).float(), stock.float(), rtol=1e-2, atol=1e-3):
            module.forward = lean  # type: ignore[method-assign]
            return


def _lean_norm(module: nn.Module, epsilon: float, offset: float) -> Callable[[Tensor], Tensor]:
    """RMSNorm with its statistics in float32 and its output in the dtype of the products; (..., hidden) to itself."""

    def forward(hidden: Tensor) -> Tensor:
        wide = hidden.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)  # (..., 1)
        normed = _half(wide * torch.rsqrt(length * length / wide.shape[-1] + epsilon))
        weight: Tensor = module.weight.float() + offset if offset else module.weight  # type: ignore[assignment, operator]
        return normed * weight.to(normed.dtype)

    return forward
