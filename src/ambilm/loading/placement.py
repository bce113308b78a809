"""Choose the device and the dtype, and say why in one line."""

from dataclasses import dataclass

import torch

from ambilm.errors import UserError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Placement:
    """Where the weights go, in which dtype, and the one line that says so with the reason."""

    device: torch.device
    dtype: torch.dtype
    notice: str


def choose_placement(device: str, dtype: str | torch.dtype) -> Placement:
    """Resolve ``"auto"`` (or a device name such as ``"cuda:1"``, or a dtype) to a placement.

    Raises:
        UserError: the device or dtype is unknown, or this machine has no such device.
    """
    chosen_device, device_reason = _choose_device(device)
    chosen_dtype, dtype_reason = _choose_dtype(dtype, chosen_device)
    dtype_name = str(chosen_dtype).removeprefix("torch.")
    notice = f"device {chosen_device} ({device_reason}), {dtype_name} ({dtype_reason})"
    return Placement(chosen_device, chosen_dtype, notice)


def _choose_device(device: str) -> tuple[torch.device, str]:
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda"), torch.cuda.get_device_name()
        if torch.backends.mps.is_available():
            return torch.device("mps"), "Apple GPU"
        return torch.device("cpu"), "no GPU found"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise UserError(f"unknown device {device!r}: use auto, cpu, cuda, cuda:N or mps") from None
    if not _is_present(chosen):
        raise UserError(f"device {device!r} is not on this machine: use auto or cpu")
    return chosen, "asked for"


def _is_present(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return torch.backends.mps.is_available()
    return device.type == "cpu"


def _choose_dtype(dtype: str | torch.dtype, device: torch.device) -> tuple[torch.dtype, str]:
    if dtype != "auto":
        return _named_dtype(dtype), "asked for"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.bfloat16, "native on this GPU"
        return torch.float32, "this GPU has no bfloat16"
    if device.type == "mps":
        return torch.float32, "float16 overflows in some models"
    # Without these instructions bfloat16 is emulated, up to ten times slower than float32.
    if torch.cpu._is_amx_tile_supported():
        return torch.bfloat16, "AMX: about twice float32"
    if torch.cpu._is_avx512_bf16_supported():
        return torch.bfloat16, "AVX512-BF16: faster than float32"
    return torch.float32, "no AMX or AVX512-BF16: bfloat16 would be slower"


def _named_dtype(dtype: str | torch.dtype) -> torch.dtype:
    if dtype in DTYPES.values():
        assert isinstance(dtype, torch.dtype)
        return dtype
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    raise UserError(f"unknown dtype {str(dtype)!r}: use auto, {', '.join(DTYPES)}")
