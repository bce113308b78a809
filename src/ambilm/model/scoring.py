"""Log-probabilities: of a text read left to right, and of missing spans given both sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ambilm.model.forward import hidden_states, logits, pack, pack_layout, token_budget_batches
from ambilm.model.settings import Settings
from ambilm.objectives.views import MSG, infill_view

BATCH_TOKENS = 1024  # the logits of a row are (tokens, vocabulary) in float32


@dataclass(frozen=True)
class InfillExample:
    """A whole text as token ids, and the (start, stop) of the spans in it that count as missing, ascending."""

    ids: Sequence[int]
    spans: Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Score:
    """Log-probabilities (nats) of ``tokens``; those of several spans follow one another."""

    tokens: list[str]
    log_probs: np.ndarray

    @property
    def total(self) -> float:
        return float(self.log_probs.sum())

    @property
    def perplexity(self) -> float:
        return math.exp(-float(self.log_probs.mean())) if len(self.log_probs) else math.nan


def _picked(view: PreTrainedModel, hidden: Tensor, targets: Tensor) -> np.ndarray:
    """log p(target) for chosen hidden states (n, hidden), targets (n,)."""
    scores = torch.log_softmax(logits(view, hidden), dim=-1)  # (n, vocabulary)
    return scores.gather(1, targets[:, None])[:, 0].cpu().numpy()


@torch.inference_mode()
def causal_log_probs(view: PreTrainedModel, texts: Sequence[Sequence[int]], start: int) -> list[np.ndarray]:
    """log p(token | tokens before it) for every token, (tokens,) a text; ``start`` stands before the first one."""
    result: list[np.ndarray] = [np.empty(0)] * len(texts)
    for batch in token_budget_batches([len(ids) + 1 for ids in texts], BATCH_TOKENS):
        rows = [[start, *texts[index]] for index in batch]
        ids = pack(rows, view.device)
        layout = pack_layout([len(row) for row in rows], torch.ones_like(ids, dtype=torch.bool), sink=False)
        hidden = hidden_states(view, ids, layout)[0]  # (tokens, hidden)
        for index, row, part in zip(batch, rows, hidden.split([len(row) for row in rows]), strict=True):
            result[index] = _picked(view, part[:-1], torch.tensor(row[1:], device=view.device))
    return result


@torch.inference_mode()
def infill_log_probs(
    view: PreTrainedModel, examples: Sequence[InfillExample], settings: Settings, gap: int | None = None,
    sink: bool | None = None,
) -> list[np.ndarray]:  # fmt: skip
    """log p(span token | all context, earlier span tokens), (all span tokens,) an example, under the hybrid mask.

    Args:
        gap: positions reserved for each span (at least its length); None keeps the natural positions of the text.
        sink: whether the start token sees only itself; the settings' choice when None.
    """
    result: list[np.ndarray] = [np.empty(0)] * len(examples)
    start, end = settings.start_token_id, settings.end_of_span_token_id
    for batch in token_budget_batches([len(example.ids) + 1 for example in examples], BATCH_TOKENS):
        views = []
        for index in batch:
            spans = [(first + 1, stop + 1) for first, stop in examples[index].spans]
            gaps = [max(gap or 0, stop - first) for first, stop in spans]
            views.append(infill_view([start, *examples[index].ids], spans, gaps, end))
        ids = pack([view_.ids.tolist() for view_ in views], view.device)
        is_span = torch.from_numpy(np.concatenate([view_.is_span for view_ in views])).to(view.device)[None]
        position = torch.from_numpy(np.concatenate([view_.position for view_ in views])).to(view.device)[None]
        lengths = [len(view_) for view_ in views]
        hidden = hidden_states(
            view, ids, pack_layout(lengths, is_span, position, sink=settings.sink if sink is None else sink)
        )[0]  # (tokens, hidden)
        for index, view_, part in zip(batch, views, hidden.split(lengths), strict=True):
            # The end of a span is no token of the text: left out, so that all methods score the same tokens.
            last = np.append(view_.is_span[:-1] & ~view_.is_span[1:], view_.is_span[-1])
            places = np.flatnonzero((view_.objective == MSG) & ~last)
            targets = torch.from_numpy(view_.targets[places]).to(view.device)
            result[index] = _picked(view, part[torch.from_numpy(places).to(view.device)], targets)
    return result
