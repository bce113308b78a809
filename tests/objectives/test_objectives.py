"""Views and losses, by hand."""

import numpy as np
import pytest
import torch

from ambilm.objectives import MNTP, MSG, causal_span_view, contrastive_loss, infill_view, plain_view
from ambilm.objectives.views import NO_TARGET, Masking

N = NO_TARGET


def test_a_spanned_view_by_hand() -> None:
    view = infill_view([9, 10, 11, 12, 13, 14], [(2, 4)], [5], end_of_span=2)
    assert view.is_span.tolist() == [False, False, True, True, False, False]
    assert view.position.tolist() == [0, 1, 2, 3, 7, 8]
    assert view.targets.tolist() == [N, 11, 12, 2, N, N]
    assert view.objective.tolist() == [0, MSG, MSG, MSG, 0, 0]


def test_the_control_reads_the_same_span_left_to_right() -> None:
    view = causal_span_view([9, 10, 11, 12, 13], [(2, 4)])
    assert view.ids.tolist() == [9, 10, 11, 12] and view.is_span.all()
    assert view.targets.tolist() == [N, 11, 12, N]


def test_masking_predicts_one_place_earlier_and_spares_spans() -> None:
    ids = np.arange(1000, 3000)
    view = infill_view(
        ids, [(500, 700)], [200], 2, Masking(0.2, mask_token=5, vocabulary=900), np.random.default_rng(0)
    )
    places = np.flatnonzero(view.objective == MNTP)
    assert (view.targets[places] == ids[places + 1]).all() and not view.is_span[places + 1].any()
    share = len(places) / 1800
    assert 0.17 < share < 0.23
    masked = (view.ids[places + 1] == 5).mean()
    kept = (view.ids[places + 1] == ids[places + 1]).mean()
    assert 0.74 < masked < 0.86 and 0.05 < kept < 0.16
    assert (view.ids[500:700] == ids[500:700]).all() and view.ids[0] == 1000
    assert view.objective[699] == MSG  # the end of the span, not the masked token behind it


@pytest.mark.parametrize("spans", [[(0, 2)], [(2, 2)], [(1, 3), (3, 4)], [(1, 3), (2, 4)], [(4, 9)]])
def test_spans_that_do_not_fit(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        infill_view([1, 2, 3, 4, 5], spans, [9] * len(spans), 0)


def test_plain_view_predicts_nothing() -> None:
    view = plain_view([4, 5])
    assert not view.is_span.any() and (view.targets == N).all() and len(view) == 2


def test_contrastive_loss_by_hand() -> None:
    anchors = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    positives = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
    scores = torch.tensor([[1.0, 0.5**0.5], [0.0, 0.5**0.5]]) / 0.5
    expected = -(torch.log_softmax(scores, 1).diagonal()).mean()
    assert torch.isclose(contrastive_loss(anchors, positives, temperature=0.5), expected)
    with_negative = contrastive_loss(anchors, positives, torch.tensor([[1.0, 0.0]]), temperature=0.5)
    wide = torch.cat([scores, torch.tensor([[1.0], [0.0]]) / 0.5], 1)
    assert torch.isclose(with_negative, -(torch.log_softmax(wide, 1).diagonal()).mean())


def test_duplicates_are_no_negatives() -> None:
    anchors, positives = torch.eye(2), torch.eye(2)
    same = torch.ones(2, 2, dtype=torch.bool)
    assert contrastive_loss(anchors, positives, temperature=0.05, same=same).item() == 0
    negatives = torch.eye(2)[:1]
    hidden = torch.tensor([[True], [False]])
    loss = contrastive_loss(anchors, positives, negatives, temperature=1.0, same=same, same_negative=hidden)
    assert torch.isclose(loss, torch.log1p(torch.exp(torch.tensor(-1.0))) / 2)
