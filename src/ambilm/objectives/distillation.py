"""Relational distillation: a student learns from a teacher's vectors who is near whom (after Tung and Mori, 2019).

Inputs: vectors of the same texts from both. Only cosines within a side are compared, so the two may differ in width, and the
student keeps its own. Use it where pairs are few: every text of a batch says something about every other one, while a
contrastive pair says one thing about two.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence from the teacher's neighbours of a text to the student's.

    The neighbours of a text are the softmax of its cosines to all other texts.

    Args:
        student: (texts, hidden).
        teacher: (texts, any width).
        temperature: cosines are divided by it.

    Returns:
        scalar, nats, the mean over texts; 0 for fewer than three of them, which have no choice of neighbours.
    """
    if len(student) < 3:
        return student.sum() * 0.0
    theirs, own = (_log_neighbours(vectors, temperature) for vectors in (teacher, student))  # (texts, texts - 1)
    return F.kl_div(own, theirs, reduction="batchmean", log_target=True)


def _log_neighbours(vectors: Tensor, temperature: float) -> Tensor:
    unit = F.normalize(vectors.float(), dim=-1)  # (texts, width)
    others = ~torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    cosines = (unit @ unit.T)[others].view(len(unit), -1)  # (texts, texts - 1)
    return F.log_softmax(cosines / temperature, dim=-1)
