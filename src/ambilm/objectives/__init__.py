"""Objectives: a batch of views in, a loss out. One file each."""

from ambilm.objectives.contrastive import contrastive_loss
from ambilm.objectives.distillation import distillation_loss
from ambilm.objectives.prediction import mean_prediction_losses
from ambilm.objectives.views import CLM, MNTP, MSG, View, answers_view, causal_span_view, infill_view, plain_view

__all__ = [
    "CLM",
    "MNTP",
    "MSG",
    "View",
    "answers_view",
    "causal_span_view",
    "contrastive_loss",
    "distillation_loss",
    "infill_view",
    "mean_prediction_losses",
    "plain_view",
]
