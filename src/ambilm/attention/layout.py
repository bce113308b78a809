"""Who may see whom, said once.

Every token is a *context* token or a *span* token (MAGNET, section 3.1). A context token sees all context of its text, on
both sides, and no span token. A span token sees all context, on both sides, and itself and the earlier span tokens.
The four layouts are assignments of these two roles, not four rules:

======================  =======================================
layout                  roles
======================  =======================================
``causal``              every token is a span token
``bidirectional``       every token is a context token
``prefix``              a prefix of context, then span tokens
``infill``              context with spans anywhere inside
======================  =======================================

A text may begin with a *sink*: a token that sees only itself and that all of its text sees. A causal model puts what its
attention does not need on the first token, whose state it knows by heart because that token never sees another one.
Letting it see the text destroys that state: untrained, the infill perplexity of SmolLM2-135M rises five-fold, and with the
sink kept it does not (docs/log.md). The papers' layouts are the ones without a sink.

Several texts may share a row (packing): tokens see only tokens of their own text. Padding is a text of one token, which
sees itself, so that no softmax runs over nothing. A layer with a sliding window limits the distance on top of this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tokens:
    """The three facts about a token that decide what it sees; each field is an integer tensor (batch, length).

    Attributes:
        text: which text of the row the token belongs to; negative for padding, a different number for each padding token.
        is_span: boolean, true for span tokens, false for context tokens.
        position: the place in the order of the text; it orders span tokens, measures windows and is the position id.
        is_sink: boolean, true for a token that sees only itself; None when there is none.
    """

    text: Tensor
    is_span: Tensor
    position: Tensor
    is_sink: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.text.shape == self.is_span.shape == self.position.shape or self.text.dim() != 2:
            raise ValueError("text, is_span and position must share one shape (batch, length)")

    @property
    def is_padding(self) -> Tensor:
        """(batch, length), true where the token is padding."""
        return self.text < 0

    @classmethod
    def padded(
        cls, lengths: Sequence[int], is_span: Tensor, positions: Tensor | None = None, side: str = "right"
    ) -> Tokens:
        """One text a row, padded on ``side`` to the width of ``is_span`` (batch, length)."""
        batch, width = is_span.shape
        device = is_span.device
        column = torch.arange(width, device=device).expand(batch, width)
        length = torch.as_tensor(list(lengths), device=device)[:, None]
        start = width - length if side == "left" else torch.zeros_like(length)
        real = (column >= start) & (column < start + length)
        if positions is None:
            positions = (column - start).clamp(min=0)
        return cls(torch.where(real, 0, -1 - column), is_span, positions)

    def with_sinks(self) -> Tokens:
        """The first token of every text, the one at position 0, becomes a sink."""
        return replace(self, is_sink=(self.position == 0) & ~self.is_padding)

    @property
    def has_sink(self) -> bool:
        return self.is_sink is not None and bool(self.is_sink.any())

    @classmethod
    def packed(cls, lengths: Sequence[int], is_span: Tensor, positions: Tensor | None = None) -> Tokens:
        """Several texts one after the other in a single row; ``is_span`` is (1, sum of lengths)."""
        counts = torch.as_tensor(list(lengths), device=is_span.device)
        text = torch.repeat_interleave(torch.arange(len(counts), device=is_span.device), counts)[None]
        if positions is None:
            starts = torch.cumsum(counts, 0) - counts
            positions = torch.arange(text.shape[1], device=is_span.device)[None] - starts[text]
        return cls(text, is_span, positions)

    def columns(self, start: int, stop: int) -> Tokens:
        """Some places of every row, (batch, stop - start)."""
        sink = None if self.is_sink is None else self.is_sink[:, start:stop]
        return Tokens(self.text[:, start:stop], self.is_span[:, start:stop], self.position[:, start:stop], sink)

    @classmethod
    def join(cls, parts: Sequence[Tokens]) -> Tokens:
        """The parts side by side along the length, as a key/value cache holds them."""
        texts, spans, positions = (
            torch.cat([getattr(part, name) for part in parts], dim=1) for name in ("text", "is_span", "position")
        )
        if all(part.is_sink is None for part in parts):
            return cls(texts, spans, positions)
        sinks = [torch.zeros_like(part.is_span) if part.is_sink is None else part.is_sink for part in parts]
        return cls(texts, spans, positions, torch.cat(sinks, dim=1))


def may_see(query: Tokens, key: Tokens, window: int | None = None) -> Tensor:
    """The rule. Returns a boolean tensor (batch, queries, keys), true where the query sees the key.

    ``window`` is the sliding window of the layer: looking back from a span token reaches ``window - 1`` places, as in
    causal models; a context token reaches ``window`` places to both sides, and so does a span token that looks ahead.
    """
    same_text = query.text[:, :, None] == key.text[:, None, :]  # (batch, queries, keys)
    distance = query.position[:, :, None] - key.position[:, None, :]  # (batch, queries, keys)
    query_is_span, key_is_span = query.is_span[:, :, None], key.is_span[:, None, :]
    visible = same_text & (~key_is_span | (query_is_span & (distance >= 0)))
    if query.is_sink is not None:
        visible = visible & (~query.is_sink[:, :, None] | (distance == 0))
    if window is None:
        return visible
    reach_back = torch.where(query_is_span, window - 1, window)
    return visible & (distance <= reach_back) & (distance >= -window)


@dataclass(frozen=True)
class Bucket:
    """Texts of a packed row with about the same length, laid out as a padded batch of their own.

    Attributes:
        index: (texts, longest) places in the flattened row; padding repeats the text's first place.
        tokens: roles of the gathered tokens, (texts, longest).
    """

    index: Tensor
    tokens: Tokens


@dataclass(frozen=True)
class Layout:
    """Roles of the queries and of the keys of one forward pass, and which kernel reads them.

    ``keys`` equals ``queries`` unless a key/value cache holds earlier tokens. Masks are compiled on first use and kept for
    the layers that follow; nothing is stored in the model, so that any number of threads can share it.

    Args:
        queries: tokens of this pass.
        keys: tokens that the queries may look at, cache first.
        kernel: ``sdpa``, ``eager``, ``flex`` or ``varlen``.
        dropout: attention dropout for this pass (training only).
    """

    queries: Tokens
    keys: Tokens
    kernel: str = "sdpa"
    dropout: float = 0.0
    _compiled: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, tokens: Tokens, kernel: str = "sdpa", dropout: float = 0.0) -> Layout:
        """A pass without a cache."""
        return cls(tokens, tokens, kernel, dropout)

    @classmethod
    def padded(
        cls, name: str, lengths: Sequence[int], *, prefix: Sequence[int] | None = None, is_span: Tensor | None = None,
        positions: Tensor | None = None, side: str = "right", kernel: str = "sdpa", device: torch.device | str = "cpu",
    ) -> Layout:  # fmt: skip
        """A named layout over one text a row, padded to the longest. See :func:`roles` for ``prefix`` and ``is_span``."""
        width = max(lengths) if is_span is None else is_span.shape[1]
        if is_span is None:
            is_span = torch.stack([
                torch.nn.functional.pad(row, (width - len(row), 0) if side == "left" else (0, width - len(row)))
                for row in roles(name, lengths, prefix)
            ]).to(device)  # fmt: skip
        return cls.of(Tokens.padded(lengths, is_span, positions, side), kernel)

    @classmethod
    def packed(
        cls, name: str, lengths: Sequence[int], *, prefix: Sequence[int] | None = None, is_span: Tensor | None = None,
        positions: Tensor | None = None, kernel: str = "sdpa", device: torch.device | str = "cpu",
    ) -> Layout:  # fmt: skip
        """A named layout over several texts that share one row."""
        if is_span is None:
            is_span = torch.cat(roles(name, lengths, prefix))[None].to(device)
        return cls.of(Tokens.packed(lengths, is_span, positions), kernel)

    @property
    def has_cache(self) -> bool:
        return self.keys is not self.queries

    @cached_property
    def is_packed(self) -> bool:
        """Whether one row holds several texts."""
        return not self.has_cache and self.queries.text.shape[0] == 1 and int(self.queries.text.max()) > 0

    @cached_property
    def shortcut(self) -> str | None:
        """``causal`` or ``bidirectional`` when a kernel can do without a mask (one text a row, no padding), else None."""
        if self.has_cache or self.is_packed or bool(self.queries.is_padding.any()):
            return None
        if bool(self.queries.is_span.all()):
            return "causal"  # where the first token is a sink anyway
        if self.queries.has_sink:
            return None
        return None if bool(self.queries.is_span.any()) else "bidirectional"

    def _needs_window(self, window: int | None) -> bool:
        if window is None:
            return False
        key = "span of positions"
        if key not in self._compiled:
            self._compiled[key] = int(self.keys.position.max() - self.keys.position.min())
        return self._compiled[key] >= window

    def _cached(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._compiled:
            self._compiled[key] = make()
        return self._compiled[key]

    def boolean_mask(self, window: int | None = None) -> Tensor | None:
        """For sdpa: (batch, 1, queries, keys), true where visible; None when everything (or the causal half) is."""
        window = window if self._needs_window(window) else None
        if window is None and self.shortcut is not None:
            return None
        return self._cached(("boolean", window), lambda: may_see(self.queries, self.keys, window)[:, None])

    def additive_mask(self, window: int | None, dtype: torch.dtype) -> Tensor:
        """For eager attention: (batch, 1, queries, keys), 0 where visible and the lowest number elsewhere."""
        window = window if self._needs_window(window) else None

        def make() -> Tensor:
            visible = may_see(self.queries, self.keys, window)[:, None]
            return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill(
                ~visible, torch.finfo(dtype).min
            )

        return self._cached(("additive", window, dtype), make)

    def block_mask(self, window: int | None = None) -> Any:
        """For FlexAttention: a block mask of the same rule."""
        from torch.nn.attention.flex_attention import create_block_mask

        query, key = self.queries, self.keys
        batch, queries = query.text.shape

        def rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = query.position[b, q] - key.position[b, k]
            visible = (query.text[b, q] == key.text[b, k]) & (
                ~key.is_span[b, k] | (query.is_span[b, q] & (distance >= 0))
            )
            if query.is_sink is not None:
                visible = visible & (~query.is_sink[b, q] | (distance == 0))
            if window is None:
                return visible
            reach_back = torch.where(query.is_span[b, q], window - 1, window)
            return visible & (distance <= reach_back) & (distance >= -window)

        window = window if self._needs_window(window) else None
        return self._cached(
            ("block", window),
            lambda: create_block_mask(rule, batch, None, queries, key.text.shape[1], device=str(query.text.device)),
        )

    def varlen(self) -> tuple[Tensor, int, bool]:
        """For varlen kernels: cumulative lengths (texts + 1,), the longest text, and whether it is causal.

        Raises:
            ValueError: when texts mix context and span tokens; such a kernel knows only causal and full attention.
        """
        if self.has_cache or not (self.is_packed or self.shortcut):
            raise ValueError("a varlen kernel takes a packed row or rows without padding, and no cache")
        causal = bool(self.queries.is_span.all())
        if not causal and (bool(self.queries.is_span.any()) or self.queries.has_sink):
            raise ValueError("a varlen kernel knows plain causal and bidirectional layouts: use sdpa, eager or flex")

        def make() -> tuple[Tensor, int, bool]:
            row = self.queries.text
            lengths = torch.bincount(row[0]) if self.is_packed else torch.full((row.shape[0],), row.shape[1])
            cumulative = torch.nn.functional.pad(torch.cumsum(lengths, 0), (1, 0)).to(torch.int32)
            return cumulative.to(row.device), int(lengths.max()), causal

        return self._cached("varlen", make)

    def buckets(self) -> tuple[list[Bucket], Tensor]:
        """A packed row as a few padded batches of similar lengths, and the order that puts their outputs back.

        A mask over the whole row would cost the square of the row; texts grouped by length cost the square of a text.
        Returns the buckets and ``inverse`` (row length,): for each place in the row its place in the concatenated outputs.
        """
        return self._cached("buckets", lambda: _make_buckets(self.queries))

    def gathered_index(self) -> Tensor:
        """Places in the flattened row of the tokens of all buckets, one bucket after the other, padding included."""
        return self._cached("gathered", lambda: torch.cat([bucket.index.reshape(-1) for bucket in self.buckets()[0]]))

    def bucket_layout(self, number: int) -> Layout:
        """The padded layout of one bucket."""
        bucket = self.buckets()[0][number]
        return self._cached(("bucket", number), lambda: Layout.of(bucket.tokens, self.kernel, self.dropout))


def roles(name: str, lengths: Sequence[int], prefix: Sequence[int] | None = None) -> list[Tensor]:
    """``is_span`` of each text, (length,), for the layouts that lengths alone (and prefix lengths) describe."""
    if name in ("causal", "bidirectional"):
        return [torch.full((length,), name == "causal") for length in lengths]
    if name == "prefix":
        if prefix is None or len(prefix) != len(lengths):
            raise ValueError("layout 'prefix' needs the prefix length of every text")
        return [torch.arange(length) >= start for length, start in zip(lengths, prefix, strict=True)]
    if name == "infill":
        raise ValueError("layout 'infill' needs is_span: which tokens belong to missing spans")
    raise ValueError(f"unknown layout {name!r}: causal, bidirectional, prefix or infill")


def _make_buckets(tokens: Tokens) -> tuple[list[Bucket], Tensor]:
    lengths = torch.bincount(tokens.text[0])
    starts = torch.cumsum(lengths, 0) - lengths
    order = torch.argsort(lengths, stable=True)
    total = tokens.text.shape[1]
    buckets: list[Bucket] = []
    inverse = torch.empty(total, dtype=torch.long, device=tokens.text.device)
    offset = 0
    for group in _similar(lengths[order].tolist()):
        members = order[group]
        longest = int(lengths[members].max())
        column = torch.arange(longest, device=tokens.text.device)[None]
        real = column < lengths[members][:, None]  # (texts, longest)
        index = starts[members][:, None] + torch.where(real, column, 0)  # (texts, longest)
        places = torch.arange(index.numel(), device=index.device).view_as(index) + offset
        inverse[index[real]] = places[real]
        offset += index.numel()
        sinks = None if tokens.is_sink is None else tokens.is_sink[0][index] & real
        gathered = Tokens(torch.where(real, 0, -1 - column), tokens.is_span[0][index], tokens.position[0][index], sinks)
        buckets.append(Bucket(index, gathered))
    return buckets, inverse


def _similar(lengths: list[int], waste: float = 1.25) -> list[slice]:
    """Cuts ascending lengths into runs whose longest is at most ``waste`` times (or 8 more than) their shortest."""
    cuts, start = [], 0
    for i in range(1, len(lengths) + 1):
        if i == len(lengths) or lengths[i] > max(lengths[start] * waste, lengths[start] + 8):
            cuts.append(slice(start, i))
            start = i
    return cuts
