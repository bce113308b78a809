"""The model room: :class:`AmbiLM` and its jobs."""

from ambilm.model.ambilm import AmbiLM
from ambilm.model.settings import Settings

__all__ = ["AmbiLM", "Settings"]
