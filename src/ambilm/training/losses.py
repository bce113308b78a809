"""The loss of one step: MAGNET packed, MAGNET in three passes (the reference), the causal control, UBMoE's gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ambilm.adaptation import routing
from ambilm.model.encoding import pooled
from ambilm.model.forward import hidden_states
from ambilm.model.settings import Pooling
from ambilm.objectives import CLM, MNTP, MSG, View, contrastive_loss, mean_prediction_losses
from ambilm.training.batch import Batch, packed_batch, padded_batch


@dataclass(frozen=True)
class StepViews:
    """Everything that one step looks at.

    Attributes:
        hybrid: the masked-and-spanned views (for the control: causal views).
        anchors, positives: the two clean views of each pair; empty in the first stage.
        negatives: hard negatives, of as many pairs as have one.
    """

    hybrid: list[View]
    anchors: list[View] = field(default_factory=list)
    positives: list[View] = field(default_factory=list)
    negatives: list[View] = field(default_factory=list)

    @property
    def clean(self) -> list[View]:
        return self.anchors + self.positives + self.negatives


@dataclass(frozen=True)
class LossSettings:
    """Weights of the objectives and the choices of the contrastive one."""

    lambda_mntp: float = 1.0
    lambda_msg: float = 1.0
    lambda_sscl: float = 1.0
    temperature: float = 0.05
    pooling: Pooling = "last"
    dropout: float = 0.0
    sink: bool = True


@dataclass(frozen=True)
class StepLosses:
    """The loss of a step and what it is made of.

    Attributes:
        total: scalar that is minimised.
        parts: name of each objective to its loss, a scalar in nats, unweighted.
        tokens: tokens that the step looked at.
    """

    total: Tensor
    parts: dict[str, Tensor]
    tokens: int


def packed_losses(model: PreTrainedModel, views: StepViews, settings: LossSettings) -> StepLosses:
    """One packed forward pass for all views under one mask."""
    batch = packed_batch(views.hybrid + views.clean, model.device, settings.dropout, settings.sink)
    hidden = hidden_states(model, batch.ids, batch.layout)  # (1, all tokens, hidden)
    predictions = mean_prediction_losses(model, hidden, batch.targets, batch.objective, (MNTP, MSG))
    sentence = None
    if views.anchors:
        start = sum(len(view) for view in views.hybrid)
        lengths = batch.lengths[len(views.hybrid) :]
        sentence = pooled(hidden[:, start:], lengths, [int(settings.sink)] * len(lengths), settings.pooling)
    return _combine(predictions, sentence, views, settings, batch.tokens)


def three_pass_losses(model: PreTrainedModel, views: StepViews, settings: LossSettings) -> StepLosses:
    """The plain reading of the paper: a padded pass for the hybrid views and one for each side of the pairs."""
    batch = padded_batch(views.hybrid, model.device, settings.dropout, settings.sink)
    hidden = hidden_states(model, batch.ids, batch.layout)  # (texts, longest, hidden)
    predictions = mean_prediction_losses(model, hidden, batch.targets, batch.objective, (MNTP, MSG))
    sentence = None
    if views.anchors:
        sides = [side for side in (views.anchors, views.positives, views.negatives) if side]
        sentence = torch.cat([_padded_sentences(model, side, settings) for side in sides])
    return _combine(predictions, sentence, views, settings, batch.tokens + sum(len(view) for view in views.clean))


def _padded_sentences(model: PreTrainedModel, views: Sequence[View], settings: LossSettings) -> Tensor:
    batch: Batch = padded_batch(views, model.device, settings.dropout, settings.sink)
    hidden = hidden_states(model, batch.ids, batch.layout)  # (texts, longest, hidden)
    real = torch.cat([row[:length] for row, length in zip(hidden, batch.lengths, strict=True)])[None]
    return pooled(real, batch.lengths, [int(settings.sink)] * len(views), settings.pooling)  # (texts, hidden)


def _combine(
    predictions: dict[int, Tensor], sentence: Tensor | None, views: StepViews, settings: LossSettings, tokens: int
) -> StepLosses:
    parts = {"mntp": predictions[MNTP], "msg": predictions[MSG]} if views.hybrid else {}
    weights = {"mntp": settings.lambda_mntp, "msg": settings.lambda_msg, "sscl": settings.lambda_sscl}
    if sentence is not None:
        anchors, positives, negatives = sentence.split([len(views.anchors), len(views.positives), len(views.negatives)])
        parts["sscl"] = contrastive_loss(
            anchors, positives, negatives, temperature=settings.temperature,
            same=_duplicates(views),
            same_negative=same_text(views.anchors, views.negatives) | same_text(views.positives, views.negatives),
        )  # fmt: skip
    total = torch.stack([weights[name] * value for name, value in parts.items()]).sum()
    return StepLosses(total, parts, tokens)


def gate_losses(model: PreTrainedModel, conversations: Sequence[View], balance: float) -> StepLosses:
    """UBMoE's gates (Li et al. 2025, section 4): the loss of the answers under learned routing, plus load balancing."""
    batch = packed_batch(conversations, model.device, dropout=0.0, sink=False)
    with routing("learned", record=True) as recorder:
        hidden = hidden_states(model, batch.ids, batch.layout)  # (1, all tokens, hidden)
    assert recorder is not None  # record=True
    answer = mean_prediction_losses(model, hidden, batch.targets, batch.objective, (CLM,))[CLM]
    balancing = recorder.load_balancing_loss()
    return StepLosses(answer + balance * balancing, {"answer": answer, "balance": balancing}, batch.tokens)


def _duplicates(views: StepViews) -> Tensor:
    """(pairs, pairs) boolean: positive j says the same as anchor i, because a text of the two pairs is the same."""
    anchors, positives = views.anchors, views.positives
    return same_text(anchors, positives) | same_text(anchors, anchors) | same_text(positives, positives)


def same_text(rows: Sequence[View], columns: Sequence[View]) -> Tensor:
    """(rows, columns) boolean: where a text of one side stands again on the other, it is not a negative."""
    left = np.array([hash(view.ids.tobytes()) for view in rows], dtype=np.int64)
    right = np.array([hash(view.ids.tobytes()) for view in columns], dtype=np.int64)
    return torch.from_numpy(left[:, None] == right[None, :])
