"""AmbiLM as an encoder of mteb, and mteb's own task classes on rows from local files or from the hub.

Any of mteb's own commands takes the encoder::

    mteb.evaluate(Encoder("my-model"), mteb.get_tasks(["STS15", "SciFact"]))

Importing this module needs the extra ``ambilm[evaluate]`` and costs seconds: ``mteb_tasks`` imports it when it runs.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mteb
import numpy as np
import pytrec_eval
from datasets import Dataset
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from mteb.abstasks import AbsTask, AbsTaskRetrieval, AbsTaskSTS
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from scipy.stats import spearmanr

from ambilm import AmbiLM
from ambilm.errors import UserError
from ambilm.evaluation.data import Collection, SentencePair, sample
from ambilm.evaluation.results import model_state
from ambilm.evaluation.statistics import bootstrap, mean_figures

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.types import BatchedInput, PromptType
    from torch.utils.data import DataLoader

DISTRACTORS = 10  # irrelevant documents for each query of a limited retrieval task
RETRIEVAL_FIGURES = ("ndcg_at_10", "recall_at_10", "recall_at_100", "mrr_at_10")
# pytrec_eval's names of figures that are means over queries.
PER_QUERY = {"ndcg_at_10": "ndcg_cut_10", "recall_at_10": "recall_10", "recall_at_100": "recall_100"}


class Encoder(AbsEncoder):
    """Sentence vectors of an :class:`AmbiLM` for mteb's tasks.

    Args:
        model_name: a loaded model, or what :meth:`AmbiLM.from_pretrained` takes.
        revision: under which mteb files its results; a digest of the weights and settings by default.
        prompts: prefixes or templates by mteb's names, the first that fits counts: ``SciFact-query``, ``SciFact``,
            ``Retrieval-query``, ``Retrieval``, ``query`` (or ``document``). The model's own prompt where none does.
        options: of :meth:`AmbiLM.encode`, such as ``pooling``.
    """

    def __init__(
        self,
        model_name: str | AmbiLM,
        revision: str | None = None,
        *,
        device: str | None = None,
        dtype: str = "auto",
        prompts: Mapping[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.model: AmbiLM = (
            AmbiLM.from_pretrained(model_name, dtype=dtype, device=device or "auto")
            if isinstance(model_name, str)
            else model_name
        )
        self.model_prompts = self.validate_task_to_prompt_name(dict(prompts or {}))
        self.options = options
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": f"ambilm/{Path(self.model.name).name}",
                "revision": revision or model_state(self.model),
                "framework": ["PyTorch", "Transformers"],
                "similarity_fn_name": ScoringFunction.COSINE,
            }
        )

    def encode(
        self,
        inputs: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Vectors of the texts of all batches, (texts, dimension). The batches are our own: sorted by length and packed."""
        texts = [text for batch in inputs for text in batch["text"]]
        name = self.get_prompt_name(task_metadata, prompt_type)
        prompt = {"prompt": self.model_prompts[name]} if name and self.model_prompts else {}
        progress = {"show_progress_bar": kwargs.get("show_progress_bar", True)}
        return self.model.encode(texts, **{**progress, **self.options, **prompt})


def task_named(name: str) -> AbsTask:
    """The task of that name in mteb.

    Raises:
        UserError: for a name that mteb does not know (its own suggestion is passed on), or a group of tasks.
    """
    try:
        task = mteb.get_task(name)
    except KeyError as error:
        reason = str(error.args[0]).removeprefix("KeyError: ")
        raise UserError(f"--tasks mteb:{name}: mteb has no such task ({reason}); correct the name.") from None
    if isinstance(task, AbsTaskAggregate):
        members = ",".join(f"mteb:{member.metadata.name}" for member in task.metadata.tasks)
        raise UserError(f"--tasks mteb:{name} is a group; ask for its members: {members}.")
    return task


def serve_pairs(task: AbsTaskSTS, pairs: list[SentencePair], split: str) -> None:
    """Gives an STS task of mteb these rows in place of those on the hub."""
    task.dataset = {split: Dataset.from_list([pair.model_dump() for pair in pairs])}
    task.filter_eval_splits([split]).data_loaded = True


def serve_collection(task: AbsTaskRetrieval, collection: Collection, split: str) -> None:
    """Gives a retrieval task of mteb these documents, queries and judgements in place of those on the hub."""
    relevant: dict[str, dict[str, int]] = {}
    for judgement in collection.judgements:
        relevant.setdefault(judgement.query_id, {})[judgement.doc_id] = judgement.score
    documents = [{"id": item.id, "title": item.title, "text": item.text} for item in collection.documents]
    queries = [{"id": item.id, "text": item.text} for item in collection.queries if item.id in relevant]
    task.dataset = {
        "default": {
            split: {
                "corpus": Dataset.from_list(documents),
                "queries": Dataset.from_list(queries),
                "relevant_docs": relevant,
                "top_ranked": None,
            }
        }
    }
    task.filter_eval_splits([split]).data_loaded = True


def load_from_hub(task: AbsTask, way_out: str) -> None:
    """Loads the task's own rows.

    Raises:
        UserError: where the hub cannot be reached; ``way_out`` says what else would do.
    """
    try:
        task.load_data()
    except OSError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(
            f"--tasks mteb:{task.metadata.name}: its rows cannot be had from the hub ({reason}); go online{way_out}."
        ) from None


def limit_to(task: AbsTask, limit: int, seed: int) -> None:
    """Keeps ``limit`` examples of each part: pairs, or queries with what is relevant to them and seeded distractors.

    Raises:
        UserError: for a kind of task that has no examples to leave out.
    """
    if isinstance(task, AbsTaskRetrieval):
        task.convert_v1_dataset_format_to_v2(num_proc=None)
    for part, split in _parts(task):
        if isinstance(task, AbsTaskSTS):
            part[split] = part[split].select(sample(range(len(part[split])), limit, seed))
        elif isinstance(task, AbsTaskRetrieval) and part[split]["top_ranked"] is None:
            part[split] = _limited_collection(part[split], limit, seed)
        else:
            raise UserError(
                f"--limit {limit} is for STS and retrieval tasks, and {task.metadata.name} is of type "
                f"{task.metadata.type}; leave it out."
            )


def _parts(task: AbsTask) -> list[tuple[MutableMapping[str, Any], str]]:
    """Each subset's mapping from splits to rows, with the split that is scored; a lone subset may have no level of its own."""
    assert task.dataset is not None
    data: Any = task.dataset
    return [(data.get(subset, data), split) for subset in task.hf_subsets for split in task.eval_splits]


def _limited_collection(data: Mapping[str, Any], limit: int, seed: int) -> dict[str, Any]:
    queries = data["queries"].select(sample(range(len(data["queries"])), limit, seed))
    relevant = {query: data["relevant_docs"][query] for query in queries["id"] if query in data["relevant_docs"]}
    wanted = {document for judged in relevant.values() for document in judged}
    identifiers = list(data["corpus"]["id"])
    others = [place for place, identifier in enumerate(identifiers) if identifier not in wanted]
    distractors = set(sample(others, limit * DISTRACTORS, seed))
    kept = [place for place, identifier in enumerate(identifiers) if identifier in wanted or place in distractors]
    return {**data, "queries": queries, "relevant_docs": relevant, "corpus": data["corpus"].select(kept)}


def measure(task: AbsTask, encoder: Encoder, seed: int) -> dict[str, Any]:
    """Scores a task whose rows are loaded; every figure is mteb's, only standard errors are ours.

    Returns:
        ``main``, ``n`` and, for a task of one part, the ``standard_error`` and the figures beside ``main``; else ``subsets``.
    """
    with tempfile.TemporaryDirectory() as folder, _quiet():
        # Without mteb's cache: our results file says what is finished.
        result = mteb.evaluate(
            encoder, task, cache=None, prediction_folder=folder, co2_tracker=False, show_progress_bar=False,
        ).task_results[0]  # fmt: skip
        written = Path(folder) / task.prediction_file_name
        predictions = json.loads(written.read_text(encoding="utf-8")) if written.exists() else {}
    scores = {(split, entry["hf_subset"]): entry for split, entries in result.scores.items() for entry in entries}
    if len(scores) > 1:
        subsets = {f"{subset} {split}": entry["main_score"] for (split, subset), entry in scores.items()}
        return {"main": float(result.get_score()), "n": _size(task), "subsets": subsets}
    (((split, subset), entry),), ((part, _),) = scores.items(), _parts(task)
    beside = _beside(task, entry, predictions.get(subset, {}).get(split), part[split], seed)
    return {"main": float(entry["main_score"]), "n": _size(task), **beside, "split": split}


def _size(task: AbsTask) -> int:
    rows = [part[split] for part, split in _parts(task)]
    return sum(len(data["queries"] if isinstance(task, AbsTaskRetrieval) else data) for data in rows)


def _beside(task: AbsTask, entry: Mapping[str, Any], said: Any, rows: Any, seed: int) -> dict[str, Any]:
    if isinstance(task, AbsTaskSTS):
        cosines, scores = np.array(said["cosine_scores"]), np.array(rows["score"])

        def spearman(index: np.ndarray) -> float:
            return float(spearmanr(cosines[index], scores[index]).statistic)

        return {"standard_error": bootstrap(spearman, len(scores), seed), "pearson": float(entry["cosine_pearson"])}
    if isinstance(task, AbsTaskRetrieval):
        relevant = {document for judged in rows["relevant_docs"].values() for document in judged}
        return {
            **_retrieval_errors(rows["relevant_docs"], said, task.metadata.main_score),
            **{name: float(entry[name]) for name in RETRIEVAL_FIGURES if name != task.metadata.main_score},
            "documents": len(rows["corpus"]),
            "distractors": len(rows["corpus"]) - len(relevant),
        }
    return {}


def _retrieval_errors(relevant: Any, said: Any, main: str) -> dict[str, float | None]:
    """Standard errors over queries of the figures that are means over them."""
    queries = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.10", "recall.10,100"}).evaluate(said).values()
    errors = {
        name: mean_figures([query[key] for query in queries])["standard_error"] for name, key in PER_QUERY.items()
    }
    return {"standard_error" if name == main else f"{name}_error": error for name, error in errors.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps mteb's notes for its developers, and bars for what it prepares, off the terminal."""
    logger, bars = logging.getLogger("mteb"), are_progress_bars_disabled()
    level = logger.level
    logger.setLevel(logging.ERROR)
    disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if not bars:
            enable_progress_bars()
