"""SSCL / SimCSE: InfoNCE with in-batch negatives (MAGNET, section 3.2; Gao et al., 2021).

Inputs: pairs of texts that mean the same (a paraphrase, or one text under two dropout masks), optionally a hard negative
for each. Use it where sentence vectors are wanted; larger batches give more negatives.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def contrastive_loss(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: float,
    same: Tensor | None = None,
    same_negative: Tensor | None = None,
) -> Tensor:
    """Cross-entropy of picking each anchor's own positive among all positives and hard negatives, by cosine.

    Args:
        anchors, positives: (pairs, hidden).
        negatives: (negatives, hidden) hard negatives, any number, negatives for every anchor.
        temperature: cosines are divided by it.
        same: (pairs, pairs) boolean, true where positive j is a text equal to anchor i or to its positive: such a
            duplicate is no negative (the diagonal is ignored).
        same_negative: (pairs, negatives) boolean, the same for the hard negatives.

    Returns:
        scalar, the mean over pairs.
    """
    anchors, positives = F.normalize(anchors.float(), dim=-1), F.normalize(positives.float(), dim=-1)
    scores = anchors @ positives.T  # (pairs, pairs)
    if same is not None:
        own = torch.eye(len(anchors), dtype=torch.bool, device=anchors.device)
        scores = scores.masked_fill(same & ~own, -torch.inf)
    if negatives is not None and len(negatives):
        hard = anchors @ F.normalize(negatives.float(), dim=-1).T  # (pairs, negatives)
        if same_negative is not None:
            hard = hard.masked_fill(same_negative, -torch.inf)
        scores = torch.cat([scores, hard], dim=1)
    return F.cross_entropy(scores / temperature, torch.arange(len(anchors), device=anchors.device))
