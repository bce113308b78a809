"""Task files: what is found, and the one sentence that a broken one gets."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ambilm.errors import UserError
from ambilm.evaluation.data import SentencePair, Story, check_scores, find, read_rows, sample
from ambilm.evaluation.tasks import expand, task_names


def pair(score: Any = 3.0, split: str = "test", **fields: Any) -> dict[str, Any]:
    return {"sentence1": "a", "sentence2": "b", "score": score, "subset": "s", "split": split, **fields}


def write(path: Path, rows: list[Any]) -> Path:
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_only_the_wanted_part_is_read(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"sts15{suffix}", [pair(1), pair(2, "dev"), "", pair(3)])
    assert find("sts15", [tmp_path / "other", tmp_path]) == path
    assert [row.score for row in read_rows(path, SentencePair, "test")] == [1, 3]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("{not json", "not a JSON object"),
        ("[1, 2]", "row"),
        ({"sentence1": "a", "sentence2": "b", "split": "test"}, "'score' is missing"),
        ({"sentence1": "a", "sentence2": "b", "score": 1.0}, "'split' is missing"),
        (pair("high"), "'score'"),
        (pair(sentence1=None), "'sentence1'"),
        (pair(float("nan")), "'score'"),
    ],
)
def test_a_broken_row_is_named_by_file_and_line(tmp_path: Path, row: Any, words: str) -> None:
    path = write(tmp_path / "sts15.jsonl", [pair(), row])
    with pytest.raises(UserError) as error:
        list(read_rows(path, SentencePair, "test"))
    assert f"{path}, line 2" in str(error.value) and words in str(error.value)


def test_a_score_out_of_range_is_named_by_its_line(tmp_path: Path) -> None:
    path = write(tmp_path / "str2021.jsonl", [pair(0.5), pair(1.0), pair(1.5)])
    with pytest.raises(UserError, match=r"line 3: the score 1\.5 is outside 0 to 1"):
        check_scores(path, read_rows(path, SentencePair, None), 0, 1)
    check_scores(path, read_rows(path, SentencePair, None), 0, 5)


def test_a_missing_part_an_empty_and_a_cut_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no rows with split 'test', only dev, train"):
        list(read_rows(write(tmp_path / "a.jsonl", [pair(split="train"), pair(split="dev")]), SentencePair, "test"))
    with pytest.raises(UserError, match="holds no rows"):
        list(read_rows(write(tmp_path / "b.jsonl", []), SentencePair, "test"))
    cut = write(tmp_path / "c.jsonl.gz", [pair()] * 50)
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot be read after line"):
        list(read_rows(cut, SentencePair, "test"))


def test_a_story_has_five_sentences(tmp_path: Path) -> None:
    path = write(tmp_path / "rocstories.jsonl", [{"sentences": ["one.", "two."], "split": "valid"}])
    with pytest.raises(UserError, match=r"line 1: 'sentences'"):
        list(read_rows(path, Story, "valid"))


def test_a_sample_is_seeded_in_order_and_fair() -> None:
    items = list(range(1000))
    drawn = sample(iter(items), 100, seed=1)
    assert drawn == sample(items, 100, seed=1) != sample(items, 100, seed=2)
    assert drawn == sorted(set(drawn)) and len(drawn) == 100
    assert 400 < sum(sum(sample(items, 100, seed)) / 100 for seed in range(20)) / 20 < 600
    assert sample(items, None, 0) == sample(items, 5000, 0) == items


def test_names_become_jobs(tmp_path: Path) -> None:
    write(tmp_path / "sts15.jsonl", [pair()])
    write(tmp_path / "stsb.jsonl", [pair()])
    assert [job.key for job in expand("sts", [tmp_path])] == ["sts15", "stsb"]
    assert [job.key for job in expand("stsb:dev, stsb:dev,sts15@causal-mean", [tmp_path])] == [
        "stsb:dev",
        "sts15@causal-mean",
    ]
    assert len(expand("sts-baselines", [tmp_path])) == 2 * 9
    assert expand(["own_text"], [tmp_path])[0].key == "own_text:retrieval"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rocstorys", "did you mean rocstories?"),
        ("sts13", "no file sts13.jsonl.gz"),
        ("sts15:dev", "unknown part 'dev'; choose from test"),
        ("sts15@mean", "unknown row 'mean'; choose from causal-mean"),
        ("infill", "none of its files"),
        (" , ", "names no task"),
    ],
)
def test_a_wrong_name_is_explained(tmp_path: Path, name: str, words: str) -> None:
    write(tmp_path / "sts15.jsonl", [pair()])
    with pytest.raises(UserError) as error:
        expand(name, [tmp_path])
    assert words in str(error.value)


def test_the_issue_names_are_known() -> None:
    assert {"sts", "infill", "own_text", "perplexity", "lambada", "sts12", "str2021", "biosses"} <= set(task_names())
