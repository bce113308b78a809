"""Objectives: a batch of views in, a loss out. One file each."""

from ambilm.objectives.contrastive import contrastive_loss
from ambilm.objectives.prediction import mean_prediction_losses
from ambilm.objectives.views import MNTP, MSG, View, causal_span_view, infill_view, plain_view

__all__ = [
    "MNTP",
    "MSG",
    "View",
    "causal_span_view",
    "contrastive_loss",
    "infill_view",
    "mean_prediction_losses",
    "plain_view",
]
