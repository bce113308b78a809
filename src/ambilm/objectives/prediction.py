"""MNTP and MSG: cross-entropy on the places that have a target, and logits for those places only.

MAGNET, section 3.2; MNTP also LLM2Vec (BehnamGhader et al., 2024), section 2.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from ambilm.model.forward import logits
from ambilm.objectives.views import NO_TARGET


def mean_prediction_losses(
    view: PreTrainedModel, hidden: Tensor, targets: Tensor, objective: Tensor, which: tuple[int, ...]
) -> dict[int, Tensor]:
    """Mean cross-entropy of each objective in ``which``, over its own places.

    Args:
        hidden: (batch, length, hidden).
        targets: (batch, length), ``NO_TARGET`` where nothing is predicted.
        objective: (batch, length), whose target it is.

    Returns:
        objective code to scalar; an objective without a single place gives a zero that carries no gradient.
    """
    chosen = targets != NO_TARGET
    # The vocabulary is the widest matrix of a small model: no row of it is computed that no loss asks for.
    losses = F.cross_entropy(logits(view, hidden[chosen]), targets[chosen], reduction="none")  # (targets,)
    owner = objective[chosen]
    return {code: losses[owner == code].mean() if bool((owner == code).any()) else torch.zeros(()) for code in which}
