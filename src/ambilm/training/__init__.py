"""Reading text, drawing views, the trainer and its checkpoints."""

from ambilm.training.adapt import adapt

__all__ = ["adapt"]
