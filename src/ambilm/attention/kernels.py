"""Attention kernels that read a :class:`~ambilm.attention.layout.Layout`, one function for every architecture.

transformers lets a model call a registered attention function and hands every extra keyword of the forward call on to
it. AmbiLM's view of the weights (``ambilm.adaptation.views``) uses the name ``ambilm``; the layout arrives as the keyword
``layout`` of that one call. Nothing is written into the module or its config, so calls of different kinds can run in
several threads at once, and no architecture needs a class of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ambilm.attention.layout import Layout

ATTENTION_NAME = "ambilm"


def register_attention() -> None:
    """Makes ``attn_implementation="ambilm"`` known to transformers; calling it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(ATTENTION_NAME, attend)
    # The layout is the mask: transformers must not build one of its own.
    AttentionMaskInterface.register(ATTENTION_NAME, _no_mask)


def _no_mask(*args: Any, **kwargs: Any) -> None:
    return None


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    layout: Layout | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention under a layout, in the signature of transformers' attention interface.

    Args:
        query: (batch, heads, queries, head dimension).
        key, value: (batch, key/value heads, keys, head dimension).
        scaling: factor of the scores; 1/sqrt(head dimension) when None.
        sliding_window: window of this layer, None for full attention.
        softcap: Gemma2's limit of the scores; only the eager and flex kernels know one, sdpa falls back to eager.

    Returns:
        (batch, queries, heads, head dimension) and None (weights are not returned).

    Raises:
        RuntimeError: when the call carries no layout, because guessing one would silently be wrong.
    """
    if layout is None:
        raise RuntimeError("this view of the model attends by layout: pass layout=Layout(...) to the forward call")
    if layout.is_packed and layout.kernel in ("sdpa", "eager"):
        output = _attend_packed(query, key, value, scaling, sliding_window, softcap, layout)
    else:
        output = _kernel(layout, softcap, query)(query, key, value, scaling, sliding_window, softcap, layout)
    return output, None


# Up to this length training on a CPU keeps the attention weights: the backward pass of the flash kernel there takes five
# times as long as batched products (bfloat16, 24 texts of 50 tokens: 33 ms a layer against 6.6; docs/log.md).
SHORT = 256


def _kernel(layout: Layout, softcap: float | None, query: Tensor) -> Callable[..., Tensor]:
    trains_short = query.requires_grad and query.device.type == "cpu" and layout.keys.text.shape[1] <= SHORT
    name = "eager" if layout.kernel == "sdpa" and (softcap is not None or trains_short) else layout.kernel
    return KERNELS[name]


def _grouped(key: Tensor, heads: int) -> Tensor:
    """Repeats key/value heads to the number of query heads: (batch, heads, keys, head dimension)."""
    repeats = heads // key.shape[1]
    return key if repeats == 1 else key.repeat_interleave(repeats, dim=1)


def _sdpa(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float | None, layout: Layout
) -> Tensor:  # fmt: skip
    mask = layout.boolean_mask(window)  # (batch, 1, queries, keys) or None
    heads = query.shape[1]
    output = F.scaled_dot_product_attention(
        query, _grouped(key, heads), _grouped(value, heads), attn_mask=mask, dropout_p=layout.dropout, scale=scaling,
        is_causal=mask is None and layout.shortcut == "causal",
    )  # fmt: skip
    return output.transpose(1, 2)  # (batch, queries, heads, head dimension)


def _eager(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float | None, layout: Layout
) -> Tensor:  # fmt: skip
    batch, heads, queries, dimension = query.shape

    def flat(states: Tensor) -> Tensor:  # (batch * heads, length, head dimension)
        return _grouped(states, heads).reshape(batch * heads, -1, dimension)

    scaled = query * (scaling or dimension**-0.5)
    scores = torch.bmm(flat(scaled), flat(key).transpose(1, 2)).view(batch, heads, queries, -1)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores += layout.additive_mask(window, scores.dtype)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)  # (batch, heads, queries, keys)
    weights = F.dropout(weights, layout.dropout) if layout.dropout else weights
    output = torch.bmm(weights.flatten(0, 1), flat(value).to(weights.dtype))  # (batch * heads, queries, head dimension)
    return output.view(batch, heads, queries, dimension).transpose(1, 2)


def _flex(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float | None, layout: Layout
) -> Tensor:  # fmt: skip
    limit = softcap or 1.0

    def cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(score / limit) * limit

    output = _compiled_flex()(
        query.contiguous(), _grouped(key, query.shape[1]).contiguous(), _grouped(value, query.shape[1]).contiguous(),
        block_mask=layout.block_mask(window), scale=scaling, score_mod=cap if softcap is not None else None,
    )  # fmt: skip
    return output.transpose(1, 2)


_flex_function: list[Callable[..., Any]] = []


def _compiled_flex() -> Callable[..., Any]:
    """FlexAttention is only fast (and on a CPU only right) when compiled; compiled once, on first use."""
    if not _flex_function:
        from torch.nn.attention.flex_attention import flex_attention

        _flex_function.append(torch.compile(flex_attention, dynamic=True))
    return _flex_function[0]


def _varlen(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float | None, layout: Layout
) -> Tensor:  # fmt: skip
    """The flash kernels for texts of different lengths in one row (CUDA only, no softcap)."""
    from torch.nn.attention.varlen import varlen_attn

    if softcap is not None:
        raise ValueError("the varlen kernel knows no softcap: use eager or flex")
    cumulative, longest, causal = layout.varlen()
    batch, heads, length, dimension = query.shape
    # (reach back, reach ahead), -1 for no limit; the same window as in may_see.
    back = -1 if window is None else window - 1 if causal else window
    ahead = 0 if causal else -1 if window is None else window

    def flat(states: Tensor) -> Tensor:  # (batch * length, heads, head dimension)
        return _grouped(states, heads).transpose(1, 2).reshape(batch * length, heads, dimension)

    output = varlen_attn(
        flat(query),
        flat(key),
        flat(value),
        cumulative,
        cumulative,
        longest,
        longest,
        scale=scaling,
        window_size=(back, ahead),
    )
    assert isinstance(output, Tensor)  # a pair only when log-sum-exps are asked for
    return output.view(batch, length, heads, dimension)


KERNELS: dict[str, Callable[..., Tensor]] = {"sdpa": _sdpa, "eager": _eager, "flex": _flex, "varlen": _varlen}


def _attend_packed(
    query: Tensor, key: Tensor, value: Tensor, scaling: float | None, window: int | None, softcap: float | None, layout: Layout
) -> Tensor:  # fmt: skip
    """Texts of one row attend in a few padded batches of similar length: the square of a text, not of the row."""
    buckets, inverse = layout.buckets()
    # One gather for all batches: the gradient of each gather is as large as the row.
    index = layout.gathered_index()
    sizes = [bucket.index.numel() for bucket in buckets]

    def gather(states: Tensor) -> tuple[Tensor, ...]:
        rows = states[0].transpose(0, 1).index_select(0, index)  # (all gathered tokens, heads, head dimension)
        return tuple(
            piece.view(*bucket.index.shape, *piece.shape[1:]).transpose(1, 2)  # (texts, heads, longest, head dimension)
            for bucket, piece in zip(buckets, rows.split(sizes), strict=True)
        )

    outputs = []
    for number, states in enumerate(zip(gather(query), gather(key), gather(value), strict=True)):
        inner = layout.bucket_layout(number)
        output = _kernel(inner, softcap, query)(*states, scaling, window, softcap, inner)
        outputs.append(output.flatten(0, 1))  # (texts * longest, heads, head dimension)
    return torch.cat(outputs).index_select(0, inverse)[None]  # (1, row length, heads, head dimension)
