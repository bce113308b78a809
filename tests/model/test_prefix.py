"""Generation after a prompt that was read both ways: ``generate`` goes on as whole passes under the prefix mask would."""

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.families import FAMILIES, WINDOW, tiny
from torch import Tensor
from transformers import PreTrainedModel

from ambilm.adaptation import shared_view
from ambilm.attention import Layout
from ambilm.errors import UserError
from ambilm.model.forward import hidden_states, logits
from ambilm.model.generation import PrefixReader

if TYPE_CHECKING:
    from ambilm import AmbiLM

PROMPT = "The old man and the young woman who"
NEW = 6


@torch.inference_mode()
def prefix_logits(view: PreTrainedModel, ids: Tensor, prefix: int, sink: bool) -> Tensor:
    """(length, vocabulary) of one whole pass; ids (length,)."""
    layout = Layout.padded("prefix", [len(ids)], prefix=[prefix])
    layout = Layout.of(layout.queries.with_sinks()) if sink else layout
    return logits(view, hidden_states(view, ids[None], layout)[0])


@pytest.mark.parametrize("sink", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_equals_whole_passes(family: str, sink: bool) -> None:
    """Two prompts of different length side by side, within the sliding window; what is written leaves it."""
    base = tiny(family, layers=3)
    view = shared_view(base)
    rows = torch.tensor([[0, 11, 12], [21, 22, 23]])
    inputs = {"input_ids": rows, "attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]])}
    options = {"max_new_tokens": 2 * WINDOW, "min_new_tokens": 2 * WINDOW, "do_sample": False}
    with torch.inference_mode():
        found = base.generate(  # type: ignore[operator]
            **PrefixReader(view, sink)(inputs, options), **options, output_logits=True, return_dict_in_generate=True
        )
    for number, length in enumerate((2, 3)):
        ids = found.sequences[number, 3 - length :]
        expected = prefix_logits(view, ids[:-1], length, sink)[length - 1 :]
        torch.testing.assert_close(torch.stack(found.logits, 1)[number], expected, atol=2e-4, rtol=2e-4)
        if not sink:
            causal = prefix_logits(view, ids[:-1], 0, sink)[length - 1 :]
            assert (causal - expected).abs().max() > 1e-2


def test_the_job(smollm2: "AmbiLM") -> None:
    greedy: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "layout": "prefix"}
    ids = smollm2.tokenizer(PROMPT, return_tensors="pt")["input_ids"][0]
    whole = ids
    for _ in range(NEW):
        scores = prefix_logits(smollm2.view, whole, len(ids), smollm2.settings.sink)
        whole = torch.cat([whole, scores[-1].argmax()[None]])
    expected = smollm2.tokenizer.decode(whole[len(ids) :], skip_special_tokens=True)
    assert smollm2.generate(PROMPT, **greedy) == expected
    assert smollm2.generate([PROMPT, "A"], **greedy)[0] == expected
    assert "".join(smollm2.generate(PROMPT, stream=True, **greedy)) == expected
    assert smollm2.generate(PROMPT, max_new_tokens=NEW, do_sample=False) != expected
    assert smollm2.chat([{"role": "user", "content": "Hi"}], **greedy)
    with pytest.raises(UserError, match="choose one of causal, prefix"):
        smollm2.generate(PROMPT, layout="infill")  # type: ignore[call-overload]
    with pytest.raises(UserError, match="leave use_cache=False out"):
        smollm2.generate(PROMPT, use_cache=False, **greedy)


def test_several_sequences_share_one_reading(smollm2: "AmbiLM") -> None:
    """Beams and drawn sequences go on from copies of the cache."""
    beams = smollm2.generate(PROMPT, layout="prefix", max_new_tokens=NEW, num_beams=2, do_sample=False)
    drawn: dict[str, Any] = {"do_sample": True, "top_k": 1, "num_return_sequences": 2}
    alone = smollm2.generate(PROMPT, layout="prefix", max_new_tokens=NEW, do_sample=False)
    assert smollm2.generate([PROMPT], layout="prefix", max_new_tokens=NEW, **drawn) == [alone, alone]
    ids = [smollm2.tokenizer(PROMPT + text)["input_ids"] for text in (beams, alone)]
    prompt = len(smollm2.tokenizer(PROMPT)["input_ids"])  # type: ignore[arg-type]

    def score(row: list[int]) -> float:
        values = torch.log_softmax(prefix_logits(smollm2.view, torch.tensor(row), prompt, smollm2.settings.sink), -1)
        return float(sum(values[place - 1, row[place]] for place in range(prompt, len(row))))

    assert score(ids[0]) >= score(ids[1]) - 1e-3  # type: ignore[arg-type]
