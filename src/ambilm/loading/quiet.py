"""Keep transformers' warnings and progress bars off the terminal while it loads.

What the warnings would say (weights that are missing, say) is checked and raised as an error by the caller instead.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging as transformers_logging

# Verbosity and the attributes swapped below belong to the process: one loader at a time.
LOADING = threading.RLock()


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers for the length of the block, then restore what was set before."""
    with LOADING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        verbosity = transformers_logging.get_verbosity()
        bars = transformers_logging.is_progress_bar_enabled()
        transformers_logging.set_verbosity(transformers_logging.CRITICAL)
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            transformers_logging.set_verbosity(verbosity)
            if bars:
                transformers_logging.enable_progress_bar()


@contextmanager
def swapped(module: Any, **values: Any) -> Iterator[None]:
    """Replace attributes of a module for the length of the block; names that this version lacks are left out."""
    with LOADING:
        before = {name: getattr(module, name) for name in values if hasattr(module, name)}
        try:
            for name in before:
                setattr(module, name, values[name])
            yield
        finally:
            for name, value in before.items():
                setattr(module, name, value)
