"""One forward pass of a view under a layout, and the logits where they are asked for."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, PreTrainedModel

from ambilm.attention import Layout, Tokens


def cache_keyword(model: nn.Module) -> str:
    """transformers 5.24 renames ``past_key_values`` to ``cache``."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def weights_dtype(view: PreTrainedModel) -> torch.dtype:
    """That of the head, which no adapter touches: fully tuned modules are float32 whatever the base is."""
    return view.get_output_embeddings().weight.dtype  # type: ignore[union-attr, return-value]


def precise(view: PreTrainedModel) -> contextlib.AbstractContextManager[Any]:
    """For half-precision weights: matrix products in half precision, residual stream and norms in float32.

    Rounding the residual stream itself makes a sentence's vector depend on its batch (cosine down to 0.97).
    """
    dtype = weights_dtype(view)
    if dtype in (torch.bfloat16, torch.float16):
        return torch.autocast(view.device.type, dtype=dtype)
    return contextlib.nullcontext()


def hidden_states(view: PreTrainedModel, ids: Tensor, layout: Layout, cache: Cache | None = None) -> Tensor:
    """Last hidden states after the final norm.

    Args:
        view: from :func:`ambilm.adaptation.shared_view`.
        ids: (batch, length).
        layout: roles and positions of these tokens and of the cached ones.
        cache: earlier keys and values, extended in place.

    Returns:
        (batch, length, hidden); float32 under half-precision weights.
    """
    backbone = view.base_model
    arguments: dict[str, Any] = {
        "position_ids": layout.queries.position,
        "use_cache": cache is not None,
        "layout": layout,
    }
    if cache is not None:
        arguments[cache_keyword(backbone)] = cache
    with precise(view):
        if weights_dtype(view) == torch.float32:
            arguments["input_ids"] = ids
        else:
            arguments["inputs_embeds"] = view.get_input_embeddings()(ids).float()  # (batch, length, hidden)
        return backbone(**arguments).last_hidden_state


def logits(view: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Next-token logits of chosen hidden states, (..., hidden) to (..., vocabulary), float32."""
    with precise(view):
        scores = view.get_output_embeddings()(hidden).float()
    scale = getattr(view.config, "logit_scale", None)  # Cohere
    if scale is not None:
        scores = scores * scale
    cap = getattr(view.config, "final_logit_softcapping", None)  # Gemma2
    return scores if cap is None else torch.tanh(scores / cap) * cap


def next_logits(view: PreTrainedModel, ids: Tensor, layout: Layout, cache: Cache) -> Tensor:
    """The logits after the last of ``ids`` (rows, length), (rows, vocabulary); keys and values join the cache."""
    return logits(view, hidden_states(view, ids, layout, cache)[:, -1])


def stock_next_logits(view: PreTrainedModel, ids: Tensor, layout: Layout, cache: Cache) -> Tensor:
    """The same with the base model's own rounding; ``view`` is from :func:`ambilm.adaptation.stock_view`."""
    arguments: dict[str, Any] = {cache_keyword(view): cache, "layout": layout, "logits_to_keep": 1}
    output = view(input_ids=ids, position_ids=layout.queries.position, use_cache=True, **arguments)
    return output.logits[:, -1].float()


def pack(sequences: Sequence[Sequence[int]], device: torch.device | str) -> Tensor:
    """Token ids of several texts in one row, (1, sum of lengths)."""
    return torch.tensor([token for sequence in sequences for token in sequence], device=device)[None]


def pack_layout(lengths: Sequence[int], is_span: Tensor, positions: Tensor | None = None, *, sink: bool) -> Layout:
    """The layout of a packed row; ``is_span`` and ``positions`` are (1, sum of lengths)."""
    tokens = Tokens.packed(lengths, is_span, positions)
    return Layout.of(tokens.with_sinks() if sink else tokens)


def token_budget_batches(lengths: Sequence[int], budget: int, most: int | None = None) -> list[list[int]]:
    """Indices grouped, shortest first, into rows of at most ``budget`` tokens (a longer text gets a row of its own)
    and at most ``most`` texts."""
    batches: list[list[int]] = []
    total = 0
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or total + lengths[index] > budget or len(batches[-1]) == most:
            batches.append([])
            total = 0
        batches[-1].append(index)
        total += lengths[index]
    return batches
