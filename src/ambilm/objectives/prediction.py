"""MNTP and MSG: cross-entropy on the places that have a target, and logits for those places only.

MAGNET, section 3.2; MNTP also LLM2Vec (BehnamGhader et al., 2024), section 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ambilm.model.forward import logits
from ambilm.objectives.views import NO_TARGET

CHUNK = 64  # targets whose logits are in memory at once


class _VocabularyLoss(torch.autograd.Function):
    """Cross-entropy through a frozen head, a few targets at a time.

    The gradient of a chunk is taken while its logits are at hand, so that neither logits nor probabilities of all targets
    are ever stored: for a small model they are larger than everything else in the step and took a third of its time.
    """

    @staticmethod
    def forward(context: Any, hidden: Tensor, targets: Tensor, view: PreTrainedModel) -> Tensor:
        """hidden (targets, hidden), targets (targets,) to losses (targets,) in nats."""
        losses, gradients = [], []
        for states, wanted in zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True):
            with torch.enable_grad():
                states = states.detach().requires_grad_()
                scores = logits(view, states)  # (chunk, vocabulary)
            values = scores.detach()
            probabilities = torch.softmax(values, dim=-1)  # (chunk, vocabulary)
            # log-sum-exp from the likeliest token, whose probability cannot underflow
            best, token = probabilities.max(dim=-1, keepdim=True)
            total = values.gather(1, token) - best.log()  # (chunk, 1)
            losses.append((total - values.gather(1, wanted[:, None]))[:, 0])
            probabilities.scatter_add_(1, wanted[:, None], probabilities.new_full((len(wanted), 1), -1.0))
            gradients.append(torch.autograd.grad(scores, states, probabilities)[0])  # (chunk, hidden)
        context.save_for_backward(torch.cat(gradients))
        return torch.cat(losses)

    @staticmethod
    def backward(context: Any, *outputs: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = context.saved_tensors
        return gradient * outputs[0][:, None], None, None


def token_losses(view: PreTrainedModel, hidden: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of each target, (targets,) in nats, from hidden states (targets, hidden). The head gets no gradient."""
    losses: Tensor = _VocabularyLoss.apply(hidden, targets, view)  # type: ignore[no-untyped-call]
    return losses


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
    if not bool(chosen.any()):
        return {code: torch.zeros((), device=hidden.device) for code in which}
    # The vocabulary is the widest matrix of a small model: no row of it is computed that no loss asks for.
    losses = token_losses(view, hidden[chosen], targets[chosen])  # (targets,)
    owner = objective[chosen]
    return {
        code: losses[owner == code].mean() if bool((owner == code).any()) else losses.new_zeros(()) for code in which
    }
