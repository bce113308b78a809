"""Tasks of mteb: ``scifact`` (retrieval) from local files, and every task of mteb as ``mteb:NAME``.

Prompts, search and metrics are mteb's own task code. ``mteb:STS13`` takes its rows from the hub, except where ``--data``
has the same rows (``LOCAL``); ``source`` says where they came from. ``--limit`` keeps so many pairs, or so many queries
with the documents that are relevant to them and ten irrelevant ones for each query, all drawn with the seed: among fewer
documents a query finds its own more easily, so that figure compares only with one of the same limit and seed.

mteb is the optional extra ``ambilm[evaluate]``; it is imported when it is needed, because that costs seconds.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from ambilm.errors import UserError
from ambilm.evaluation.data import SentencePair, check_scores, read_collection, read_rows
from ambilm.evaluation.task import Run, Task
from ambilm.model.settings import READINGS

PREFIX = "mteb:"
SCIFACT = ("scifact_corpus", "scifact_queries", "scifact_qrels")
# Tasks of mteb whose rows, all of them, a data folder may hold, and the files.
LOCAL = {"STS12": ("sts12",), "STS13": ("sts13",), "STS15": ("sts15",), "SciFact": SCIFACT}


def hub_task(name: str) -> Task:
    """``mteb:NAME`` as a task.

    Raises:
        UserError: when mteb is not installed or has no such task.
    """
    plain = name.removeprefix(PREFIX)
    metadata = _adapter().task_named(plain).metadata
    files = LOCAL.get(plain, ())
    return Task(
        name, files[0] if files else None, metadata.main_score, partial(_run, plain), rows=tuple(READINGS),
        beside=files[1:], from_hub=True,
    )  # fmt: skip


def _adapter() -> ModuleType:
    try:
        from ambilm.evaluation import mteb_model
    except ImportError as error:
        raise UserError(
            f"Retrieval and mteb: tasks need mteb ({error.name} is missing): pip install 'ambilm[evaluate]'."
        ) from None
    return mteb_model


def _run(name: str, run: Run) -> dict[str, Any]:
    adapter = _adapter()
    task = adapter.task_named(name)
    if run.paths:
        _serve(adapter, task, run)
        source = ", ".join(path.name for path in run.paths)
    else:
        files = " and ".join(f"{stem}.jsonl.gz" for stem in LOCAL.get(name, ()))
        adapter.load_from_hub(task, f", or give a folder with {files} as --data" if files else "")
        source = f"{task.metadata.dataset['path']}@{task.metadata.dataset['revision']}"
    if run.limit is not None:
        adapter.limit_to(task, run.limit, run.seed)
    prompts = {} if run.row else run.model.settings.prompts
    encoder = adapter.Encoder(run.model, prompts=prompts, show_progress_bar=run.progress, **run.row_options)
    return {**adapter.measure(task, encoder, run.seed), "source": source}


def _serve(adapter: ModuleType, task: Any, run: Run) -> None:
    """Gives mteb's task the rows of local files, checked."""
    split = run.part or "test"
    if len(run.paths) == 1:
        pairs = list(read_rows(run.path, SentencePair, split))
        check_scores(run.path, pairs, 0, 5)
        adapter.serve_pairs(task, pairs, split)
    else:
        adapter.serve_collection(task, read_collection(run.paths, split), split)


TASKS = (
    Task(
        "scifact", SCIFACT[0], "ndcg_at_10", partial(_run, "SciFact"), ("test", "train"), tuple(READINGS), SCIFACT[1:]
    ),
)
GROUPS: dict[str, tuple[str, ...]] = {}
