"""Tiny random models of every decoder family, built from their configs; float32, a hundred tokens of vocabulary."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

VOCABULARY = 100
WINDOW = 3
_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GEMMA: dict[str, Any] = {**_COMMON, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW}
_NEOX: dict[str, Any] = {key: value for key, value in _COMMON.items() if key != "num_key_value_heads"}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": _COMMON,
    "Mistral": {**_COMMON, "sliding_window": WINDOW, "head_dim": 8},
    "Qwen2": _COMMON,
    "Qwen3": {**_COMMON, "head_dim": 8},
    "Gemma2": _GEMMA,
    "Gemma3": _GEMMA,
    "Phi3": _COMMON,
    "Olmo2": _COMMON,
    "GPT2": {
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_head": 4,
        "n_positions": 128,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    "GPTNeoX": {**_NEOX, "rotary_pct": 0.5},
}


def tiny(family: str, layers: int = 2, seed: int = 0) -> PreTrainedModel:
    """A random model of ``family`` with weights large enough that every token matters."""
    torch.manual_seed(seed)
    options = dict(FAMILIES[family])
    options["n_layer" if family == "GPT2" else "num_hidden_layers"] = layers
    if family in ("Gemma2", "Gemma3"):
        options["layer_types"] = ["sliding_attention", "full_attention", "sliding_attention"][:layers]
    name = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, name)(**options)
    implementation = "eager" if family == "Gemma2" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.3)
    return model.float().eval()


def windows(family: str, layers: int) -> list[int | None]:
    """The sliding window of each layer."""
    if family == "Mistral":
        return [WINDOW] * layers
    if family in ("Gemma2", "Gemma3"):
        return [WINDOW, None, WINDOW][:layers]
    return [None] * layers
