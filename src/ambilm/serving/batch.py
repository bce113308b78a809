"""Texts that are written together: one pass a token for all of them, and the same bits as for each alone.

Three things could make a text depend on its neighbours, and each is held still. A pass over several rows takes other kernels
than a pass over one: passes have only such numbers of rows as were tried on this machine and found to give a row the same bits
(:func:`heights`), filled up with spare rows. Attention adds up in an order that depends on the width: rows are padded at the
end to a multiple of ``WIDTH``, from where on more padding changes nothing. A context is read alone.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import Cache, DynamicCache, PreTrainedModel

from ambilm.attention import Layout, Tokens
from ambilm.model.decoding import Step, Steps
from ambilm.serving.jobs import Job

WIDTH = 64  # 16 is what the attention kernels of CPUs need

# The logits after the last token of each row, (rows, vocabulary): ambilm.model.forward.next_logits and its stock sister.
Read = Callable[[PreTrainedModel, Tensor, Layout, Cache], Tensor]


class SharedCache(DynamicCache):  # type: ignore[misc]
    """Keys and values of rows that come and go: a tensor (rows, heads, width, head dimension) a layer, larger than what is in use.

    Attributes:
        columns: (rows,) where the next token of each row goes; rows beyond these are spare.
        shape: rows and width that a pass sees.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[list[Tensor]] = []  # keys and values of each layer
        self.columns = torch.zeros(0, dtype=torch.long)
        self.shape = (0, 0)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Takes one token of each row in, (rows, heads, 1, head dimension), and returns all that the pass may see."""
        rows, (height, width) = torch.arange(len(self.columns), device=key_states.device), self.shape
        for stored, new in zip(self.stored[layer_idx], (key_states, value_states), strict=True):
            stored[rows, :, self.columns] = new[: len(rows), :, 0].to(stored.dtype)
        keys, values = (stored[:height, :, :width] for stored in self.stored[layer_idx])
        return keys, values

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0  # places come with the call

    def get_query_offset(self, *_: Any, **__: Any) -> int:
        return 0

    def get_mask_sizes(self, *_: Any, **__: Any) -> tuple[int, int]:
        return self.shape[1], 0  # the layout is the mask

    def make_room(self, rows: int, width: int, like: DynamicCache | None = None) -> None:
        """Grows to at least so many rows and columns, half as much again at a time; made of ``like``'s layers at first."""
        if not self.stored and like is not None:
            layers = [(layer.keys, layer.values) for layer in like.layers]
            self.stored = [[state.new_zeros(0, state.shape[1], 0, state.shape[3]) for state in pair] for pair in layers]
        have = self.stored[0][0]
        if have.shape[0] >= rows and have.shape[2] >= width:
            return
        tall = max(rows, have.shape[0])
        wide = max(width, have.shape[2] * 3 // 2) if have.shape[2] < width else have.shape[2]
        for pair in self.stored:
            for number, old in enumerate(pair):
                pair[number] = F.pad(old, (0, 0, 0, wide - old.shape[2], 0, 0, 0, tall - old.shape[0]))

    def take_in(self, first: int, cache: DynamicCache) -> None:
        """Copies the rows of another cache to the rows from ``first`` on."""
        for pair, layer in zip(self.stored, cache.layers, strict=True):
            for stored, state in zip(pair, (layer.keys, layer.values), strict=True):
                stored[first : first + state.shape[0], :, : state.shape[2]] = state

    def move(self, source: int, target: int, width: int) -> None:
        for pair in self.stored:
            for stored in pair:
                stored[target, :, :width] = stored[source, :, :width]


@dataclass
class Member:
    """A text that is being written in one or more rows: whose it is, and what it asks next."""

    owner: Job | None
    steps: Steps[None]
    step: Step

    @property
    def rows(self) -> int:
        return self.step.ids.shape[0]


class Batch:
    """The texts that are being written. Rows are dense, in the order of the members."""

    def __init__(self, view: PreTrainedModel, read: Read, heights: Sequence[int]) -> None:
        self.view, self.read, self.heights = view, read, heights
        self.members: list[Member] = []
        self.cache = SharedCache()

    @property
    def rows(self) -> int:
        return sum(member.rows for member in self.members)

    @property
    def room(self) -> int:
        return self.heights[-1] - self.rows

    def join(self, owner: Job | None, cache: DynamicCache, steps: Steps[None]) -> None:
        """Adds a text whose context ``cache`` holds, unless it is written already."""
        step = next(steps, None)
        if step is not None:
            self.cache.make_room(self._height(self.rows + step.ids.shape[0]), step.cached.text.shape[1], cache)
            self.cache.take_in(self.rows, cache)
            self.members.append(Member(owner, steps, step))

    def forward(self) -> None:
        """One token of every text; those that are written leave.

        An error while one text takes its token in ends that text's owner alone.
        """
        scores = self._answers()  # (rows, vocabulary)
        stays: list[bool] = []
        for member, own in zip(self.members, scores.split([member.rows for member in self.members]), strict=True):
            stays.append(_take_in(member, own))
        self._keep(stays)

    def drop_the_finished(self) -> None:
        """Lets those go whose owners need nothing more."""
        if any(member.owner and member.owner.is_over for member in self.members):
            self._keep([not (member.owner and member.owner.is_over) for member in self.members])

    def _height(self, rows: int) -> int:
        return self.heights[bisect.bisect_left(self.heights, rows)]

    def _keep(self, stays: Sequence[bool]) -> None:
        source = target = 0
        for member, stay in zip(self.members, stays, strict=True):
            for row in range(source, source + member.rows):
                if stay and row != target:
                    self.cache.move(row, target, member.step.cached.text.shape[1])
                target += stay
            source += member.rows
        self.members = [member for member, stay in zip(self.members, stays, strict=True) if stay]
        if not self.members:
            self.cache = SharedCache()  # an idle server holds no memory

    def _answers(self) -> Tensor:
        """The logits after each row's token, (rows, vocabulary)."""
        steps = [member.step for member in self.members]
        longest = max(step.cached.text.shape[1] for step in steps)
        width = -(-longest // WIDTH) * WIDTH
        rows, height = self.rows, self._height(self.rows)
        columns = [step.cached.text.shape[1] - 1 for step in steps for _ in range(step.ids.shape[0])]
        self.cache.make_room(height, width)
        self.cache.columns, self.cache.shape = torch.tensor(columns, device=self.view.device), (height, width)
        ids = F.pad(torch.cat([step.ids for step in steps]), (0, 0, 0, height - rows))  # (height, 1)
        new = _stacked([step.new for step in steps], 1, height - rows)
        cached = _stacked([step.cached for step in steps], width, height - rows)
        return self.read(self.view, ids, Layout(new, cached), self.cache)[:rows]


def _take_in(member: Member, scores: Tensor) -> bool:
    """Hands a text its logits (rows, vocabulary); whether it goes on."""
    try:
        member.step = member.steps.send(scores)
    except StopIteration:
        return False
    except Exception as error:
        if member.owner is None:
            raise
        member.owner.end(error)
        return False
    return True


def _stacked(parts: Sequence[Tokens], width: int, spare: int) -> Tokens:
    """Rows of several texts, (rows, width), padded at the end; a spare row is a text of one token."""
    text, is_span, position = (
        torch.cat([F.pad(getattr(part, name), (0, width - part.text.shape[1]), value=fill) for part in parts])
        for name, fill in (("text", -1), ("is_span", False), ("position", 0))
    )
    lone = F.pad(torch.zeros(spare, 1, dtype=text.dtype, device=text.device), (0, width - 1), value=-1)
    blank = torch.zeros_like(lone)
    return Tokens(torch.cat([text, lone]), torch.cat([is_span, blank.bool()]), torch.cat([position, blank]))


_heights: WeakKeyDictionary[PreTrainedModel, list[int]] = WeakKeyDictionary()


def heights(view: PreTrainedModel, read: Read, most: int) -> list[int]:
    """Numbers of rows, ascending up to ``most``, that give a row's logits the same bits: tried on this machine.

    Products of one row, or few, take kernels that add up in another order. ``most`` alone where nothing less will do.
    """
    if view not in _heights or _heights[view][-1] != most:
        whole = trial(view, read, most)  # (most, steps, vocabulary)
        tried = [rows for rows in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128) if rows < most]
        found = [most]
        while tried and torch.equal(trial(view, read, tried[-1]), whole[: tried[-1]]):
            found.insert(0, tried.pop())
        _heights[view] = found
    return _heights[view]


@torch.inference_mode()
def trial(view: PreTrainedModel, read: Read, rows: int) -> Tensor:
    """The logits after each of a few tokens in so many rows, (rows, steps, vocabulary)."""
    vocabulary = view.get_input_embeddings().weight.shape[0]  # type: ignore[union-attr]
    ids = (torch.arange(rows)[:, None] * 7919 + torch.arange(3) * 104729 + 1) % vocabulary  # (rows, tokens)
    ids = ids.to(view.device)
    places = Tokens.padded([ids.shape[1]] * rows, torch.ones_like(ids, dtype=torch.bool))
    ids[:, 0] = 1
    cache, found = DynamicCache(), list[Tensor]()
    read(view, ids[:1, :1], Layout.of(Tokens.padded([1], torch.ones_like(ids[:1, :1], dtype=torch.bool))), cache)
    cache.batch_repeat_interleave(rows)

    def steps() -> Steps[None]:
        for place in range(1, ids.shape[1]):
            step = Step(ids[:, place : place + 1], places.columns(place, place + 1), places.columns(0, place + 1))
            found.append((yield step))

    batch = Batch(view, read, [rows])
    batch.join(None, cache, steps())
    while batch.members:
        batch.forward()
    return torch.stack(found, 1)
