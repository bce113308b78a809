"""UBMoE in use: the base generates, expert 1 reads both ways, and the learned gates are one more way to run the same weights."""

from pathlib import Path

import numpy as np
import pytest
import torch

from ambilm import AmbiLM
from ambilm.adaptation import (
    AdapterSettings,
    MixtureSettings,
    add_adapter,
    add_mixture,
    gate_parameters,
    set_route,
    take_experts_from,
    trainable_parameters,
)
from ambilm.errors import UserError

TEXTS = ["The harbour was quiet before dawn.", "Prices rose again in March."]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def adapted(smollm2: AmbiLM) -> AmbiLM:
    """A LoRA on the FFN whose differences are not zero."""
    model = AmbiLM(smollm2.base, smollm2.tokenizer, "adapted")
    model.adapter = AdapterSettings(modules="ffn", rank=4)
    add_adapter(model.view, model.adapter)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in trainable_parameters(model.view).values():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model


@pytest.fixture(scope="module")
def mixture(adapted: AmbiLM) -> AmbiLM:
    """The same difference as expert 1, under gates that nothing has trained yet."""
    model = AmbiLM(adapted.base, adapted.tokenizer, "mixture")
    model.mixture = MixtureSettings(rank=4, alpha=32.0)
    torch.manual_seed(1)
    add_mixture(model.view, model.mixture)
    take_experts_from(adapted.view, model.view)
    set_route(model.view, "all_tuned")
    return model


def test_each_job_has_its_expert(adapted: AmbiLM, mixture: AmbiLM, smollm2: AmbiLM) -> None:
    before = smollm2.generate(PROMPT, max_new_tokens=8, do_sample=False)
    vectors = mixture.encode(TEXTS)
    assert np.allclose(vectors, adapted.encode(TEXTS), atol=1e-4)
    assert not np.allclose(vectors, mixture.encode(TEXTS, weights="base"), atol=1e-2)
    assert mixture.generate(PROMPT, max_new_tokens=8, do_sample=False) == before
    ids = smollm2.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    assert torch.equal(mixture.base(ids).logits, smollm2.base(ids).logits)


def test_merged_is_expert_1_everywhere(adapted: AmbiLM, mixture: AmbiLM) -> None:
    merged, folded = mixture.with_weights("merged"), adapted.with_weights("merged")
    assert np.allclose(merged.encode(TEXTS), mixture.encode(TEXTS), atol=1e-4)
    ids = mixture.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    assert torch.allclose(merged.base(ids).logits, folded.base(ids).logits, atol=1e-4)


def test_learned_gates_decide_in_every_job(mixture: AmbiLM) -> None:
    learned = mixture.with_weights("learned")
    ids = mixture.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    by_gates = learned.base(ids).logits
    for other in (mixture.base, mixture.with_weights("merged").base):
        assert not torch.allclose(by_gates, other(ids).logits, atol=1e-3)
    assert not np.allclose(learned.encode(TEXTS), mixture.encode(TEXTS), atol=1e-3)
    # Step by step with a cache, as generate does it, the gates decide as in one pass over the whole text.
    written = learned.generate(PROMPT, max_new_tokens=6, do_sample=False)
    whole = mixture.tokenizer(PROMPT + written, return_tensors="pt")["input_ids"]
    greedy = learned.base(whole).logits[0, ids.shape[1] - 1 : -1].argmax(dim=-1)
    assert torch.equal(greedy, whole[0, ids.shape[1] :])


def test_gates_that_choose_one_expert_are_that_expert(mixture: AmbiLM, smollm2: AmbiLM) -> None:
    learned = mixture.with_weights("learned")
    saved = {name: gate.detach().clone() for name, gate in gate_parameters(mixture.view).items()}
    ids = mixture.tokenizer(PROMPT, return_tensors="pt")["input_ids"]
    try:
        with torch.no_grad():
            for gate in gate_parameters(mixture.view).values():
                gate.zero_()  # a tie goes to expert 0
        assert torch.equal(learned.base(ids).logits, smollm2.base(ids).logits)
    finally:
        with torch.no_grad():
            for name, gate in gate_parameters(mixture.view).items():
                gate.copy_(saved[name])


def test_saved_is_loaded_and_an_earlier_adapter_goes(adapted: AmbiLM, mixture: AmbiLM, tmp_path: Path) -> None:
    adapted.save_pretrained(tmp_path)
    mixture.save_pretrained(tmp_path)
    again = AmbiLM.from_pretrained(tmp_path, dtype="float32")
    assert again.is_adapted and again.adapter is None and again.mixture == mixture.mixture
    assert np.array_equal(again.encode(TEXTS), mixture.encode(TEXTS))
    texts = [
        model.with_weights("learned").generate(PROMPT, max_new_tokens=6, do_sample=False) for model in (again, mixture)
    ]
    assert texts[0] == texts[1]


def test_weights_that_a_model_has_not(smollm2: AmbiLM, adapted: AmbiLM, mixture: AmbiLM, tmp_path: Path) -> None:
    assert smollm2.with_weights("base") is smollm2 and adapted.with_weights("by_job") is adapted
    with pytest.raises(UserError, match="recipe ubmoe"):
        adapted.with_weights("learned")
    with pytest.raises(UserError, match="not"):
        smollm2.with_weights("merged")
    with pytest.raises(UserError, match="choose one of base, by_job, merged, learned"):
        smollm2.with_weights("tuned")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="save the model"):
        mixture.with_weights("learned").save_pretrained(tmp_path)
