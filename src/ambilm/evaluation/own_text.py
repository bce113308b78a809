"""Three measures on anybody's own text, without labels: ``ambilm evaluate M --tasks own_text --data FILE``.

- ``own_text:retrieval``: a sentence taken out of a paragraph must find that paragraph among all others (recall@1, MRR);
- ``own_text:infill``: perplexity of a missing span given both sides;
- ``own_text:perplexity``: causal perplexity, which adaptation leaves as it was.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ambilm.errors import UserError
from ambilm.evaluation.infilling import Removal, infill_entry, removals_of, remove_span
from ambilm.evaluation.perplexity import DEFAULT_TEXTS, own_texts, run_perplexity
from ambilm.evaluation.statistics import bootstrap
from ambilm.evaluation.task import Run, Task

if TYPE_CHECKING:
    from ambilm import AmbiLM

SHORTEST_QUERY = 4  # words; "He nodded." finds nothing
SHORTEST_REST = 8  # words that the paragraph must keep


@dataclass(frozen=True)
class Query:
    """A sentence, and the paragraph it was taken from without it."""

    sentence: str
    paragraph: str


def queries_of(texts: list[str], seed: int) -> list[Query]:
    """One query from each paragraph of at least two sentences; a paragraph that occurs twice counts once."""
    from ambilm.training.text import sentences_of

    queries = []
    for place, text in enumerate(dict.fromkeys(texts)):
        sentences = list(sentences_of(text))
        generator = random.Random(f"query {seed} {place}")
        chosen = [index for index, sentence in enumerate(sentences) if len(sentence.split()) >= SHORTEST_QUERY]
        if len(sentences) < 2 or not chosen:
            continue
        index = generator.choice(chosen)
        rest = " ".join(sentences[:index] + sentences[index + 1 :])
        if len(rest.split()) >= SHORTEST_REST:
            queries.append(Query(sentences[index], rest))
    return queries


def retrieval(model: AmbiLM, queries: list[Query], seed: int = 0, progress: bool = False) -> dict[str, Any]:
    """Recall@1 (``main``) and mean reciprocal rank of each sentence's own paragraph, ranked by cosine."""

    def encode(texts: list[str]) -> np.ndarray:
        return model.encode(texts, normalize_embeddings=True, show_progress_bar=progress)

    sentences = encode([query.sentence for query in queries])  # (queries, d)
    paragraphs = encode([query.paragraph for query in queries])  # (queries, d)
    scores = sentences @ paragraphs.T  # (queries, queries)
    own = scores.diagonal()[:, None]
    # A tie goes to the other paragraph: a model that gives all texts one vector finds nothing.
    ranks = (scores >= own).sum(axis=1)  # (queries,)
    first, reciprocal = (ranks == 1).astype(float), 1 / ranks
    return {
        "main": float(first.mean()),
        "n": len(queries),
        "standard_error": bootstrap(lambda index: float(first[index].mean()), len(queries), seed),
        "mrr": float(reciprocal.mean()),
        "mrr_error": bootstrap(lambda index: float(reciprocal[index].mean()), len(queries), seed),
    }


def _run_retrieval(run: Run) -> dict[str, Any]:
    queries = queries_of(own_texts(run), run.seed)
    if len(queries) < 2:
        raise UserError(
            f"--data {', '.join(map(str, run.paths))}: own_text:retrieval needs at least 2 different paragraphs of two "
            "or more sentences; give more text, with an empty line between paragraphs."
        )
    return retrieval(run.model, queries, run.seed, run.progress)


def _run_infill(run: Run) -> dict[str, Any]:
    def remove(text: str, generator: random.Random) -> Removal | None:
        return remove_span(run.model, text, generator)

    return infill_entry(run, removals_of(run, own_texts(run), remove, DEFAULT_TEXTS))


TASKS = (
    Task("own_text:retrieval", None, "recall@1", _run_retrieval),
    Task("own_text:infill", None, "infill perplexity", _run_infill),
    Task("own_text:perplexity", None, "perplexity", run_perplexity),
)
GROUPS = {"own_text": tuple(task.name for task in TASKS)}
