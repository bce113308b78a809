"""Adapters on the view: LoRA (through PEFT) or full fine-tuning of a group of modules.

The groups are found by the names that decoder families share, so no family needs a list of its own:
``att`` (query, key, value, output projections), ``ffn`` (gate, up, down projections), ``ffn_gate`` (up and down, as the
UBMoE paper names it), ``emb`` (token embeddings) and ``all``.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from pydantic import BaseModel, Field
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ambilm.adaptation.stored import read_settings, read_tensors
from ambilm.errors import UserError

MODULE_GROUPS = {
    "att": re.compile(r"(^|\.)(self_)?attn(\.|$)|(^|\.)(self_)?attention(\.|$)"),
    "ffn": re.compile(r"(^|\.)(mlp|ffn|feed_forward)(\.|$)"),
    # Li et al. 2025: up and down without the gate; a fused gate-and-up, or an FFN without a gate, is taken whole.
    "ffn_gate": re.compile(r"(^|\.)(mlp|ffn|feed_forward)\.(?!gate_proj|w1$)"),
}
ALL = "att+ffn+emb"


class AdapterSettings(BaseModel):
    """How the view is adapted."""

    modules: str = Field(
        "att+ffn", description="module groups joined by '+': att, ffn, ffn_gate (up and down), emb; or all"
    )
    tuning: Literal["lora", "full"] = Field("lora", description="lora, or full fine-tuning of the chosen modules")
    rank: int = Field(16, ge=1, description="rank of the LoRA difference")
    alpha: float = Field(32.0, gt=0, description="LoRA scale: the difference counts alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the input of each LoRA difference")
    rank_stabilised: bool = Field(False, description="rsLoRA: the difference counts alpha / sqrt(rank)")


def module_groups(modules: str) -> list[str]:
    """The single groups of ``modules`` ("att+ffn", "all", ...).

    Raises:
        UserError: for a group that does not exist.
    """
    groups = (ALL if modules == "all" else modules).split("+")
    for group in groups:
        if group not in (*MODULE_GROUPS, "emb"):
            raise UserError(
                f"Unknown module group {group!r} in modules={modules!r}: join att, ffn, ffn_gate, emb with '+', or all."
            )
    return groups


def module_names(model: PreTrainedModel, modules: str) -> list[str]:
    """Names of the modules of the groups in ``modules`` ("att+ffn", ...), in the order of the model.

    Raises:
        UserError: for a group that does not exist or that this architecture has no module of.
    """
    names: list[str] = []
    for group in module_groups(modules):
        if group == "emb":
            found = [name for name, module in model.named_modules() if module is model.get_input_embeddings()]
        else:
            found = [
                name
                for name, module in model.named_modules()
                if isinstance(module, nn.Linear | Conv1D) and MODULE_GROUPS[group].search(name)
            ]
        if not found:
            raise UserError(f"{type(model).__name__} has no module of group {group!r}: choose another modules=.")
        names += found
    return names


def add_adapter(view: PreTrainedModel, settings: AdapterSettings) -> None:
    """Puts a fresh adapter into the view, in place; only its parameters require a gradient afterwards.

    The base model shares none of them: LoRA wraps the view's own modules, and full fine-tuning copies the weights first.
    """
    names = module_names(view, settings.modules)
    for parameter in view.parameters():
        parameter.requires_grad_(False)
    if settings.tuning == "full":
        for name in names:
            _own_copy(view.get_submodule(name))
        return
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]
        lora_dropout=settings.dropout,
        use_rslora=settings.rank_stabilised,
        target_modules=names,
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(isinstance(view.get_submodule(name), Conv1D) for name in names),
    )
    # A PeftModel wraps the view's modules in place; the wrapper itself is not needed, PEFT's config stays on the view.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads an attribute that transformers renames
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings")  # the head stays the base's on purpose
        get_peft_model(view, config, autocast_adapter_dtype=False)
    view.eval()
    for module in view.modules():
        if isinstance(module, LoraLinear) and not settings.dropout:
            module.forward = _lean_forward(module)  # type: ignore[method-assign]
    for name, parameter in view.named_parameters():
        if "lora_" in name:
            # Small steps vanish in bfloat16: the difference is trained and kept in float32.
            parameter.data = parameter.data.float()


# For so few tokens a half-precision product on a CPU costs more in preparation than the whole difference does in float32.
FEW_TOKENS = 16


def add_low_rank(
    output: Tensor, hidden: Tensor, down: Tensor, up: Tensor, scale: float, mask: Tensor | None = None
) -> Tensor:
    """``output + scale * up(down(hidden))``, whose memory it may reuse.

    Args:
        output: (..., out), made by this forward pass.
        hidden: (..., in).
        down: (rank, in) float32.
        up: (out, rank) float32.
        mask: (tokens, 1) float32, 1 or 0: the tokens that get the difference; all when None. The others keep their
            output bit for bit.

    Returns:
        (..., out).
    """
    tokens = hidden.numel() // hidden.shape[-1]
    flat = hidden.reshape(tokens, -1)  # (tokens, in)
    if tokens <= FEW_TOKENS and hidden.device.type == "cpu" and not torch.is_autocast_enabled("cpu"):
        inner = _masked(F.linear(flat.float(), down), mask)  # (tokens, rank)
        return output.add_(F.linear(inner, up).view_as(output), alpha=scale)
    inner = _masked(F.linear(flat, down.to(flat.dtype)), mask)  # (tokens, rank)
    return torch.addmm(output.reshape(tokens, -1), inner, up.T.to(flat.dtype), alpha=scale).view_as(output)


def _masked(inner: Tensor, mask: Tensor | None) -> Tensor:
    return inner if mask is None else inner * mask.to(inner.dtype)


def _lean_forward(module: LoraLinear) -> Callable[[Tensor], Tensor]:
    """PEFT's LoRA in three products and nothing else: without dropout its casts, scaling and sum are a fifth of decoding.

    Returns a forward from (..., in) to (..., out).
    """
    base, down, up = module.base_layer, module.lora_A["default"], module.lora_B["default"]
    scale = module.scaling["default"]
    return lambda hidden: add_low_rank(base(hidden), hidden, down.weight, up.weight, scale)


def _own_copy(module: nn.Module) -> None:
    for name, parameter in list(module.named_parameters(recurse=False)):
        setattr(module, name, nn.Parameter(parameter.detach().clone().float(), requires_grad=True))


def trainable_parameters(view: nn.Module) -> dict[str, nn.Parameter]:
    """Name to parameter for everything that training may change."""
    return {name: parameter for name, parameter in view.named_parameters() if parameter.requires_grad}


def save_adapter(view: PreTrainedModel, settings: AdapterSettings, directory: Path) -> None:
    """Writes the adapter: for LoRA a directory that PEFT loads as is, for full tuning the changed weights."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "adapter.json").write_text(settings.model_dump_json(indent=2))
    if settings.tuning == "full":
        state = {name: parameter.detach().cpu().contiguous() for name, parameter in trainable_parameters(view).items()}
        save_file(state, directory / "full.safetensors")
        return
    state = {
        f"base_model.model.{k}": v.cpu().contiguous()
        for k, v in get_peft_model_state_dict(view, save_embedding_layers=False).items()
    }
    save_file(state, directory / "adapter_model.safetensors", metadata={"format": "pt"})
    config = copy.deepcopy(view.peft_config["default"])
    config.inference_mode = True
    config.base_model_name_or_path = None
    config.save_pretrained(str(directory))


def load_adapter(view: PreTrainedModel, directory: Path) -> AdapterSettings:
    """Puts a saved adapter into a fresh view and returns its settings.

    Raises:
        UserError: when the directory does not hold an adapter that fits the view.
    """
    settings = read_settings(AdapterSettings, directory / "adapter.json", "adapter")
    add_adapter(view, settings)
    name = "full.safetensors" if settings.tuning == "full" else "adapter_model.safetensors"
    state = read_tensors(directory / name)
    parameters = trainable_parameters(view)
    if settings.tuning == "full":
        if set(state) != set(parameters):
            raise UserError(f"{directory / name} was made for another architecture than this base model.")
        with torch.no_grad():
            for key, value in state.items():
                parameters[key].copy_(value)
    else:
        try:
            result = set_peft_model_state_dict(view, {k.removeprefix("base_model.model."): v for k, v in state.items()})
        except RuntimeError as error:
            raise UserError(f"{directory / name} was made for another architecture than this base model.") from error
        if result.unexpected_keys:
            raise UserError(f"{directory / name} was made for another architecture than this base model.")
    for parameter in view.parameters():
        parameter.requires_grad_(False)
    return settings


def _adapts_embeddings(view: PreTrainedModel, base: PreTrainedModel) -> bool:
    embedding = view.get_input_embeddings()
    return hasattr(embedding, "lora_embedding_A") or embedding.weight is not base.get_input_embeddings().weight


def _untie(model: PreTrainedModel) -> None:
    """The view's head keeps the base's weights; a head tied to an adapted embedding would change with it."""
    head = model.get_output_embeddings()
    if head.weight is model.get_input_embeddings().weight:
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)
        model.config.get_text_config().tie_word_embeddings = False
        model.config.tie_word_embeddings = False


def merged_copy(view: PreTrainedModel, base: PreTrainedModel) -> PreTrainedModel:
    """A stock model with the adaptation folded into a copy of the weights (the papers' way; causal text then changes too)."""
    merged = copy.deepcopy(base)
    if _adapts_embeddings(view, base):
        _untie(merged)
    target = dict(merged.named_modules())
    with torch.no_grad():
        for name, module in view.named_modules():
            if hasattr(module, "get_delta_weight") and "default" in getattr(module, "lora_A", {}):
                weight = target[name].weight
                delta = module.get_delta_weight("default").to(weight.device)  # (out, in), or (in, out) for Conv1D
                weight.copy_((weight.float() + delta.float()).to(weight.dtype))
            elif hasattr(module, "get_delta_weight") and "default" in getattr(module, "lora_embedding_A", {}):
                weight = target[name].weight
                weight.copy_((weight.float() + module.get_delta_weight("default").float()).to(weight.dtype))
        own = {id(parameter) for parameter in base.parameters()}
        for name, parameter in view.named_parameters():
            if id(parameter) not in own and name in dict(merged.named_parameters()):
                merged.get_parameter(name).copy_(parameter)
    merged.tie_weights()
    return merged
