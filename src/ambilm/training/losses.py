"""The loss of one step: all views packed in one pass, MAGNET in three passes (the reference), UBMoE's gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ambilm.adaptation import routing
from ambilm.model.encoding import pooled
from ambilm.model.forward import hidden_states
from ambilm.model.settings import Pooling
from ambilm.objectives import CLM, MNTP, MSG, View, contrastive_loss, distillation_loss, mean_prediction_losses
from ambilm.training.batch import Batch, packed_batch, padded_batch

# Objectives that predict tokens, by the name of their part of the loss.
PREDICTIONS = {"mntp": MNTP, "msg": MSG, "answer": CLM}


@dataclass(frozen=True)
class StepViews:
    """Everything that one step looks at.

    Attributes:
        hybrid: the views with something to predict: masked, with spans, or (the control, answers) read left to right.
        anchors, positives: the two clean views of each pair; empty where nothing is compared.
        negatives: hard negatives, of as many pairs as have one.
        teacher: (clean views, any width), a teacher's vectors of the clean views in their order; None where there is no
            teacher.
    """

    hybrid: list[View]
    anchors: list[View] = field(default_factory=list)
    positives: list[View] = field(default_factory=list)
    negatives: list[View] = field(default_factory=list)
    teacher: Tensor | None = None

    @property
    def clean(self) -> list[View]:
        return self.anchors + self.positives + self.negatives


@dataclass(frozen=True)
class LossSettings:
    """Weights of the objectives (the names of ``PREDICTIONS``, ``sscl``, ``distillation``), and choices of the last two."""

    weights: Mapping[str, float] = field(default_factory=lambda: {"mntp": 1.0, "msg": 1.0, "sscl": 1.0})
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
    predictions = _predictions(model, hidden, batch, settings)
    sentence = None
    if views.anchors:
        start = sum(len(view) for view in views.hybrid)
        lengths = batch.lengths[len(views.hybrid) :]
        sentence = _sentences(hidden[:, start:], lengths, settings)
    return _combine(predictions, sentence, views, settings, batch.tokens)


def three_pass_losses(model: PreTrainedModel, views: StepViews, settings: LossSettings) -> StepLosses:
    """The plain reading of the paper: a padded pass for the hybrid views and one for each side of the pairs."""
    batch = padded_batch(views.hybrid, model.device, settings.dropout, settings.sink)
    hidden = hidden_states(model, batch.ids, batch.layout)  # (texts, longest, hidden)
    predictions = _predictions(model, hidden, batch, settings)
    sentence = None
    if views.anchors:
        sides = [side for side in (views.anchors, views.positives, views.negatives) if side]
        sentence = torch.cat([_padded_sentences(model, side, settings) for side in sides])
    return _combine(predictions, sentence, views, settings, batch.tokens + sum(len(view) for view in views.clean))


def _padded_sentences(model: PreTrainedModel, views: Sequence[View], settings: LossSettings) -> Tensor:
    batch: Batch = padded_batch(views, model.device, settings.dropout, settings.sink)
    hidden = hidden_states(model, batch.ids, batch.layout)  # (texts, longest, hidden)
    real = torch.cat([row[:length] for row, length in zip(hidden, batch.lengths, strict=True)])[None]
    return _sentences(real, batch.lengths, settings)  # (texts, hidden)


def _sentences(hidden: Tensor, lengths: Sequence[int], settings: LossSettings) -> Tensor:
    """Sentence vectors, (texts, hidden), of a packed row (1, sum of lengths, hidden); a sink says nothing of its text."""
    return pooled(hidden, lengths, [(int(settings.sink), length) for length in lengths], settings.pooling)


def _predictions(model: PreTrainedModel, hidden: Tensor, batch: Batch, settings: LossSettings) -> dict[str, Tensor]:
    """Name to loss, a scalar each, of the objectives with a weight that predict tokens; ``hidden`` as the batch."""
    codes = {name: code for name, code in PREDICTIONS.items() if name in settings.weights}
    losses = mean_prediction_losses(model, hidden, batch.targets, batch.objective, tuple(codes.values()))
    return {name: losses[code] for name, code in codes.items()}


def _combine(
    parts: dict[str, Tensor], sentence: Tensor | None, views: StepViews, settings: LossSettings, tokens: int
) -> StepLosses:
    if sentence is not None:
        anchors, positives, negatives = sentence.split([len(views.anchors), len(views.positives), len(views.negatives)])
        parts["sscl"] = contrastive_loss(
            anchors, positives, negatives, temperature=settings.temperature,
            same=_duplicates(views),
            same_negative=same_text(views.anchors, views.negatives) | same_text(views.positives, views.negatives),
        )  # fmt: skip
        if views.teacher is not None:
            teacher = views.teacher.to(sentence.device)
            parts["distillation"] = distillation_loss(sentence, teacher, settings.temperature)
    total = torch.stack([settings.weights[name] * value for name, value in parts.items()]).sum()
    return StepLosses(total, parts, tokens)


def gate_losses(model: PreTrainedModel, conversations: Sequence[View], balance: float) -> StepLosses:
    """UBMoE's gates (Li et al. 2025, section 4): the loss of the answers under learned routing, plus load balancing."""
    with routing("learned", record=True) as recorder:
        answers = packed_losses(model, StepViews(list(conversations)), LossSettings({"answer": 1.0}, sink=False))
    assert recorder is not None  # record=True
    balancing = recorder.load_balancing_loss()
    return StepLosses(answers.total + balance * balancing, {**answers.parts, "balance": balancing}, answers.tokens)


def _duplicates(views: StepViews) -> Tensor:
    """(pairs, pairs) boolean: positive j says the same as anchor i, because a text of the two pairs is the same."""
    anchors, positives = views.anchors, views.positives
    return same_text(anchors, positives) | same_text(anchors, anchors) | same_text(positives, positives)


def same_text(rows: Sequence[View], columns: Sequence[View]) -> Tensor:
    """(rows, columns) boolean: where a text of one side stands again on the other, it is not a negative."""
    left = np.array([hash(view.ids.tobytes()) for view in rows], dtype=np.int64)
    right = np.array([hash(view.ids.tobytes()) for view in columns], dtype=np.int64)
    return torch.from_numpy(left[:, None] == right[None, :])
