"""Reading texts and pairs: every format, and every mistake with file and line."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ambilm.errors import UserError
from ambilm.training.text import ReadingReport, read_pairs, read_texts, sentences_of


def write(path: Path, *rows: object) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def test_every_format(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\n\nthree\n")
    write(tmp_path / "b.jsonl", {"text": "four"}, {"sentences": ["five.", "six."]})
    with gzip.open(tmp_path / "c.jsonl.gz", "wt") as file:
        file.write(
            '{"story": "seven", "split": "train"}\n{"story": "no", "split": "valid"}\n{"story": "all", "split": "all"}\n'
        )
    pq.write_table(pa.table({"content": ["eight", "nine"]}), tmp_path / "d.parquet")
    found = list(read_texts([tmp_path]))
    assert found == ["one two", "three", "four", "five. six.", "seven", "all", "eight", "nine"]


def test_dirty_texts_are_cleaned_and_empty_ones_counted(tmp_path: Path) -> None:
    file = write(tmp_path / "a.jsonl", {"text": "a\x00b"}, {"text": "  "}, {"text": "c\ud800"})
    report = ReadingReport()
    assert list(read_texts([file], report=report)) == ["ab", "c\ufffd"]
    assert report.read == {file: 2} and report.empty == {file: 1}


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": ', "line 2 is not JSON"),
        ("b.jsonl", b'{"title": "x"}', "line 1 has no text: it has the fields title"),
        ("c.jsonl", b"[1]", "no JSON object"),
        ("d.txt", b"\xff\xfe\xff", "not UTF-8"),
        ("e.jsonl.gz", b"not gzip", "cannot be read"),
        ("f.parquet", b"not parquet", "parquet"),
        ("g.docx", b"x", "suffix"),
    ],
)
def test_mistakes(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words):
        list(read_texts([tmp_path / name]))
    with pytest.raises(UserError, match="does not exist"):
        list(read_texts([tmp_path / "absent.txt"]))


def test_pairs(tmp_path: Path) -> None:
    rows = ({"anchor": "a", "positive": "b", "negative": None}, {"sentence1": "c", "sentence2": "d", "negative": "e"})
    file = write(tmp_path / "p.jsonl", *rows)
    (tmp_path / "p.tsv").write_text("f\tg\nh\ti\tj\n")
    assert list(read_pairs([file, tmp_path / "p.tsv"])) == [
        ("a", "b", None), ("c", "d", "e"), ("f", "g", None), ("h", "i", "j"),
    ]  # fmt: skip
    with pytest.raises(UserError, match="line 1 has no pair"):
        list(read_pairs([write(tmp_path / "q.jsonl", {"anchor": "a"})]))
    (tmp_path / "r.tsv").write_text("alone\n")
    with pytest.raises(UserError, match="1 columns"):
        list(read_pairs([tmp_path / "r.tsv"]))


def test_sentences() -> None:
    text = 'Dr. Smith paid 3.5 dollars. "Why?" he asked. J. Doe left! It rained'
    assert sentences_of(text) == ["Dr. Smith paid 3.5 dollars.", '"Why?" he asked.', "J. Doe left!", "It rained"]
    assert sentences_of("  ") == []
