"""Infilling: prefill + cached decoding equals the hybrid-mask pass, for one blank and for several."""

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ambilm.errors import UserError
from ambilm.model import infilling
from ambilm.model.decoding import decode
from ambilm.model.scoring import InfillExample

if TYPE_CHECKING:
    from ambilm import AmbiLM

ONE = "Anna went to the park. [BLANK] Then she went home."
TWO = "Anna [BLANK] to the park. She was [BLANK] all day, and then she went home."


@pytest.mark.parametrize("text", [ONE, TWO, "[BLANK] was a good day.", "It was a good [BLANK]"])
def test_cached_decoding_equals_the_hybrid_pass(smollm2: "AmbiLM", text: str) -> None:
    gap = 6
    found = smollm2.infill(text, max_tokens=gap, min_tokens=gap, num_candidates=2)
    assert len(found.candidates) == 2 and found.score == found.candidates[0].score >= found.candidates[1].score
    gaps = infilling.cut_at_blanks(text, smollm2.tokenizer, smollm2.settings)
    state = infilling.Filling(
        smollm2.view, smollm2.settings, gaps,
        infilling.Decoding(2, [gap] * (len(gaps.pieces) - 1), [gap] * (len(gaps.pieces) - 1), False, 0,
                           infilling.processors({})), set(smollm2.tokenizer.all_special_ids),
    )  # fmt: skip
    decode(state.view, state.cache, state.steps())
    for spans, score in zip(state.spans, state.scores.tolist(), strict=True):
        ids, places = list(gaps.pieces[0][1:]), []
        for span, piece in zip(spans, gaps.pieces[1:], strict=True):
            places.append((len(ids), len(ids) + len(span)))
            ids += span + piece
        hybrid = smollm2.infill_log_probs([InfillExample(ids, places)], gap=gap)[0].sum()
        assert score == pytest.approx(float(hybrid), abs=2e-3)


def test_bounds_sampling_and_seed(smollm2: "AmbiLM") -> None:
    first, second = (
        smollm2.infill(ONE, do_sample=True, temperature=0.8, top_k=20, seed=3, max_tokens=5).text for _ in range(2)
    )
    assert first == second
    long = smollm2.infill(TWO, min_tokens=[2, 4], max_tokens=[2, 4])
    counts = [len(smollm2.tokenizer(" " + span)["input_ids"]) for span in long.spans]
    assert counts[0] <= 3 and counts[1] <= 5 and all(long.spans)


def test_text_around_the_blank_is_kept(smollm2: "AmbiLM") -> None:
    found = smollm2.infill(ONE, max_tokens=4)
    assert found.text.startswith("Anna went to the park. ") and found.text.endswith(" Then she went home.")


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("no blank here", {}, "mark each missing part"),
        ("a [BLANK] [BLANK] b", {}, "no text between"),
        (ONE, {"top_q": 1}, "no option 'top_q'"),
        (ONE, {"temperature": -1.0}, "refused its options"),
        (ONE, {"max_tokens": [1, 2]}, "2 values for 1 blanks"),
        (ONE, {"max_tokens": 0}, "at least 1"),
        (ONE, {"min_tokens": 9, "max_tokens": 3}, "larger than"),
        (ONE, {"num_candidates": 0}, "at least 1"),
        (ONE, {"num_candidates": 3, "top_k": 2}, "fewer than 3 first tokens"),
        ("word " * 9000 + "[BLANK]", {}, "shorten the text"),
    ],
)
def test_mistakes(smollm2: "AmbiLM", text: str, options: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        smollm2.infill(text, **options)  # type: ignore[arg-type]


def test_scores(smollm2: "AmbiLM") -> None:
    score = smollm2.score("The cat sat on the mat.")
    ids = [smollm2.settings.start_token_id, *smollm2.tokenizer("The cat sat on the mat.")["input_ids"]]
    with torch.inference_mode():
        stock = torch.log_softmax(smollm2.base(torch.tensor([ids])).logits[0], -1)
    by_hand = stock[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    np.testing.assert_allclose(score.log_probs, by_hand, atol=1e-3)
    assert "".join(score.tokens) == "The cat sat on the mat." and score.total == pytest.approx(
        float(by_hand.sum()), abs=1e-2
    )
    assert len(score.tokens) == len(score.log_probs) and (score.log_probs < 0).all() and score.perplexity > 1
    right, wrong = (smollm2.score("She [BLANK] home.", [span]).total for span in ("went", "purple"))
    assert right > wrong
    with pytest.raises(UserError, match="2 spans"):
        smollm2.score("She [BLANK] home.", ["a", "b"])
