"""The loading room: turn a name into weights and a tokenizer."""

from ambilm.loading.base import LoadedBase, load_base
from ambilm.loading.packaged import PACKAGED

__all__ = ["PACKAGED", "LoadedBase", "load_base"]
