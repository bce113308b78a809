"""The papers' experiments on a user's own model, their tables beside the papers'."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ambilm.reproduce.run import reproduce_ubmoe
from ambilm.reproduce.ubmoe import UbmoeSettings


class Experiment(NamedTuple):
    """What ``ambilm reproduce NAME`` runs, and its settings."""

    settings: type[UbmoeSettings]
    run: Callable[..., Path]


EXPERIMENTS = {"ubmoe": Experiment(UbmoeSettings, reproduce_ubmoe)}

__all__ = ["EXPERIMENTS", "Experiment", "UbmoeSettings", "reproduce_ubmoe"]
