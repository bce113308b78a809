"""Two trees over one set of weights, and adapters that touch only the second."""

from pathlib import Path

import pytest
import torch
from tests.families import FAMILIES, tiny
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from ambilm.adaptation import (
    AdapterSettings,
    add_adapter,
    load_adapter,
    merged_copy,
    save_adapter,
    shared_view,
    trainable_parameters,
)
from ambilm.attention import Layout
from ambilm.errors import UserError
from ambilm.model.forward import hidden_states, logits

IDS = torch.arange(3, 12)[None]


def randomised(view: PreTrainedModel, settings: AdapterSettings) -> None:
    add_adapter(view, settings)
    with torch.no_grad():
        for parameter in trainable_parameters(view).values():
            parameter.add_(torch.randn_like(parameter) * 0.05)


@torch.inference_mode()
def causal_logits(view: PreTrainedModel) -> Tensor:
    return logits(view, hidden_states(view, IDS, Layout.padded("causal", [9])))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_view_costs_no_weights(family: str) -> None:
    base = tiny(family)
    view = shared_view(base)
    for (name, left), (_, right) in zip(base.named_parameters(), view.named_parameters(), strict=True):
        assert left.data_ptr() == right.data_ptr(), name
    assert base.config._attn_implementation != view.config._attn_implementation


@pytest.mark.parametrize("modules", ["att", "ffn", "emb", "att+ffn"])
@pytest.mark.parametrize("family", FAMILIES)
def test_base_is_untouched_bit_for_bit_and_the_view_is_not(family: str, modules: str) -> None:
    base = tiny(family)
    before = base(IDS).logits
    view = shared_view(base)
    plain = causal_logits(view)
    randomised(view, AdapterSettings(modules=modules, rank=4))
    assert not torch.allclose(causal_logits(view), plain, atol=1e-4)
    assert torch.equal(base(IDS).logits, before)


@pytest.mark.parametrize("modules", ["att+ffn", "emb"])  # Gemma2, Gemma3 and GPT2 tie their head to the embedding
@pytest.mark.parametrize("tuning", ["lora", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_saved_is_loaded_and_merged_is_unmerged(family: str, tuning: str, modules: str, tmp_path: Path) -> None:
    base = tiny(family)
    view = shared_view(base)
    settings = AdapterSettings(tuning=tuning, modules=modules, rank=4)  # type: ignore[arg-type]
    randomised(view, settings)
    expected = causal_logits(view)
    save_adapter(view, settings, tmp_path)
    again = shared_view(base)
    assert load_adapter(again, tmp_path) == settings
    assert torch.equal(causal_logits(again), expected)
    assert not any(parameter.requires_grad for parameter in again.parameters())
    merged = merged_copy(view, base)
    with torch.inference_mode():
        found = merged(IDS).logits
        assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
        merged.save_pretrained(tmp_path / "merged")
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(IDS).logits, found)


@pytest.mark.parametrize(("modules", "tuning"), [("att+ffn", "lora"), ("emb", "lora"), ("emb+att+ffn", "full")])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision_weights_take_every_adapter(family: str, modules: str, tuning: str) -> None:
    base = tiny(family).to(torch.bfloat16)
    view = shared_view(base)
    exact = causal_logits(shared_view(base.float()))  # the same rounded weights, computed in float32
    base.to(torch.bfloat16)
    add_adapter(view, AdapterSettings(modules=modules, tuning=tuning, rank=4))  # type: ignore[arg-type]
    found = causal_logits(view)  # a fresh adapter changes nothing
    assert found.dtype == torch.float32
    assert (found - exact).norm() < 0.03 * exact.norm()


def test_wrong_groups_and_files(tmp_path: Path) -> None:
    view = shared_view(tiny("Llama"))
    with pytest.raises(UserError, match="Unknown module group 'fnn'"):
        add_adapter(view, AdapterSettings(modules="att+fnn"))
    with pytest.raises(UserError, match="not a readable adapter"):
        load_adapter(view, tmp_path)
    settings = AdapterSettings(rank=4)
    randomised(view, settings)
    save_adapter(view, settings, tmp_path)
    with pytest.raises(UserError, match="another architecture"):
        load_adapter(shared_view(tiny("Llama", layers=1)), tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match="damaged"):
        load_adapter(shared_view(tiny("Llama")), tmp_path)


def test_only_the_adapter_is_trained() -> None:
    view = shared_view(tiny("Llama"))
    add_adapter(view, AdapterSettings(modules="ffn", rank=4))
    names = trainable_parameters(view)
    assert names and all("lora_" in name and "mlp" in name for name in names)
    assert isinstance(view, nn.Module)
