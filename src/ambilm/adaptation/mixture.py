"""The two-expert FFN of UBMoE (Li et al. 2025, "What Limits Bidirectional Model's Generative Capabilities?", section 4).

Each layer's FFN of a view becomes a mixture: expert 0 is the base's FFN, the very same weight tensors, and expert 1 the
bidirectionally tuned one, either dense (weights of its own) or low-rank (the base's plus a LoRA difference in each of its
products). A linear gate per layer picks one of the two per token::

    view = shared_view(base)
    add_mixture(view, MixtureSettings())
    take_experts_from(adapted, view)  # adapted: another view, with LoRA on its FFN
    with routing("learned", record=True) as recorder:
        hidden = hidden_states(view, ids, layout)
    loss = ... + settings.balance * recorder.load_balancing_loss()

Nothing is switched, so calls of different kinds can run in several threads at once: ``routing`` holds for the calls of one
thread, and outside of it a tree of modules has a route of its own (``set_route``). :class:`ambilm.AmbiLM` keeps one tree for
each way of use, all over the same weights: the base for generation, a view with every token on expert 1 for the bidirectional
jobs, and, with ``with_weights("learned")``, trees under the learned gates.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

import torch
from peft.tuners.lora import Linear as LoraLinear
from pydantic import BaseModel, Field
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ambilm.adaptation.adapters import MODULE_GROUPS, add_low_rank
from ambilm.adaptation.stored import read_settings, read_tensors
from ambilm.errors import UserError

EXPERTS = 2
Route = Literal["learned", "all_base", "all_tuned"]
Scaling = Literal["straight_through", "switch"]


class MixtureChoices(BaseModel):
    """What a user chooses of a mixture, whatever expert 1 comes from."""

    expert: Literal["low_rank", "dense"] = Field(
        "low_rank", description="expert 1: the base's FFN plus a low-rank difference, or dense with weights of its own"
    )
    scaling: Scaling = Field(
        "straight_through",
        description="straight_through: the picked expert counts 1 and the gate still gets a gradient; "
        "switch: it counts the gate's probability",
    )
    balance: float = Field(0.001, ge=0, description="weight of the load-balancing loss beside the task's loss")


class MixtureSettings(MixtureChoices):
    """How each layer's FFN becomes two experts."""

    rank: int = Field(8, ge=1, description="rank of the difference of a low-rank expert")
    alpha: float = Field(16.0, gt=0, description="scale of a low-rank expert: its difference counts alpha / rank")


class Recorder:
    """What the gates decided during one ``routing("learned", record=True)`` block, over all its forward passes."""

    def __init__(self) -> None:
        self._layers: dict[int, list[Tensor]] = {}

    def add(self, layer: int, probabilities: Tensor) -> None:
        """Notes the probabilities, (tokens, 2), that the gate of ``layer`` gave in one forward pass."""
        self._layers.setdefault(layer, []).append(probabilities)

    def probabilities(self) -> Tensor:
        """Those of each layer and token, (layers, tokens, 2), float32; they carry the gates' gradient.

        Raises:
            RuntimeError: when no forward pass of a mixture ran in the block.
        """
        if not self._layers:
            raise RuntimeError("nothing was recorded: run the mixture inside the routing(..., record=True) block")
        return torch.stack([torch.cat(passes) for _, passes in sorted(self._layers.items())])

    def load_balancing_loss(self, real: Tensor | None = None) -> Tensor:
        """The auxiliary loss of Mixtral and Qwen-MoE: 2 × Σ over experts of share routed × mean probability.

        As there, shares and probabilities are means over the tokens of all layers. 1 when balanced, up to 2 when not.

        Args:
            real: booleans of as many tokens as were recorded, any shape; False excludes padding. All when None.

        Returns:
            A scalar, float32, differentiable through the probabilities.
        """
        probabilities = _only(self.probabilities(), real).flatten(0, 1)  # (layers * tokens, 2)
        routed = F.one_hot(probabilities.argmax(dim=-1), EXPERTS).float()  # (layers * tokens, 2)
        return EXPERTS * (routed.mean(dim=0) * probabilities.mean(dim=0)).sum()

    def share(self, real: Tensor | None = None) -> Tensor:
        """Share of the tokens that each layer sent to expert 1, (layers,); ``real`` as for the loss."""
        return _only(self.probabilities(), real).argmax(dim=-1).float().mean(dim=1)


def _only(probabilities: Tensor, real: Tensor | None) -> Tensor:
    """(layers, tokens, 2) to (layers, real tokens, 2)."""
    return probabilities if real is None else probabilities[:, real.flatten().to(probabilities.device)]


@dataclass(frozen=True)
class _Routing:
    route: Route
    recorder: Recorder | None


# transformers hands no keyword of the forward call on to an FFN. A context variable is the call's own, as a keyword is:
# other threads do not see it.
_routing: ContextVar[_Routing | None] = ContextVar("routing", default=None)


@contextmanager
def routing(route: Route, record: bool = False) -> Iterator[Recorder | None]:
    """Decides which expert takes the tokens of every mixture that runs inside the block, in this thread only.

    Backward passes need no block, unless layers are checkpointed: those run again, and need it around the backward pass.

    Args:
        route: "learned" (each layer's gate picks one expert per token, Li et al. 2025, section 4), "all_base" (every token
            on expert 0: the base model, bit for bit) or "all_tuned" (every token on expert 1).
        record: collect what the gates decide, for the load-balancing loss and statistics; only "learned" asks the gates.

    Yields:
        The recorder, or None without ``record``.

    Raises:
        ValueError: for another route, or for ``record`` where no gate is asked.
    """
    if route not in get_args(Route):
        raise ValueError(f"unknown route {route!r}: choose one of {', '.join(get_args(Route))}")
    if record and route != "learned":
        raise ValueError(f"routing({route!r}) asks no gate, so there is nothing to record: use 'learned'")
    recorder = Recorder() if record else None
    token = _routing.set(_Routing(route, recorder))
    try:
        yield recorder
    finally:
        _routing.reset(token)


class _Mixture(nn.Module, ABC):
    """One layer's FFN as two experts; subclasses say how expert 1 computes."""

    def __init__(self, base: nn.Module, layer: int, hidden: int, scaling: Scaling) -> None:
        super().__init__()
        self.base = base
        self.layer = layer
        self.scaling = scaling
        self.route: Route | None = None  # outside of a routing block; see set_route
        # Small steps vanish in bfloat16, and near a tie its rounding would pick the expert: gates are float32.
        self.gate = nn.Linear(hidden, EXPERTS, bias=False, dtype=torch.float32, device=next(base.parameters()).device)
        nn.init.normal_(self.gate.weight, std=0.02)  # Mixtral's; both experts get tokens from the first step on

    @abstractmethod
    def expert_parameters(self) -> dict[str, nn.Parameter]:
        """Name to parameter of what expert 1 does not share with expert 0."""

    @abstractmethod
    def tuned_weights(self) -> dict[str, Tensor]:
        """Name in the FFN to each weight of expert 1, as a plain FFN would hold it."""

    @abstractmethod
    def tuned(self, hidden: Tensor) -> Tensor:
        """Expert 1 on every token, (..., hidden) to itself."""

    @abstractmethod
    def mixed(self, hidden: Tensor, choice: Tensor) -> Tensor:
        """Expert 1 for the tokens of which ``choice`` (tokens,) is true, expert 0 for the others; (..., hidden) to itself."""

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., hidden) to itself.

        Raises:
            RuntimeError: without a route, because guessing one would silently be wrong.
        """
        call = _routing.get()
        route = self.route if call is None else call.route
        if route is None:
            raise RuntimeError(
                "the FFN of this view is a mixture: run it inside `with routing(...)`, in the same thread"
            )
        if route == "all_base":
            return self.base(hidden)
        if route == "all_tuned":
            return self.tuned(hidden)
        return self._learned(hidden, None if call is None else call.recorder)

    def _learned(self, hidden: Tensor, recorder: Recorder | None) -> Tensor:
        scores = self._scores(hidden)  # (tokens, 2)
        if recorder is not None:
            recorder.add(self.layer, scores.softmax(dim=-1))
        choice = scores[:, 1] > scores[:, 0]  # (tokens,)
        on_tuned = int(choice.sum())
        # Where all tokens agree, exactly that expert's code runs, as under a fixed route.
        if on_tuned == 0:
            output = self.base(hidden)
        elif on_tuned == len(choice):
            output = self.tuned(hidden)
        else:
            output = self.mixed(hidden, choice)
        if self.scaling == "straight_through" and not scores.requires_grad:
            return output  # times 1
        probability = scores.softmax(dim=-1).amax(dim=-1)  # (tokens,)
        if self.scaling == "straight_through":
            # Exactly 1, with the gradient of the probability.
            probability = 1 + (probability - probability.detach())
        return output * probability.to(output.dtype).view(*output.shape[:-1], 1)

    def _scores(self, hidden: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1]).float()  # (tokens, hidden)
        if not torch.is_autocast_enabled(hidden.device.type):  # to enter a block costs a token more than its scores do
            return self.gate(flat)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.gate(flat)


class _DenseMixture(_Mixture):
    """Expert 1 is an FFN with weights of its own; each expert computes only its own tokens."""

    def __init__(self, base: nn.Module, layer: int, hidden: int, scaling: Scaling) -> None:
        super().__init__(base, layer, hidden, scaling)
        self.expert = copy.deepcopy(base)

    def expert_parameters(self) -> dict[str, nn.Parameter]:
        return {f"expert.{name}": parameter for name, parameter in self.expert.named_parameters()}

    def tuned_weights(self) -> dict[str, Tensor]:
        return dict(self.expert.named_parameters())

    def tuned(self, hidden: Tensor) -> Tensor:
        return self.expert(hidden)

    def mixed(self, hidden: Tensor, choice: Tensor) -> Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1])  # (tokens, hidden)
        rows = [picked.nonzero().flatten() for picked in (~choice, choice)]  # tokens of each expert
        experts = (self.base, self.expert)
        parts = torch.cat([expert(flat[own]) for expert, own in zip(experts, rows, strict=True)])  # (tokens, hidden)
        return torch.empty_like(parts).index_copy(0, torch.cat(rows), parts).view(hidden.shape)


# Which tokens of the FFN that is running are expert 1's: a mask (tokens, 1) of ones and zeros, all or none. Set for one run
# of one FFN, by its mixture, and read by the products inside: the FFN's own forward between them stays the family's.
Tuned = Tensor | Literal["all", "none"]
_tuned_tokens: ContextVar[Tuned] = ContextVar("tuned_tokens", default="none")


class _LowRankLinear(nn.Module):
    """A product of the base's FFN that adds a low-rank difference on the tokens of expert 1."""

    def __init__(self, base: nn.Linear | Conv1D, rank: int, alpha: float) -> None:
        super().__init__()
        inputs, outputs = base.weight.shape if isinstance(base, Conv1D) else base.weight.shape[::-1]
        device = base.weight.device
        self.base = base
        self.scale = alpha / rank
        # Kept in float32 under half-precision weights, where small steps would vanish.
        self.down = nn.Parameter(torch.empty(rank, inputs, dtype=torch.float32, device=device))
        self.up = nn.Parameter(torch.zeros(outputs, rank, dtype=torch.float32, device=device))
        nn.init.kaiming_uniform_(self.down, a=5**0.5)  # LoRA's: a fresh difference is zero and still learns

    def tuned_weight(self) -> Tensor:
        """Base and difference in one, in the shape of the base's weight, float32."""
        difference = self.scale * (self.up @ self.down)  # (out, in)
        return self.base.weight.float() + (difference.T if isinstance(self.base, Conv1D) else difference)

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        output = self.base(hidden)
        tuned = _tuned_tokens.get()
        if isinstance(tuned, Tensor):
            return add_low_rank(output, hidden, self.down, self.up, self.scale, tuned)
        return output if tuned == "none" else add_low_rank(output, hidden, self.down, self.up, self.scale)


class _LowRankMixture(_Mixture):
    """Expert 1 is the base's FFN with a low-rank difference in each product.

    The base's products run once for all tokens. A difference before the nonlinearity changes what the later products read,
    so the differences are added product by product, on the tokens of expert 1.
    """

    def __init__(self, base: nn.Module, layer: int, hidden: int, settings: MixtureSettings) -> None:
        super().__init__(base, layer, hidden, settings.scaling)
        for name in _products(base):
            base.set_submodule(name, _LowRankLinear(base.get_submodule(name), settings.rank, settings.alpha))

    def differences(self) -> dict[str, _LowRankLinear]:
        """Name in the FFN to product."""
        return {name: module for name, module in self.base.named_modules() if isinstance(module, _LowRankLinear)}

    def expert_parameters(self) -> dict[str, nn.Parameter]:
        return {
            f"base.{name}.{side}": getattr(product, side)
            for name, product in self.differences().items()
            for side in ("down", "up")
        }

    def tuned_weights(self) -> dict[str, Tensor]:
        return {f"{name}.weight": product.tuned_weight() for name, product in self.differences().items()}

    def tuned(self, hidden: Tensor) -> Tensor:
        return self._run(hidden, "all")

    def mixed(self, hidden: Tensor, choice: Tensor) -> Tensor:
        return self._run(hidden, choice.float().unsqueeze(1))

    def _run(self, hidden: Tensor, tuned: Tuned) -> Tensor:
        token = _tuned_tokens.set(tuned)
        try:
            return self.base(hidden)
        finally:
            _tuned_tokens.reset(token)


def _products(feed_forward: nn.Module) -> list[str]:
    """Names of the matrix products of an FFN, gated or not."""
    return [name for name, module in feed_forward.named_modules() if isinstance(module, nn.Linear | Conv1D)]


def _is_feed_forward(name: str) -> bool:
    """Whether this is the name of a whole FFN, not of something inside one."""
    ffn = MODULE_GROUPS["ffn"]
    return bool(ffn.search(name)) and not ffn.search(name.rpartition(".")[0])


def has_mixture(model: PreTrainedModel) -> bool:
    """Whether the FFNs of this tree are mixtures."""
    return any(isinstance(module, _Mixture) for module in model.modules())


def _mixtures(view: PreTrainedModel) -> dict[str, _Mixture]:
    found = {name: module for name, module in view.named_modules() if isinstance(module, _Mixture)}
    if not found:
        raise ValueError("this view has no mixture: call add_mixture(view, settings) first")
    return found


def add_mixture(view: PreTrainedModel, settings: MixtureSettings) -> None:
    """Makes each layer's FFN a mixture, in place; only the gates require a gradient afterwards (Li et al. 2025, section 4).

    Expert 1 starts equal to the base's FFN. A dense one has the base's dtype.

    Args:
        view: a fresh one from :func:`ambilm.adaptation.shared_view`; afterwards it runs only inside :func:`routing`.
        settings: the kind of expert 1 and how its output is scaled.

    Raises:
        UserError: for an architecture without an FFN that is one module per layer, or whose FFN already is a mixture.
        ValueError: when the FFN of this view already carries an adapter or a mixture.
    """
    modules = {name: module for name, module in view.named_modules() if _is_feed_forward(name)}
    if any(isinstance(inner, LoraLinear | _Mixture) for module in modules.values() for inner in module.modules()):
        raise ValueError("the FFN of this view is adapted already: add the mixture to a fresh shared_view(base)")
    if not modules or not all(_is_plain(module) for module in modules.values()):
        raise UserError(
            f"{type(view).__name__} has no plain FFN in each layer to make a mixture of: choose a dense base model."
        )
    for parameter in view.parameters():
        parameter.requires_grad_(False)
    hidden = view.config.get_text_config().hidden_size
    for layer, (name, module) in enumerate(modules.items()):
        if settings.expert == "dense":
            mixture: _Mixture = _DenseMixture(module, layer, hidden, settings.scaling)
        else:
            mixture = _LowRankMixture(module, layer, hidden, settings)
            for parameter in mixture.expert_parameters().values():
                parameter.requires_grad_(False)
        view.set_submodule(name, mixture)
    view.eval()


def _is_plain(feed_forward: nn.Module) -> bool:
    """All its weights are matrix products of its own, not the router and the experts of a mixture-of-experts model."""
    products = _products(feed_forward)
    weights = {name for name, weight in feed_forward.named_parameters() if weight.dim() > 1}
    no_experts = not any("expert" in name for name in products)
    return bool(products) and no_experts and weights == {f"{name}.weight" for name in products}


def gate_parameters(view: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Name in the view to weight of each layer's gate, (2, hidden), float32.

    Raises:
        ValueError: when the view has no mixture.
    """
    return {f"{name}.gate.weight": mixture.get_parameter("gate.weight") for name, mixture in _mixtures(view).items()}


def expert_parameters(view: PreTrainedModel) -> dict[str, nn.Parameter]:
    """Name in the view to parameter of every expert 1, without what it shares with the base.

    Low-rank: ``down`` (rank, in) and ``up`` (out, rank) of each product, float32. Dense: the FFN's own parameters.

    Raises:
        ValueError: when the view has no mixture.
    """
    return {
        f"{name}.{inner}": parameter
        for name, mixture in _mixtures(view).items()
        for inner, parameter in mixture.expert_parameters().items()
    }


def set_route(view: PreTrainedModel, route: Route) -> None:
    """The route of this tree's mixtures wherever no :func:`routing` block says otherwise; before the tree is used.

    Raises:
        ValueError: when the view has no mixture.
    """
    for mixture in _mixtures(view).values():
        mixture.route = route


def with_mixture(base: PreTrainedModel, view: PreTrainedModel, route: Route) -> PreTrainedModel:
    """The stock causal modules of ``base`` with the mixtures of ``view`` as FFNs, over the same weights as both.

    transformers' own ``generate`` runs on it, under ``route``.

    Raises:
        ValueError: when the view has no mixture.
    """
    mixtures = _mixtures(view)
    shared = {id(tensor): tensor for tree in (base, view) for tensor in chain(tree.parameters(), tree.buffers())}
    model: PreTrainedModel = copy.deepcopy(base, shared)
    for name, mixture in mixtures.items():
        model.set_submodule(name, copy.deepcopy(mixture, shared))
    set_route(model, route)
    return model


def tuned_copy(view: PreTrainedModel, base: PreTrainedModel) -> PreTrainedModel:
    """A stock model with a copy of the weights, whose FFNs are the experts 1: the bidirectional model that they came from.

    Raises:
        ValueError: when the view has no mixture.
    """
    model: PreTrainedModel = copy.deepcopy(base)
    with torch.no_grad():
        for name, mixture in _mixtures(view).items():
            for inner, weight in mixture.tuned_weights().items():
                target = model.get_parameter(f"{name}.{inner}")
                target.copy_(weight.to(target.dtype))
    return model


def take_experts_from(adapted: PreTrainedModel, view: PreTrainedModel) -> None:
    """Copies the tuned FFN of an adapted view into the experts 1 of a mixture (Li et al. 2025, section 4).

    A low-rank expert takes the LoRA difference as it is, a dense one its sum with the base (or fully tuned weights).

    Args:
        adapted: a view of the same base with an adapter on its FFN and nowhere else, from
            :func:`ambilm.adaptation.add_adapter` with ``modules="ffn"`` or ``"ffn_gate"``.
        view: the view with the mixture, changed in place.

    Raises:
        UserError: when the adapter changes more than the FFN or nothing of it, is of another base, or has another rank.
        ValueError: when ``view`` has no mixture.
    """
    mixtures = _mixtures(view)
    _check_adapts_ffn(adapted, view)
    with torch.no_grad():
        for name, mixture in mixtures.items():
            source = adapted.get_submodule(name)
            if isinstance(mixture, _LowRankMixture):
                for inner, product in mixture.differences().items():
                    _take_difference(source.get_submodule(inner), product)
            elif isinstance(mixture, _DenseMixture):
                for inner in _products(mixture.expert):
                    _take_weights(source.get_submodule(inner), mixture.expert.get_submodule(inner))


def _check_adapts_ffn(adapted: PreTrainedModel, view: PreTrainedModel) -> None:
    shared = {id(parameter) for parameter in view.parameters()}
    changed = [name for name, parameter in adapted.named_parameters() if id(parameter) not in shared]
    if not changed:
        raise UserError("This view carries no adapter to make experts of: adapt it with modules=ffn.")
    for name in changed:
        if not MODULE_GROUPS["ffn"].search(name):
            raise UserError(
                f"A mixture takes over the FFN of its own base only, but {name} differs too: adapt with modules=ffn."
            )


def _take_difference(source: nn.Module, product: _LowRankLinear) -> None:
    if not isinstance(source, LoraLinear):
        if source.weight is not product.base.weight:
            raise UserError("A low-rank expert cannot hold fully tuned weights: choose expert=dense or tuning=lora.")
        product.up.zero_()  # a product that the adapter left alone, as ffn_gate leaves the gate
        return
    down, up = source.lora_A["default"].weight, source.lora_B["default"].weight
    if down.shape != product.down.shape:
        raise UserError(
            f"The adapter has rank {len(down)}, the mixture rank {len(product.down)}: choose rank={len(down)}."
        )
    product.down.copy_(down)
    product.up.copy_(up * (source.scaling["default"] / product.scale))


def _take_weights(source: nn.Module, target: nn.Module) -> None:
    plain = source.base_layer if isinstance(source, LoraLinear) else source
    for name, parameter in target.named_parameters():
        parameter.copy_(plain.get_parameter(name))
    if isinstance(source, LoraLinear):
        weight = target.get_parameter("weight")
        delta = source.get_delta_weight("default").to(weight.device)  # (out, in), or (in, out) for Conv1D
        weight.copy_(weight.float() + delta.float())


def save_mixture(view: PreTrainedModel, settings: MixtureSettings, directory: Path) -> None:
    """Writes ``mixture.json`` (the settings) and ``mixture.safetensors`` (gates and experts 1, without the base).

    Raises:
        ValueError: when the view has no mixture.
    """
    parameters = gate_parameters(view) | expert_parameters(view)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "mixture.json").write_text(settings.model_dump_json(indent=2))
    state = {name: parameter.detach().cpu().contiguous() for name, parameter in parameters.items()}
    save_file(state, directory / "mixture.safetensors", metadata={"format": "pt"})


def load_mixture(view: PreTrainedModel, directory: Path) -> MixtureSettings:
    """Puts a saved mixture into a fresh view and returns its settings; nothing requires a gradient afterwards.

    Raises:
        UserError: when the directory does not hold a mixture that fits the view.
    """
    settings = read_settings(MixtureSettings, directory / "mixture.json", "mixture")
    file = directory / "mixture.safetensors"
    state = read_tensors(file)
    add_mixture(view, settings)
    parameters = gate_parameters(view) | expert_parameters(view)
    if {name: value.shape for name, value in state.items()} != {name: item.shape for name, item in parameters.items()}:
        raise UserError(f"{file} was made for another architecture than this base model.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state[name])
            parameter.requires_grad_(False)
    return settings
