"""Which architectures AmbiLM can work with: decoder-only models with a causal mask to switch.

Decided from the config and the class that transformers maps it to, before any weight is read.
"""

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from ambilm.errors import UserError

# The values of `config.layer_types` whose mask can be switched; others are recurrences, convolutions or indices.
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}

WANTED = "AmbiLM needs a decoder-only model with causal attention, such as Llama, Qwen, Mistral or Gemma"


def check_config(name: str, config: PretrainedConfig) -> None:
    """Refuse an architecture without a causal mask to switch, and say which kind it is.

    A config that only remote code knows is left to :func:`check_model_class`.

    Raises:
        UserError: an encoder-decoder, an encoder, a multimodal model, a state-space or recurrent model.
    """
    what = f"{name} is a {config.model_type} model"
    if getattr(config, "is_encoder_decoder", False):
        raise UserError(f"{what}, an encoder-decoder: {WANTED}")
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        raise UserError(f"{what}, an encoder: {WANTED}")
    if "auto_map" in config.to_dict():
        return
    if config.get_text_config() is not config:
        raise UserError(f"{what} that also takes images or sound: {WANTED}")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UserError(f"{what}, which transformers does not know as a causal language model: {WANTED}")
    check_model_class(name, config, MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])


def check_model_class(name: str, config: PretrainedConfig, model_class: type) -> None:
    """Refuse a class that keeps a recurrent state, or whose attention cannot be reached from outside.

    Raises:
        UserError: a state-space or recurrent model (also a hybrid), or attention outside transformers' interface.
    """
    what = f"{name} is a {config.model_type} model"
    other_layers = set(getattr(config, "layer_types", None) or ()) - ATTENTION_LAYERS
    if getattr(model_class, "_is_stateful", False) or other_layers:
        raise UserError(
            f"{what}, whose state-space, recurrent or convolution layers have no causal mask to switch: {WANTED}"
        )
    if not getattr(model_class, "_supports_attention_backend", False):
        raise UserError(f"{what}, whose attention does not go through transformers' attention interface: {WANTED}")


def attention_implementation(model_class: type) -> str:
    """``"sdpa"``, or ``"eager"`` for the few classes that sdpa cannot compute (attention sinks, capped scores)."""
    return "sdpa" if getattr(model_class, "_supports_sdpa", False) else "eager"
