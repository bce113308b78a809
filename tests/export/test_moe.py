"""``--to moe``: stock transformers loads the two experts and gives AmbiLM's logits and text under the learned gates."""

from pathlib import Path
from typing import Literal

import pytest
import torch
from tests.families import tiny
from transformers import AutoModelForCausalLM, PreTrainedModel

from ambilm import AmbiLM
from ambilm.adaptation import MixtureSettings, add_mixture, expert_parameters, gate_parameters, set_route
from ambilm.adaptation.mixture import Scaling
from ambilm.errors import UserError
from ambilm.export import export_moe

IDS = torch.arange(3, 43)[None]  # (1, 40)


def two_experts(base: PreTrainedModel, like: AmbiLM, settings: MixtureSettings) -> AmbiLM:
    """``base`` under the tokenizer of ``like``, with experts 1 that differ from the base and gates that use both."""
    model = AmbiLM(base, like.tokenizer, "two experts", like.settings)
    model.mixture = settings
    torch.manual_seed(0)
    add_mixture(model.view, settings)
    set_route(model.view, "all_tuned")
    with torch.no_grad():
        for parameter in expert_parameters(model.view).values():
            parameter.add_(torch.randn_like(parameter) * 0.1 * parameter.float().std().clamp(min=0.02))
        for gate in gate_parameters(model.view).values():
            gate.normal_(0, 0.1)
    return model


def stock(directory: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


@pytest.mark.parametrize("expert", ["low_rank", "dense"])
@pytest.mark.parametrize(
    ("family", "scaling", "kind"),
    [
        ("Llama", "straight_through", "mixtral"),
        ("Mistral", "straight_through", "mixtral"),
        ("Qwen3", "straight_through", "qwen3_moe"),
        ("Qwen3", "switch", "qwen3_moe"),
    ],
)
def test_a_stock_model_has_our_logits(
    smollm2: AmbiLM, tmp_path: Path, family: str, scaling: Scaling, kind: str, expert: Literal["low_rank", "dense"]
) -> None:
    settings = MixtureSettings(expert=expert, scaling=scaling, rank=4)
    model = two_experts(tiny(family, layers=3), smollm2, settings)
    export_moe(model, tmp_path / "moe")
    peer = stock(tmp_path / "moe")
    with torch.no_grad():
        logits, ours, base = (each(IDS).logits for each in (peer, model.with_weights("learned").base, model.base))
    assert peer.config.model_type == kind
    torch.testing.assert_close(logits, ours, rtol=0, atol=1e-4)
    assert not torch.allclose(logits, base, atol=1e-2)


def test_the_real_model_says_the_same(smollm2: AmbiLM, tmp_path: Path) -> None:
    model = two_experts(smollm2.base, smollm2, MixtureSettings(rank=4))
    learned = model.with_weights("learned")
    export_moe(model, tmp_path / "moe")
    peer = stock(tmp_path / "moe")
    ids = smollm2.tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(peer(ids).logits, learned.base(ids).logits, rtol=0, atol=1e-4)
        written = [each.generate(ids, max_new_tokens=24, do_sample=False) for each in (peer, learned.base)]
    assert torch.equal(*written)
    assert {path.name for path in (tmp_path / "moe").iterdir()} >= {"config.json", "tokenizer.json"}


def test_what_cannot_be_exported_says_why(smollm2: AmbiLM, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no two experts"):
        export_moe(smollm2, tmp_path / "moe")
    with pytest.raises(UserError, match="scaling=straight_through"):
        export_moe(two_experts(tiny("Llama"), smollm2, MixtureSettings(scaling="switch")), tmp_path / "moe")
    with pytest.raises(UserError, match="knows llama, mistral, qwen3"):
        export_moe(two_experts(tiny("Qwen2"), smollm2, MixtureSettings()), tmp_path / "moe")
    assert not (tmp_path / "moe").exists()
