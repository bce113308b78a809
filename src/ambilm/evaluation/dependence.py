"""Attention dependence (Li et al. 2025, section 3): where would a token look if nothing hid the future from it?

A = softmax(QK^T / sqrt(d)) *without* the causal mask, while the hidden states themselves flow through the causal model.
``main`` is what a token gives itself, ``before`` and ``after`` what it gives both sides, in percent of 100; the mean
over tokens, heads and layers. Taken from masked attention ``after`` would be 0.

A is never whole in memory: each layer is reduced to three numbers a head, a block of queries at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ambilm.attention import KERNELS, Layout
from ambilm.attention.layout import Tokens
from ambilm.errors import UserError
from ambilm.evaluation.conversations import Document, text_of
from ambilm.evaluation.data import sample

if TYPE_CHECKING:
    from ambilm import AmbiLM

KERNEL = "dependence"
SIDES = ("main", "before", "after")
# Tokens of a text: more than the first number, at most the second.
BINS = ((0, 256), (256, 512), (512, 1024), (1024, 2048))
# Queries whose weights are in memory at once: with 9 heads and 2,048 keys 9 MiB, which the cache of a processor holds.
BLOCK = 128


@dataclass(frozen=True)
class _Recording(Layout):
    """A layout whose kernel notes, layer by layer, (main, before, after) of the unmasked attention: (heads, 3) each."""

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
    # The model may run under autocast, which would round float32 products to half precision.
    with torch.autocast(query.device.type, enabled=False):
        layout.layers.append(head_dependence(query, key, scaling, softcap))
    plain = KERNELS["eager" if softcap is not None else "sdpa"]
    return plain(query, key, value, scaling, window, softcap, layout)


KERNELS[KERNEL] = _recording_kernel


def head_dependence(query: Tensor, key: Tensor, scaling: float | None, softcap: float | None) -> Tensor:
    """Mean over tokens of the unmasked weights on, before and after the token's own place.

    Args:
        query: (1, heads, length, head dimension).
        key: (1, key heads, length, head dimension).
        scaling: factor of the scores; 1/sqrt(head dimension) when None.
        softcap: Gemma2's limit of the scores.

    Returns:
        (heads, 3) float32, each row with the sum 1. Memory for ``BLOCK`` rows of each head's weights is all it takes.
    """
    heads, length, dimension = query.shape[1:]
    scaled = query[0].float() * (dimension**-0.5 if scaling is None else scaling)  # (heads, length, head dimension)
    # Heads that share a key stand side by side, so that no key is copied.
    shared = scaled.unflatten(0, (key.shape[1], -1))  # (key heads, sharing heads, length, head dimension)
    keys = key[0].float().transpose(1, 2)  # (key heads, head dimension, length)
    sides = []
    for start in range(0, length, BLOCK):
        scores = shared[:, :, start : start + BLOCK].flatten(1, 2) @ keys  # (key heads, sharing heads * block, length)
        if softcap is not None:
            scores = scores.div_(softcap).tanh_().mul_(softcap)
        sides.append(_sides(scores.softmax(dim=-1).view(heads, -1, length), start))  # (heads, block, 3)
    return torch.cat(sides, dim=1).mean(dim=1)  # (heads, 3)


def _sides(weights: Tensor, start: int) -> Tensor:
    """Weights of a block of queries, (heads, block, length), on, before and after each query's place: (heads, block, 3).

    The first query of the block stands at place ``start``. Only the square around the diagonal needs a triangle.
    """
    end = start + weights.shape[1]
    square = weights[:, :, start:end]  # (heads, block, block)
    main = square.diagonal(dim1=1, dim2=2)  # (heads, block)
    before = weights[:, :, :start].sum(dim=-1) + square.tril(-1).sum(dim=-1)  # (heads, block)
    after = weights[:, :, end:].sum(dim=-1) + square.triu(1).sum(dim=-1)  # (heads, block)
    return torch.stack([main, before, after], dim=-1)


@torch.inference_mode()
def text_dependence(view: PreTrainedModel, ids: Tensor) -> np.ndarray:
    """Attention dependence of one text, head by head.

    Args:
        view: from :func:`ambilm.adaptation.shared_view`.
        ids: (1, length).

    Returns:
        (layers, heads, 3): main, before and after in percent.
    """
    from ambilm.model.forward import hidden_states

    tokens = Tokens.padded([ids.shape[1]], torch.ones_like(ids, dtype=torch.bool))
    layout = _Recording(tokens, tokens, KERNEL)
    hidden_states(view, ids, layout)
    return 100 * torch.stack(layout.layers).cpu().numpy()  # (layers, heads, 3)


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
        (layers, 3) of the same for each layer; ``heads``, an array (layers, heads, 3); ``texts``, an array (texts, 3);
        ``lengths``, the tokens of each text.

    Raises:
        ValueError: when no text has two tokens.
    """
    view = model.view_of(weights)
    rows = [row for row in (_ids(model, text)[:max_length] for text in texts) if len(row) > 1]
    if not rows:
        raise ValueError("no text with a token in it")
    found = np.stack([_measured(view, row) for row in rows])  # (texts, layers, heads, 3)
    return {
        **dict(zip(SIDES, found.mean(axis=(0, 1, 2)).tolist(), strict=True)),
        "layers": found.mean(axis=(0, 2)),
        "heads": found.mean(axis=0),
        "texts": found.mean(axis=(1, 2)),
        "lengths": [len(row) for row in rows],
    }


def _ids(model: AmbiLM, text: str) -> np.ndarray:
    """Tokens of a text, (length,), the start token before them unless a chat template has written it already."""
    start = model.settings.start_token_id
    ids = list(model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    return np.array(ids if ids[:1] == [start] else [start, *ids], np.int32)


def _measured(view: PreTrainedModel, row: np.ndarray) -> np.ndarray:
    return text_dependence(view, torch.tensor(row[None], dtype=torch.long, device=view.device))


def dependence_by_bin(
    model: AmbiLM,
    documents: Iterable[Document],
    *,
    limit: int | None = 20,
    seed: int = 0,
    weights: Literal["base", "adapted"] | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Attention dependence of a model by the length of the text, as the paper reports it.

    Args:
        documents: texts or conversations; the latter go through the model's chat template.
        limit: most texts of a bin, a seeded sample; None for all.
        weights: which weights do the work; None for the model as it is.
        progress: a bar on a terminal.

    Returns:
        ``bins``, a row for each of ``BINS``: ``tokens`` ("0-256"), ``n`` (texts), ``main``, ``before`` and ``after`` in
        percent (mean over texts, layers and heads; None without a text) and their standard errors ``main_error`` ...
        (None below two texts). Over all texts that were measured: ``layers``, an array (layers, 3), and ``heads``, an
        array (layers, heads, 3). ``left_out`` counts the texts that no bin takes.

    Raises:
        UserError: when no text falls into a bin, or the chat template refuses a conversation.
    """
    binned, left_out = _binned(model, documents)
    chosen = [sample(rows, limit, seed) for rows in binned]
    view = model.view_of(weights)
    found: list[np.ndarray] = []  # (texts, layers, heads, 3) for each bin that has texts
    entries = []
    total = sum(map(len, chosen))
    with tqdm(total=total, desc=f"Dependence of {model.name}", unit="text", disable=None if progress else True) as bar:
        for (low, high), rows in zip(BINS, chosen, strict=True):
            values = []
            for row in rows:
                values.append(_measured(view, row))
                bar.update()
            found += [np.stack(values)] if values else []
            entries.append({"tokens": f"{low}-{high}", **_entry(values)})
    everything = np.concatenate(found)  # (texts, layers, heads, 3)
    return {
        "bins": entries,
        "layers": everything.mean(axis=(0, 2)),
        "heads": everything.mean(axis=0),
        "left_out": left_out,
    }


def _binned(model: AmbiLM, documents: Iterable[Document]) -> tuple[list[list[np.ndarray]], int]:
    """Token ids of the texts of each bin, (length,) each, and how many texts no bin takes."""
    # A model with learned positions has no others.
    positions = getattr(model.base.config.get_text_config(), "max_position_embeddings", None) or math.inf
    binned: list[list[np.ndarray]] = [[] for _ in BINS]
    left_out = 0
    for document in documents:
        row = _ids(model, text_of(document, model.tokenizer))
        place = next((place for place, (_, high) in enumerate(BINS) if len(row) <= high), None)
        if place is None or not 1 < len(row) <= positions:
            left_out += 1
        else:
            binned[place].append(row)
    if not any(binned):
        longest = min(BINS[-1][1], positions)
        raise UserError(f"No text has 2 to {longest:,} tokens for {model.name}: give --data with such texts.")
    return binned, left_out


def _entry(values: list[np.ndarray]) -> dict[str, Any]:
    """Means and standard errors of one bin's texts, (layers, heads, 3) each."""
    texts = np.array([value.mean(axis=(0, 1), dtype=np.float64) for value in values]).reshape(-1, 3)  # (texts, 3)
    count = len(texts)
    means = texts.mean(axis=0).tolist() if count else [None] * 3
    errors = (texts.std(axis=0, ddof=1) / math.sqrt(count)).tolist() if count > 1 else [None] * 3
    return {
        "n": count,
        **dict(zip(SIDES, means, strict=True)),
        **dict(zip((f"{side}_error" for side in SIDES), errors, strict=True)),
    }
