"""Infilling of every decoder family, sliding windows included: prefill + cached decoding equals the hybrid-mask pass."""

import pytest
import torch
from tests.families import FAMILIES, tiny
from torch import Tensor
from transformers import PreTrainedModel

from ambilm.adaptation import shared_view
from ambilm.model import infilling
from ambilm.model.decoding import decode
from ambilm.model.forward import hidden_states, logits, pack_layout
from ambilm.model.settings import Settings
from ambilm.objectives import MSG, infill_view

START, END = 1, 2
PIECES = [[START, 10, 11, 12, 13], [20, 21, 22], [30, 31, 32]]
LONGEST = [4, 3]


def decoded(view: PreTrainedModel, sink: bool, shortest: list[int]) -> infilling.Filling:
    """Two candidates for a text of two blanks."""
    settings = Settings(
        mask_token_id=5, start_token_id=START, end_token_id=END, end_of_span_token_id=END, sink=sink
    )  # fmt: skip
    decoding = infilling.Decoding(2, shortest, LONGEST, False, 0, infilling.processors({}))
    state = infilling.Filling(view, settings, infilling.Gaps(["", "", ""], PIECES), decoding, {0, START, END})
    decode(state.view, state.cache, state.steps())
    return state


def log_probs(view: PreTrainedModel, spans: list[list[int]], sink: bool) -> Tensor:
    """(span tokens and ends,) of one hybrid-mask pass over the filled text."""
    ids, places = list(PIECES[0]), []
    for span, piece in zip(spans, PIECES[1:], strict=True):
        places.append((len(ids), len(ids) + len(span)))
        ids += span + piece
    text = infill_view(ids, places, LONGEST, END)
    layout = pack_layout(
        [len(text)], torch.from_numpy(text.is_span)[None], torch.from_numpy(text.position)[None], sink=sink
    )
    scores = torch.log_softmax(logits(view, hidden_states(view, torch.from_numpy(text.ids)[None], layout)[0]), -1)
    picked = torch.from_numpy(text.objective == MSG)
    return scores[picked].gather(1, torch.from_numpy(text.targets)[picked][:, None])[:, 0]


@pytest.mark.parametrize("sink", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_cached_decoding_equals_the_hybrid_pass(family: str, sink: bool) -> None:
    view = shared_view(tiny(family, layers=3))
    state = decoded(view, sink, LONGEST)
    for spans, score in zip(state.spans, state.scores.tolist(), strict=True):
        assert [len(span) for span in spans] == LONGEST
        values = log_probs(view, spans, sink)  # the bound was reached: the two ends (places 4 and 8) are not scored
        assert score == pytest.approx(float(values[:4].sum() + values[5:8].sum()), abs=1e-3)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_cut_span_counts_its_end_and_later_blanks_do_not_see_the_rest(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infilling, "LIKELY_END", 0.0)
    view = shared_view(tiny(family, layers=3))
    view.get_output_embeddings().weight.data[END] = -1.0  # nobody ends a span by itself
    state = decoded(view, True, [2, 1])
    assert all(2 <= len(first) < 4 and 1 <= len(second) < 3 for first, second in state.spans)
    for spans, score in zip(state.spans, state.scores.tolist(), strict=True):
        assert score == pytest.approx(float(log_probs(view, spans, True).sum()), abs=1e-3)
