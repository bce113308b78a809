"""mteb's tasks on the real SmolLM2-135M: the same figures as ours, retrieval by hand, seeded subsets, and being offline."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

mteb = pytest.importorskip("mteb")

from datasets import Dataset  # noqa: E402
from mteb.models import EncoderProtocol  # noqa: E402
from mteb.types import PromptType  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from ambilm.errors import UserError  # noqa: E402
from ambilm.evaluation import evaluate, mteb_model  # noqa: E402
from ambilm.evaluation.data import Collection, Document, Judgement, SearchQuery, read_collection  # noqa: E402
from ambilm.evaluation.tasks import expand  # noqa: E402

if TYPE_CHECKING:
    from ambilm import AmbiLM

DOCUMENTS = {
    "d1": ("Vitamin C", "Ascorbic acid did not prevent colds in adults."),
    "d2": ("", "Regular exercise lowers blood pressure."),
    "d3": ("Malaria", "Bed nets treated with insecticide reduce malaria."),
    "d4": ("Sleep", "Short sleep is linked to weight gain."),
}
QUERIES = {"q1": "Vitamin C prevents colds.", "q2": "Bed nets protect against malaria.", "q3": "Exercise is harmful."}
RELEVANT = {"q1": ["d1"], "q2": ["d3"], "q3": ["d2", "d4"]}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    documents = [{"id": key, "title": title, "text": text} for key, (title, text) in DOCUMENTS.items()]
    queries = [{"id": key, "text": text, "split": "test"} for key, text in QUERIES.items()]
    judged = [(query, document) for query, documents in RELEVANT.items() for document in documents]
    write(tmp_path / "scifact_corpus.jsonl", documents)
    write(tmp_path / "scifact_queries.jsonl", [*queries, {"id": "t", "text": "Of another part.", "split": "train"}])
    write(
        tmp_path / "scifact_qrels.jsonl",
        [{"query_id": query, "doc_id": document, "score": 1, "split": "test"} for query, document in judged],
    )
    return tmp_path


def test_spearman_is_the_same_as_ours(smollm2: "AmbiLM", data_dir: Path, tmp_path: Path) -> None:
    tasks = evaluate(smollm2, "sts13,mteb:STS13", [data_dir], tmp_path / "r.json", limit=16, progress=False)["tasks"]
    ours, theirs = tasks["sts13"], tasks["mteb:STS13"]
    assert theirs["main"] == pytest.approx(ours["main"], abs=1e-6)
    assert theirs["standard_error"] == pytest.approx(ours["standard_error"], abs=1e-6)
    assert (theirs["metric"], theirs["n"], theirs["source"]) == ("cosine_spearman", 16, "sts13.jsonl.gz")


def test_retrieval_by_hand(smollm2: "AmbiLM", data: Path) -> None:
    entry = evaluate(smollm2, "scifact", [data], data / "r.json", progress=False)["tasks"]["scifact"]
    documents = smollm2.encode(
        [f"{title} {text}".strip() for title, text in DOCUMENTS.values()], normalize_embeddings=True
    )  # (documents, d)
    queries = smollm2.encode(list(QUERIES.values()), normalize_embeddings=True)  # (queries, d)
    gains, reciprocal = [], []
    for query, scores in zip(QUERIES, queries @ documents.T, strict=True):
        found = np.array([list(DOCUMENTS)[place] in RELEVANT[query] for place in np.argsort(-scores)])
        discounts = 1 / np.log2(np.arange(len(found)) + 2)  # (documents,)
        gains.append((found * discounts).sum() / discounts[: found.sum()].sum())
        reciprocal.append(1 / (found.argmax() + 1))
    assert entry["main"] == pytest.approx(np.mean(gains), abs=1e-5)  # mteb rounds to five digits
    assert entry["mrr_at_10"] == pytest.approx(np.mean(reciprocal), abs=1e-5)
    assert entry["standard_error"] == pytest.approx(np.std(gains, ddof=1) / np.sqrt(3), abs=1e-6)
    assert (entry["metric"], entry["n"], entry["documents"], entry["distractors"]) == ("ndcg_at_10", 3, 4, 0)
    assert entry["recall_at_10"] == entry["recall_at_100"] == 1


def test_each_side_has_its_prompt(smollm2: "AmbiLM") -> None:
    prompts = {"Retrieval-query": "Claim:", "document": "Abstract: {text}"}
    encoder = mteb_model.Encoder(smollm2, prompts=prompts, pooling="mean", show_progress_bar=False)
    assert isinstance(encoder, EncoderProtocol) and encoder.mteb_model_meta.name == "ambilm/smollm2-135m"

    def encoded(task: str, side: PromptType | None) -> np.ndarray:
        batches = DataLoader(Dataset.from_dict({"text": list(QUERIES.values())}), batch_size=2)
        metadata = mteb.get_task(task).metadata
        return encoder.encode(batches, task_metadata=metadata, hf_split="test", hf_subset="default", prompt_type=side)

    def expected(**options: Any) -> np.ndarray:
        return smollm2.encode(list(QUERIES.values()), pooling="mean", **options)

    np.testing.assert_array_equal(encoded("SciFact", PromptType.query), expected(prompt="Claim:"))
    np.testing.assert_array_equal(encoded("SciFact", PromptType.document), expected(prompt="Abstract: {text}"))
    np.testing.assert_array_equal(encoded("STS13", None), expected())


def limited(seed: int) -> dict[str, Any]:
    """The rows of SciFact that are left of 6 queries, two relevant documents each, and 100 documents in all."""
    collection = Collection(
        [Document(id=f"d{place}", text="A text.") for place in range(100)],
        [SearchQuery(id=f"q{place}", text="A query.", split="test") for place in range(6)],
        [Judgement(query_id=f"q{place // 2}", doc_id=f"d{place}", score=1, split="test") for place in range(12)],
    )
    task = mteb.get_task("SciFact")
    mteb_model.serve_collection(task, collection, "test")
    mteb_model.limit_to(task, 3, seed)
    return dict(task.dataset["default"]["test"])


def test_a_limit_keeps_what_is_relevant_and_draws_the_rest() -> None:
    first, again, other = limited(0), limited(0), limited(1)
    queries, corpus = first["queries"]["id"], first["corpus"]["id"]
    assert len(queries) == 3 and set(first["relevant_docs"]) == set(queries)
    assert {document for judged in first["relevant_docs"].values() for document in judged} <= set(corpus)
    assert len(corpus) == 6 + 3 * mteb_model.DISTRACTORS
    assert (queries, corpus) == (again["queries"]["id"], again["corpus"]["id"])
    assert corpus != other["corpus"]["id"]


def test_a_limit_of_another_kind_of_task_is_refused() -> None:
    task = mteb.get_task("Banking77Classification")
    task.dataset = {"test": Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})}
    with pytest.raises(UserError, match="for STS and retrieval tasks"):
        mteb_model.limit_to(task, 2, 0)


def test_judgements_must_fit(data: Path) -> None:
    with (data / "scifact_qrels.jsonl").open("a") as stream:
        stream.write(json.dumps({"query_id": "q1", "doc_id": "d9", "score": 1, "split": "test"}) + "\n")
    paths = [data / f"scifact_{name}.jsonl" for name in ("corpus", "queries", "qrels")]
    with pytest.raises(UserError, match=r"judges the document 'd9', which is not in .*corpus"):
        read_collection(paths, "test")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mteb:STS31", "no such task"),
        ("mteb:CQADupstackRetrieval", "group; ask for its members: mteb:CQADupstackAndroidRetrieval"),
        ("scifact", "no file scifact_qrels.jsonl.gz"),
        ("mteb:STS13@mean", "unknown row 'mean'"),
    ],
)
def test_a_wrong_name_is_explained(data: Path, name: str, words: str) -> None:
    (data / "scifact_qrels.jsonl").unlink()
    with pytest.raises(UserError) as error:
        expand(name, [data])
    assert words in str(error.value)


def test_a_task_without_data_names_the_way_out(smollm2: "AmbiLM", tmp_path: Path) -> None:
    with pytest.raises(UserError, match="sts13 needs --data"):
        expand("sts13", [])
    with pytest.raises(UserError) as error:
        evaluate(smollm2, "mteb:STS13", [], tmp_path / "r.json", progress=False)
    assert "go online, or give a folder with sts13.jsonl.gz as --data" in str(error.value)
    assert "\n" not in str(error.value)
