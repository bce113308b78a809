"""The evaluation room: tasks that measure a model, the results file, tables and plots of several results.

:func:`ambilm.evaluation.tasks.evaluate` runs tasks, :func:`ambilm.evaluation.compare.compare` sets results side by
side.
"""

from ambilm.evaluation.compare import compare
from ambilm.evaluation.tasks import evaluate, task_names

__all__ = ["compare", "evaluate", "task_names"]
