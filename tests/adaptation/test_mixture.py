"""Two experts in every FFN: expert 0 is the base bit for bit, expert 1 is the tuned one, and the gates learn."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from tests.families import FAMILIES, tiny
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from ambilm.adaptation import (
    AdapterSettings,
    MixtureSettings,
    Recorder,
    add_adapter,
    add_mixture,
    expert_parameters,
    gate_parameters,
    load_mixture,
    routing,
    save_mixture,
    shared_view,
    take_experts_from,
    trainable_parameters,
    tuned_copy,
    with_mixture,
)
from ambilm.adaptation.mixture import Route
from ambilm.attention import Layout
from ambilm.errors import UserError
from ambilm.model.forward import hidden_states, logits

IDS = torch.arange(3, 27).view(2, 12)
HIDDEN = 32  # of every tiny model
ROUTES: tuple[Route, ...] = ("learned", "all_base", "all_tuned")
EXPERTS = ("low_rank", "dense")


def states(view: PreTrainedModel, layout: str = "bidirectional") -> Tensor:
    return hidden_states(view, IDS, Layout.padded(layout, [12, 12]))  # (2, 12, hidden)


def routed(view: PreTrainedModel, route: Route, layout: str = "bidirectional") -> Tensor:
    with routing(route):
        return states(view, layout)


def recorded(view: PreTrainedModel) -> Recorder:
    with routing("learned", record=True) as recorder:
        states(view)
    assert recorder is not None
    return recorder


def adapted_view(base: PreTrainedModel, modules: str = "ffn", **options: Any) -> PreTrainedModel:
    view = shared_view(base)
    add_adapter(view, AdapterSettings(modules=modules, rank=4, **options))
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in trainable_parameters(view).values():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return view


def mixture_view(base: PreTrainedModel, adapted: PreTrainedModel | None = None, **options: Any) -> PreTrainedModel:
    """A mixture whose gates split the tokens about evenly, with the experts of ``adapted``."""
    view = shared_view(base)
    add_mixture(view, MixtureSettings(rank=4, **options))
    torch.manual_seed(2)
    with torch.no_grad():
        for gate in gate_parameters(view).values():
            gate.copy_(torch.randn(2, HIDDEN))
    if adapted is not None:
        take_experts_from(adapted, view)
    return view


def mixtures(view: PreTrainedModel) -> list[nn.Module]:
    return [view.get_submodule(name.removesuffix(".gate.weight")) for name in gate_parameters(view)]


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_all_base_is_the_base_bit_for_bit(family: str, expert: str) -> None:
    base = tiny(family)
    before = base(IDS).logits
    plain = shared_view(base)
    view = mixture_view(base, adapted_view(base), expert=expert)
    for layout in ("causal", "bidirectional"):
        assert torch.equal(routed(view, "all_base", layout), states(plain, layout))
    assert not torch.allclose(routed(view, "all_tuned"), states(plain), atol=1e-3)
    found = logits(view, routed(view, "all_base", "causal"))
    torch.testing.assert_close(found, before, atol=2e-4, rtol=1e-4)
    assert torch.equal(base(IDS).logits, before)
    shared = {parameter.data_ptr() for parameter in base.parameters()}
    own = {parameter.data_ptr() for parameter in (gate_parameters(view) | expert_parameters(view)).values()}
    assert {parameter.data_ptr() for parameter in view.parameters()} == shared | own
    assert not shared & own


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_a_fresh_expert_is_the_base(family: str, expert: str, route: Route) -> None:
    base = tiny(family)
    view = mixture_view(base, expert=expert)
    torch.testing.assert_close(routed(view, route), states(shared_view(base)), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("modules", ["ffn", "ffn_gate"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_low_rank_is_dense_is_the_adapted_view(family: str, modules: str) -> None:
    base = tiny(family)
    adapted = adapted_view(base, modules, rank_stabilised=True)
    low_rank, dense = (mixture_view(base, adapted, expert=expert) for expert in EXPERTS)
    for route in ROUTES:
        torch.testing.assert_close(routed(low_rank, route), routed(dense, route), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(routed(low_rank, "all_tuned"), states(adapted), atol=1e-5, rtol=1e-5)
    shares = recorded(low_rank).share()
    assert shares.shape == (2,) and bool((shares > 0.1).all()) and bool((shares < 0.9).all())


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_dense_takes_fully_tuned_weights(family: str) -> None:
    base = tiny(family)
    adapted = adapted_view(base, tuning="full")
    view = mixture_view(base, adapted, expert="dense")
    assert torch.equal(routed(view, "all_tuned"), states(adapted))
    with pytest.raises(UserError, match="cannot hold fully tuned weights"):
        mixture_view(base, adapted)


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_each_token_gets_its_own_expert(family: str, expert: str) -> None:
    base = tiny(family)
    mixture = mixtures(mixture_view(base, adapted_view(base), expert=expert))[0]
    hidden = torch.randn(2, 6, HIDDEN)
    wanted = torch.tensor([[0, 1, 1, 0, 1, 0], [1, 1, 0, 0, 0, 1]])
    mixture.get_parameter("gate.weight").copy_(torch.eye(2, HIDDEN))  # the first two coordinates are the gate's logits
    hidden[..., :2] = 3 * nn.functional.one_hot(wanted, 2)
    with routing("learned", record=True) as recorder:
        found = mixture(hidden)
    assert recorder is not None and recorder.share().tolist() == [0.5]
    routes: tuple[Route, Route] = ("all_base", "all_tuned")
    alone = torch.empty_like(hidden)
    for row, column in torch.cartesian_prod(torch.arange(2), torch.arange(6)).tolist():
        with routing(routes[int(wanted[row, column])]):
            alone[row, column] = mixture(hidden[row, column][None, None])[0, 0]
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)
    for number, route in enumerate(routes):  # tokens that agree run exactly their expert's code
        hidden[..., :2] = 3 * torch.eye(2)[number]
        with routing("learned"):
            learned = mixture(hidden)
        with routing(route):
            assert torch.equal(learned, mixture(hidden))


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("family", ["Llama", "Phi3", "GPT2"])
def test_gradient_of_the_gate_has_its_closed_form(family: str, expert: str) -> None:
    base = tiny(family)
    adapted = adapted_view(base)
    straight, switch = (
        mixtures(mixture_view(base, adapted, expert=expert, scaling=scaling))[0]
        for scaling in ("straight_through", "switch")
    )
    hidden, weights = torch.randn(1, 8, HIDDEN), torch.randn(1, 8, HIDDEN)
    probabilities = (hidden[0] @ straight.get_parameter("gate.weight").T).softmax(dim=-1).detach()  # (8, 2)
    choice = probabilities.argmax(dim=-1)
    assert 0 < choice.sum() < 8
    with torch.no_grad():
        with routing("all_base"):
            on_base = straight(hidden)[0]
        with routing("all_tuned"):
            on_tuned = straight(hidden)[0]
    output = torch.where(choice.bool()[:, None], on_tuned, on_base)  # (8, hidden)
    picked = probabilities.gather(1, choice[:, None])  # (8, 1)
    # d(p_c w·y)/d logit_k = (w·y) p_c (1[k = c] - p_k)
    slope = (weights[0] * output).sum(dim=-1, keepdim=True) * picked
    expected = (slope * (nn.functional.one_hot(choice, 2) - probabilities)).T @ hidden[0]  # (2, hidden)
    for mixture, value in ((straight, output), (switch, picked * output)):
        with routing("learned"):
            found = mixture(hidden)
        torch.testing.assert_close(found[0], value, atol=1e-5, rtol=1e-5)
        (found * weights).sum().backward()
        gradient = mixture.get_parameter("gate.weight").grad
        assert gradient is not None
        torch.testing.assert_close(gradient, expected, atol=1e-4, rtol=1e-4)
    with torch.no_grad(), routing("learned"):
        without_gradient = straight(hidden)[0]
    with routing("learned"):
        assert torch.equal(straight(hidden)[0], without_gradient)


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_gates_are_trained_and_experts_can_be(family: str) -> None:
    view = mixture_view(tiny(family))
    assert set(trainable_parameters(view)) == set(gate_parameters(view))
    experts = expert_parameters(view)
    for parameter in experts.values():
        parameter.requires_grad_(True)
    routed(view, "learned").square().sum().backward()
    for name, parameter in (gate_parameters(view) | experts).items():
        if not name.endswith("down"):  # of a fresh difference only `up` moves at first
            assert parameter.grad is not None and bool(parameter.grad.any()), name
    assert all(parameter.grad is None for name, parameter in view.named_parameters() if not parameter.requires_grad)


@pytest.mark.parametrize("masked", [False, True])
def test_load_balancing_loss_is_that_of_mixtral(masked: bool) -> None:
    torch.manual_seed(0)
    gate_logits = tuple(torch.randn(24, 2, requires_grad=True) for _ in range(3))
    recorder = Recorder()
    for half in (slice(0, 12), slice(12, 24)):  # two forward passes
        for layer, values in enumerate(gate_logits):
            recorder.add(layer, values[half].softmax(dim=-1))
    real = torch.arange(24).view(2, 12) % 12 < 8 if masked else None
    found = recorder.load_balancing_loss(real)
    expected = load_balancing_loss_func(gate_logits, 2, 1, None if real is None else real.long())
    torch.testing.assert_close(found, expected)
    for mine, theirs in zip(
        torch.autograd.grad(found, gate_logits), torch.autograd.grad(expected, gate_logits), strict=True
    ):
        torch.testing.assert_close(mine, theirs)


def test_recorder_holds_every_layer_and_token() -> None:
    view = mixture_view(tiny("Llama"))
    recorder = recorded(view)
    probabilities = recorder.probabilities()
    assert probabilities.shape == (2, 24, 2) and probabilities.dtype == torch.float32
    recorder.load_balancing_loss().backward()
    assert all(gate.grad is not None for gate in gate_parameters(view).values())
    real = torch.zeros(2, 12, dtype=torch.bool)
    real[0, 0] = True
    assert torch.equal(recorder.share(real), probabilities[:, 0].argmax(dim=-1).float())
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        Recorder().share()


@pytest.mark.parametrize("expert", EXPERTS)
def test_threads_route_for_themselves(expert: str) -> None:
    base = tiny("Llama", layers=3)
    view = mixture_view(base, adapted_view(base), expert=expert)
    barrier = Barrier(len(ROUTES))

    def work(route: Route) -> list[Tensor]:
        with torch.inference_mode(), routing(route):
            barrier.wait()
            return [states(view) for _ in range(20)]

    with torch.inference_mode():
        alone = [routed(view, route) for route in ROUTES]
    assert not torch.equal(alone[0], alone[1]) and not torch.equal(alone[1], alone[2])
    with ThreadPoolExecutor(len(ROUTES)) as pool:
        for expected, found in zip(alone, pool.map(work, ROUTES), strict=True):
            assert all(torch.equal(each, expected) for each in found)


def test_a_route_ends_with_its_block() -> None:
    view = mixture_view(tiny("Llama"))
    with routing("all_tuned"):
        with pytest.raises(KeyError), routing("all_base"):
            raise KeyError
        states(view)
    with pytest.raises(RuntimeError, match="inside `with routing"):
        states(view)


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_saved_is_loaded(family: str, expert: str, tmp_path: Path) -> None:
    base = tiny(family)
    settings = MixtureSettings(rank=4, expert=expert, scaling="switch")  # type: ignore[arg-type]
    view = mixture_view(base, adapted_view(base), expert=expert, scaling="switch")
    save_mixture(view, settings, tmp_path)
    again = shared_view(base)
    assert load_mixture(again, tmp_path) == settings
    for route in ROUTES:
        assert torch.equal(routed(again, route), routed(view, route))
    assert not trainable_parameters(again)


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_half_precision_weights(family: str, expert: str) -> None:
    base = tiny(family).to(torch.bfloat16)
    adapted = adapted_view(base)
    view = mixture_view(base, adapted, expert=expert)
    plain = states(shared_view(base))
    assert torch.equal(routed(view, "all_base"), plain)
    tuned, expected = routed(view, "all_tuned"), states(adapted)
    assert (tuned - expected).norm() < 0.03 * expected.norm()
    assert bool(routed(view, "learned").isfinite().all())
    hidden, mixture = torch.randn(1, 8, HIDDEN), mixtures(view)[0]
    with torch.autocast("cpu", torch.bfloat16), routing("learned", record=True) as recorder:
        mixture(hidden)
    assert recorder is not None  # gates decide in float32, whatever the products are computed in
    exact = (hidden @ mixture.get_parameter("gate.weight").T).softmax(dim=-1)
    torch.testing.assert_close(recorder.probabilities(), exact, atol=1e-5, rtol=1e-5)


def test_wrong_views(tmp_path: Path) -> None:
    base = tiny("Llama")
    view = mixture_view(base)
    with pytest.raises(ValueError, match="adapted already"):
        add_mixture(view, MixtureSettings())
    with pytest.raises(ValueError, match="adapted already"):
        add_mixture(adapted_view(base), MixtureSettings())
    with pytest.raises(ValueError, match="no mixture"):
        save_mixture(shared_view(base), MixtureSettings(), tmp_path)
    with pytest.raises(UserError, match=r"self_attn.* differs too"):
        take_experts_from(adapted_view(base, "att+ffn"), view)
    with pytest.raises(UserError, match="differs too"):
        take_experts_from(adapted_view(tiny("Llama")), view)
    with pytest.raises(UserError, match="no adapter"):
        take_experts_from(shared_view(base), view)
    other_rank = shared_view(base)
    add_mixture(other_rank, MixtureSettings(rank=2))
    with pytest.raises(UserError, match="choose rank=4"):
        take_experts_from(adapted_view(base), other_rank)
    sparse = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=50, hidden_size=16, intermediate_size=16, moe_intermediate_size=8, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, num_experts=2, num_experts_per_tok=1,
        )
    )  # fmt: skip
    with pytest.raises(UserError, match="dense base model"):
        add_mixture(shared_view(sparse), MixtureSettings())
    wrong: Any = "by_job"
    with pytest.raises(ValueError, match="unknown route 'by_job'"), routing(wrong):
        pass
    with pytest.raises(ValueError, match="nothing to record"), routing("all_base", record=True):
        pass


def test_wrong_files(tmp_path: Path) -> None:
    base = tiny("Llama")
    with pytest.raises(UserError, match="not a readable mixture"):
        load_mixture(shared_view(base), tmp_path)
    save_mixture(mixture_view(base), MixtureSettings(rank=4), tmp_path)
    with pytest.raises(UserError, match="another architecture"):
        load_mixture(shared_view(tiny("Llama", layers=1)), tmp_path)
    (tmp_path / "mixture.safetensors").write_bytes(b"short")
    with pytest.raises(UserError, match="damaged"):
        load_mixture(shared_view(base), tmp_path)
    (tmp_path / "mixture.safetensors").unlink()
    with pytest.raises(UserError, match="missing"):
        load_mixture(shared_view(base), tmp_path)
    (tmp_path / "mixture.json").write_text('{"expert": "sparse"}')
    with pytest.raises(UserError, match="not a readable mixture"):
        load_mixture(shared_view(base), tmp_path)


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_trees_of_stock_modules(family: str, expert: str) -> None:
    base = tiny(family)
    view = mixture_view(base, adapted_view(base), expert=expert)
    assert torch.equal(with_mixture(base, view, "all_base")(IDS).logits, base(IDS).logits)
    for route in ROUTES:
        model = with_mixture(base, view, route)
        expected = logits(view, routed(view, route, "causal"))
        torch.testing.assert_close(model(IDS).logits, expected, atol=2e-4, rtol=1e-4)
        assert {id(item) for item in model.parameters()} == {id(item) for item in view.parameters()}
    folded = tuned_copy(view, base)(IDS).logits
    torch.testing.assert_close(folded, with_mixture(base, view, "all_tuned")(IDS).logits, atol=2e-4, rtol=1e-4)
