"""Reading at its edges: splits, folders, hub data sets, damaged files, pairs of every format, real sentences."""

import gzip
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from ambilm.errors import UserError
from ambilm.training.text import ReadingReport, clean, read_pairs, read_texts, sentences_of


def write_rows(file: Path, *rows: object) -> Path:
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    file.write_bytes(gzip.compress(lines) if file.suffix == ".gz" else lines)
    return file


def test_paragraphs_of_a_text_file_are_documents(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffOne line\r\n  and the next.\r\n\r\n \t\n\nÜber.".encode())
    assert list(read_texts([file])) == ["One line and the next.", "Über."]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.json.gz"])
def test_json_rows_give_the_first_field_that_holds_a_text(tmp_path: Path, name: str) -> None:
    rows = [
        {"content": "no", "text": "yes"},
        {"sentences": ["One.", "Two."], "story": "no"},
        {"text": None, "content": "c"},
        {"story": "s"},
        {"document": "d"},
    ]
    assert list(read_texts([write_rows(tmp_path / name, *rows)])) == ["yes", "One. Two.", "c", "s", "d"]


def test_parquet_is_read_with_lists_of_sentences(tmp_path: Path) -> None:
    table = pyarrow.table({"sentences": [["A b.", "C."], ["D."]], "split": ["train", "valid"]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=1)
    assert list(read_texts([tmp_path / "a.parquet"])) == ["A b. C."]


@pytest.mark.parametrize(
    ("split", "expected"), [("train", ["t", "a", "-", "n"]), ("valid", ["v", "a", "-", "n"]), (None, list("tva-n"))]
)
def test_only_rows_of_the_split_are_read(tmp_path: Path, split: str | None, expected: list[str]) -> None:
    rows = [{"text": name[0], "split": name} for name in ("train", "valid", "all")]
    file = write_rows(tmp_path / "a.jsonl", *rows, {"text": "-"}, {"text": "n", "split": None})
    assert list(read_texts([file], split)) == expected


def test_a_folder_is_read_in_order_and_counted_by_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_text("third")
    (tmp_path / "deep" / "c.txt").write_text("fourth")
    (tmp_path / "ignored.csv").write_text("nothing")
    first = write_rows(tmp_path / "a.jsonl", {"text": "first"}, {"text": " \x00 "}, {"text": ""}, {"text": "second"})
    report = ReadingReport()
    assert list(read_texts([tmp_path], report=report)) == ["first", "second", "third", "fourth"]
    assert report.read == {str(first): 2, str(tmp_path / "b.txt"): 1, str(tmp_path / "deep" / "c.txt"): 1}
    assert report.empty == {str(first): 2}


def test_what_cannot_be_tokenised_is_cleaned(tmp_path: Path) -> None:
    dirty = ("a\ud83db", "end\udc00", "\ud83d\ude00", "n\x00ul")
    assert [clean(text) for text in dirty] == ["a\ufffdb", "end\ufffd", "\U0001f600", "nul"]
    (tmp_path / "a.jsonl").write_text('{"text": "lone \\ud83d here"}\n')
    assert list(read_texts([tmp_path / "a.jsonl"])) == ["lone \ufffd here"]


def test_reading_is_lazy(tmp_path: Path) -> None:
    """The broken third line is met only when it is its turn: nothing reads ahead."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "a"}\n{"text": "b"}\nbroken\n')
    texts = read_texts([file])
    assert list(itertools.islice(texts, 2)) == ["a", "b"]
    with pytest.raises(UserError, match="line 3 is not JSON"):
        next(texts)


def test_a_hub_data_set_is_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, *, split: str | None, streaming: bool) -> Any:
        asked.append((name, split, streaming))
        parts = {"train": [{"text": "t"}], "test": [{"text": "u"}]}
        return parts[split] if split else parts

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert list(read_texts(["owner/name"])) == ["t"]
    assert list(read_texts(["owner/name"], split=None)) == ["t", "u"]
    assert asked == [("owner/name", "train", True), ("owner/name", None, True)]


def test_a_hub_that_fails_half_way_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows() -> Iterator[dict[str, str]]:
        yield {"text": "t"}
        raise ConnectionError("gone\nwith details")

    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows())
    texts = read_texts(["owner/name"])
    assert next(texts) == "t"
    with pytest.raises(UserError, match=r"owner/name .*\(gone\)"):
        next(texts)


def flipped(data: bytes) -> bytes:
    """Bytes with their middle inverted: still a gzip header, no longer its contents."""
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 200]) + data[middle + 200 :]


MANY = gzip.compress("".join(f'{{"text": "{n * 7919 % 9973} {n * n % 7907}"}}\n' for n in range(9000)).encode())
BROKEN: list[tuple[str, bytes, str]] = [
    ("a.jsonl", b'{"text": "a"}\n\n{"text"\n', "line 3 is not JSON"),
    ("a.jsonl", b"[" * 100_000, "line 1 is not JSON"),
    ("a.jsonl", b'{"text": "a"}\n{"title": "b", "id": 3}\n', "line 2 has no text: it has the fields title, id"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "caf\xe9"}\n', "line 2 is not UTF-8"),
    ("a.txt", b"fine\n\n" * 9000 + b"caf\xe9\n", "line 18001 is not UTF-8"),
    ("a.jsonl.gz", b"hello", "after line 0"),
    ("a.jsonl.gz", MANY[: len(MANY) // 2], "is it complete"),
    ("a.jsonl.gz", flipped(MANY), "a.jsonl.gz"),
    ("a.tsv", b"a\tb\n", "suffix that is not read"),
]


@pytest.mark.parametrize(("name", "content", "message"), BROKEN, ids=range(len(BROKEN)))
def test_a_broken_file_is_one_sentence(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(read_texts([tmp_path / name]))
    assert message in str(caught.value)
    assert str(tmp_path / name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("read", [read_texts, read_pairs])
@pytest.mark.parametrize(
    ("name", "message"), [("no.txt", "does not exist"), ("data/no.jsonl", "does not exist"), (".", "holds no file")]
)
def test_a_source_that_is_not_there(tmp_path: Path, read: Callable[..., Any], name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(read([tmp_path / name]))


def test_a_relative_path_to_a_missing_file_is_no_hub_name() -> None:
    with pytest.raises(UserError, match=r"data/no\.jsonl does not exist"):
        list(read_texts(["data/no.jsonl"]))


def test_pairs_of_every_format(tmp_path: Path) -> None:
    expected = [("a", "p", "n"), ("a2", "p2", None)]
    rows = [
        {"anchor": "a", "positive": "p", "negative": "n", "split": "train"},
        {"anchor": "a2", "positive": "p2", "negative": None, "split": "train"},
        {"anchor": "x", "positive": "y", "negative": None, "split": "valid"},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.tsv").write_bytes(b"a\tp\tn\r\na2\tp2\n")
    files = [write_rows(tmp_path / name, *rows) for name in ("a.jsonl", "a.jsonl.gz")]
    for file in [*files, tmp_path / "a.parquet", tmp_path / "a.tsv"]:
        assert list(read_pairs([file])) == expected, file.name
    assert list(read_pairs(files, "valid")) == [("x", "y", None)] * 2
    assert list(read_pairs([tmp_path])) == expected * 4


def test_pairs_by_the_names_of_similarity_sets(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "a.jsonl", {"sentence1": "o\x00ne", "sentence2": "two", "score": 3})
    assert list(read_pairs([file])) == [("one", "two", None)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "a\tb\na\n", "line 2 is no pair (1 columns)"),
        ("a.tsv", "a\t \n", "line 1 is no pair"),
        ("a.tsv", "a\tb\tc\td\n", "(4 columns)"),
        ("a.jsonl", '{"anchor": "a", "text": "b"}\n', "line 1 has no pair"),
        ("a.jsonl", '{"anchor": "a", "positive": "\\u0000"}\n', "line 1 has no pair"),
        ("a.jsonl", '{"anchor": "a", "positive": "b", "negative": ["c"]}\n', "line 1 has a 'negative'"),
        ("a.txt", "a\n", "suffix that is not read"),
    ],
)
def test_a_row_without_a_pair_is_one_sentence(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError) as caught:
        list(read_pairs([tmp_path / name]))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "sentences",
    [
        ["Dr. Smith came.", "He paid $3.50 to J. R. Brown."],
        ['He said "Go!"', "Then left."],
        ['"Is it?" she asked.', "Yes."],
        ["It was so.", "“Fine,” he said."],
        ["They met at 5 p.m. on the U.S. coast.", "What now?!", "12 men came (of 20.)", "End"],
        ["Wait...", "What?"],
        ["See Fig. 3, e.g. the left part, by Mr. A. Old."],
        [],
    ],
)
def test_sentences_end_at_closing_punctuation_only(sentences: list[str]) -> None:
    assert sentences_of(" ".join(sentences)) == sentences
    assert sentences_of("\n" + "  \n".join(sentences) + " ") == sentences


def test_the_shared_training_texts_are_read(data_dir: Path) -> None:
    report = ReadingReport()
    files = [data_dir / f"{name}.jsonl.gz" for name in ("text_mix", "wikitext2", "rocstories")]
    for _ in read_texts(files, report=report):
        pass
    assert report.read == dict(zip(map(str, files), (19956, 4385, 8671), strict=True))
    assert not report.empty
    pairs = itertools.islice(read_pairs([data_dir / "nli_triplets.jsonl.gz"]), 100)
    assert all(negative for _, _, negative in pairs)


def test_true_sentence_ends_are_found_in_real_stories(data_dir: Path) -> None:
    """Stories come with their sentences: the rule must find at least 19 of 20, and invent at most 1 in 20."""
    with gzip.open(data_dir / "rocstories.jsonl.gz", "rt", encoding="utf-8") as stream:
        stories = [json.loads(line)["sentences"] for line in itertools.islice(stream, 1000)]
    truth = {(n, sentence.strip()) for n, story in enumerate(stories) for sentence in story}
    found = {(n, sentence) for n, story in enumerate(stories) for sentence in sentences_of(" ".join(story))}
    assert len(truth & found) > 0.95 * len(truth)
    assert len(found - truth) < 0.05 * len(found)
