"""AmbiLM: one decoder, both directions.

``from ambilm import AmbiLM`` is all that most programs need. The class is imported when it is first asked for, so that
``import ambilm`` and ``ambilm --help`` do not wait for torch and transformers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ambilm.model.ambilm import AmbiLM

__all__ = ["AmbiLM", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "AmbiLM":
        from ambilm.model.ambilm import AmbiLM

        return AmbiLM
    raise AttributeError(f"module 'ambilm' has no attribute {name!r}")
