"""AmbiLM as a model of lm-evaluation-harness, and the harness's own task code on rows from local files.

The harness knows a model by name only after the module that registers it was imported, so its command line starts here::

    python -m ambilm.evaluation.harness run --model ambilm --model_args pretrained=my-model --device auto --tasks piqa

Importing this module needs the extra ``ambilm[evaluate]`` and costs seconds: ``knowledge`` imports it when it runs.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

from datasets import Dataset, DatasetDict
from lm_eval import evaluate, tasks
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM

from ambilm import AmbiLM
from ambilm.evaluation.served import Served
from ambilm.model.ambilm import EveryJobWeights

CONFIGURATIONS = Path(tasks.__file__).parent
FEWSHOT_SEED = 1234  # the harness's own default: the same worked examples stand before a question as anywhere else


@register_model("ambilm")
class HarnessModel(HFLM):
    """The stock causal model behind an :class:`AmbiLM`, as the harness's ``hf`` model: scores are the same bit for bit.

    Args:
        pretrained: a loaded model, or what :meth:`AmbiLM.from_pretrained` takes.
        weights: which weights generate and score, as :meth:`AmbiLM.with_weights` takes them.
        batch_size: texts of one pass. At 1 a score depends on nothing but its own text.
        options: of the harness's ``hf`` model, such as ``max_length``.
    """

    terminal: TextIO | None = None  # where its progress bars go, though :func:`run_tasks` keeps the harness quiet

    def __init__(
        self,
        pretrained: str | AmbiLM,
        weights: EveryJobWeights = "by_job",
        dtype: str = "auto",
        device: str = "auto",
        batch_size: int = 1,
        **options: Any,
    ) -> None:
        model = (
            AmbiLM.from_pretrained(pretrained, dtype=dtype, device=device)
            if isinstance(pretrained, str)
            else pretrained
        )
        super().__init__(
            model.with_weights(weights).base,
            # The harness gives a tokenizer without a padding token one; ours stays as it is.
            tokenizer=copy.deepcopy(model.tokenizer),
            backend="causal",
            batch_size=batch_size,
            **options,
        )

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """As the harness's, but what is asked twice is scored once: mc1 of TruthfulQA is part of its mc2."""
        distinct = {request.args: request for request in requests}
        with contextlib.redirect_stderr(self.terminal or sys.stderr):
            scores = super().loglikelihood(list(distinct.values()), disable_tqdm)
        known = dict(zip(distinct, scores, strict=True))
        return [known[request.args] for request in requests]

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        with contextlib.redirect_stderr(self.terminal or sys.stderr):
            return super().generate_until(requests, disable_tqdm)


def has_task(folder: str, name: str) -> bool:
    """Whether the harness has the task ``name`` in that folder of its configurations."""
    return (CONFIGURATIONS / folder / f"{name}.yaml").is_file()


def run_tasks(model: LM, served: Sequence[Served]) -> dict[str, list[dict[str, Any]]]:
    """Runs tasks of the harness on the documents given, on any of the harness's models.

    Returns:
        For each task the harness's own record of every document and filter: ``doc``, ``filter``, ``resps``,
        ``filtered_resps`` and one entry a metric.
    """
    folders = sorted({str(CONFIGURATIONS / item.folder) for item in served if item.folder})
    with _quiet():
        manager = tasks.TaskManager(include_path=folders, include_defaults=False)
        loaded = manager.load(_specifications(served))
        for task in loaded["tasks"].values():
            task.set_fewshot_seed(FEWSHOT_SEED)
        return dict(evaluate(model, loaded, bootstrap_iters=0)["samples"])


def _specifications(served: Sequence[Served]) -> list[dict[str, Any]]:
    """What the harness's task manager takes: a group that changes tasks of its own, and whole configurations."""
    changed = [_configuration(item) for item in served if item.folder]
    whole = [_configuration(item) for item in served if not item.folder]
    return whole + ([{"group": "ambilm", "task": changed}] if changed else [])


def _configuration(item: Served) -> dict[str, Any]:
    data = DatasetDict({split: Dataset.from_list(rows) for split, rows in item.splits.items()})
    return {"task": item.name, "custom_dataset": lambda **_: data, **item.changes}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the harness's notes for its developers, and a bar for each task that it prepares, off the terminal."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
