"""Attention dependence (Li et al. 2025, section 3): where would a token look if nothing hid the future from it?

A = softmax(QK^T / sqrt(d)) *without* the causal mask, while the hidden states themselves flow through the causal model;
the mean over heads and layers. ``main`` is what a token gives itself, ``before`` and ``after`` what it gives both
sides, in percent of 100. Taken from masked attention ``after`` would be 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ambilm.attention import KERNELS, Layout
from ambilm.attention.layout import Tokens

if TYPE_CHECKING:
    from ambilm import AmbiLM

KERNEL = "dependence"


@dataclass(frozen=True)
class _Recording(Layout):
    """A layout whose kernel notes, layer by layer, (main, before, after) of the unmasked attention: each (3,)."""

    layers: list[Tensor] = field(default_factory=list, compare=False)


def _recording_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
    softcap: float | None,
    layout: Layout,
) -> Tensor:
    """Ordinary attention under the layout, and a note of what it would be without the mask."""
    assert isinstance(layout, _Recording)
    layout.layers.append(_dependence(query, key, scaling, softcap))
    plain = KERNELS["eager" if softcap is not None else "sdpa"]
    return plain(query, key, value, scaling, window, softcap, layout)


KERNELS[KERNEL] = _recording_kernel


def _dependence(query: Tensor, key: Tensor, scaling: float | None, softcap: float | None) -> Tensor:
    """Mean over heads and tokens of the unmasked weights on, before and after the token's own place, (3,)."""
    heads, dimension = query.shape[1], query.shape[3]
    grouped = key.repeat_interleave(heads // key.shape[1], dim=1)  # (1, heads, length, head dimension)
    scores = (query @ grouped.transpose(2, 3)).float() * (dimension**-0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    weights = scores.softmax(dim=-1).mean(dim=1)[0]  # (length, length)
    main, before = weights.diagonal().mean(), weights.tril(-1).sum(dim=-1).mean()
    return torch.stack([main, before, weights.triu(1).sum(dim=-1).mean()])


@torch.inference_mode()
def attention_dependence(
    model: AmbiLM,
    texts: Iterable[str],
    weights: Literal["base", "adapted"] | None = None,
    max_length: int = 512,
) -> dict[str, Any]:
    """Attention dependence of a model on texts.

    Args:
        texts: read one by one; tokens after ``max_length`` are left out. A text of fewer than 2 tokens is skipped.
        weights: which weights do the work; None for the model as it is.

    Returns:
        ``main``, ``before`` and ``after`` in percent (mean over texts, layers and heads); ``layers``, an array
        (layers, 3) of the same for each layer; ``texts``, an array (texts, 3); ``lengths``, the tokens of each text.

    Raises:
        ValueError: when no text has two tokens.
    """
    view = model.view_of(weights)
    found, lengths = [], []
    for text in texts:
        ids = list(model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])[: max_length - 1]
        if not ids:
            continue
        row = torch.tensor([[model.settings.start_token_id, *ids]], device=view.device)  # (1, length)
        found.append(_layers(view, row))
        lengths.append(row.shape[1])
    if not found:
        raise ValueError("no text with a token in it")
    values = 100 * np.stack(found)  # (texts, layers, 3)
    main, before, after = values.mean(axis=(0, 1)).tolist()
    return {
        "main": main,
        "before": before,
        "after": after,
        "layers": values.mean(axis=0),
        "texts": values.mean(axis=1),
        "lengths": lengths,
    }


def _layers(view: Any, ids: Tensor) -> np.ndarray:
    """(layers, 3) for one text, (1, length)."""
    from ambilm.model.forward import hidden_states

    tokens = Tokens.padded([ids.shape[1]], torch.ones_like(ids, dtype=torch.bool))
    layout = _Recording(tokens, tokens, KERNEL)
    hidden_states(view, ids, layout)
    return torch.stack(layout.layers).cpu().numpy()
