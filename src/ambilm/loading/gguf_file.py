"""Read a GGUF file into a plain transformers model, in a third of the time that transformers alone takes.

transformers parses the header of the file again for the config, the tokenizer and the weights, and builds the table of
tensor names once per submodule. Both are pure functions of the file, so they are remembered for the length of a load.
"""

import copy
import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    modeling_gguf_pytorch_utils,
)

from ambilm.errors import UserError
from ambilm.loading.quiet import swapped
from ambilm.loading.support import attention_implementation, check_config


class _PlainReader(gguf.GGUFReader):
    """The reader over a plain array: slicing a ``np.memmap`` 500,000 times is most of the parsing."""

    @property
    def data(self) -> np.ndarray:
        return self._data

    @data.setter
    def data(self, mapped: np.ndarray) -> None:
        self._data = np.asarray(mapped)


def load_gguf(name: str, file: Path, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load weights (dequantised to ``dtype``, on the CPU) and tokenizer of a GGUF file.

    Raises:
        UserError: the file is damaged, of an architecture that transformers cannot read, or not a decoder.
    """
    with _remembering_reader(file) as reader:
        location: dict[str, Any] = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
        try:
            config = AutoConfig.from_pretrained(**location)
        except (ValueError, KeyError) as error:
            architecture = reader.get_field("general.architecture")
            kind = architecture.contents() if architecture else "unnamed"
            raise UserError(
                f"{name} holds a GGUF architecture ({kind}) that transformers cannot read: {error}"
            ) from error
        check_config(name, config)
        model = AutoModelForCausalLM.from_pretrained(**location, config=config, dtype=dtype, **_dequantize_option())
        tokenizer = AutoTokenizer.from_pretrained(**location)
    return _unquantized(model, dtype), tokenizer


@contextmanager
def _remembering_reader(file: Path) -> Iterator[gguf.GGUFReader]:
    reader_of = functools.cache(_PlainReader)
    try:
        reader = reader_of(str(file))
    except (ValueError, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise UserError(f"{file} is not a complete GGUF file ({error}): download or copy it again") from error
    names_of = functools.cache(gguf.get_tensor_name_map)
    with (
        swapped(gguf, GGUFReader=reader_of, get_tensor_name_map=names_of),
        swapped(modeling_gguf_pytorch_utils, tqdm=lambda tensors, **_: tensors),
    ):
        yield reader


def _dequantize_option() -> dict[str, Any]:
    """Newer versions of transformers may keep the weights in GGUF blocks, which can neither be trained nor saved."""
    if not hasattr(transformers, "GgufConfig"):
        return {}
    return {"quantization_config": transformers.GgufConfig(dequantize=True)}


def _unquantized(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    """The same tensors in a model without the GGUF mark, which refuses ``save_pretrained``. Tied weights stay tied."""
    config = copy.deepcopy(model.config)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return type(model).from_pretrained(
        None,
        config=config,
        state_dict=model.state_dict(),
        dtype=dtype,
        attn_implementation=attention_implementation(type(model)),
    )
