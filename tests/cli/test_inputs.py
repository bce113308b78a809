"""Mistakes in files and flags are found before a model is loaded, and said in one sentence."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from ambilm.cli import files
from ambilm.errors import UserError

Refused = Callable[..., str]


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines.txt"
    path.write_text("one\ntwo\n")
    return path


def test_missing_empty_and_directory_inputs(refused: Refused, tmp_path: Path) -> None:
    output = tmp_path / "x.npy"
    assert "missing.txt does not exist" in refused("embed", "m", tmp_path / "missing.txt", "--output", output)
    assert "is a directory" in refused("embed", "m", tmp_path, "--output", output)
    (tmp_path / "empty.txt").touch()
    assert "empty.txt is empty" in refused("tokens", "m", tmp_path / "empty.txt")
    assert "standard input is empty" in refused("embed", "m", "--output", output, input="")
    assert "standard input is empty" in refused("tokens", "m", input="")
    assert not output.exists()


def test_outputs(refused: Refused, lines: Path, tmp_path: Path) -> None:
    assert ".npy or .jsonl" in refused("embed", "m", lines, "--output", tmp_path / "x.csv")
    assert "lines.txt is a file" in refused("embed", "m", lines, "--output", lines / "x.npy")
    (tmp_path / "d.npy").mkdir()
    assert "is a directory" in refused("embed", "m", lines, "--output", tmp_path / "d.npy")
    assert "end in .jsonl" in refused("tokens", "m", lines, "--output", tmp_path / "x.npy")
    assert "end in .json:" in refused(
        "evaluate", "m", "--tasks", "sts", "--data", tmp_path, "--output", tmp_path / "r.md"
    )
    assert ".png" in refused("compare", lines, "--output", tmp_path / "t.pdf")


def test_lines_that_cannot_be_read_are_named(refused: Refused, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "good"}\n{"sentence": "other field"}\n')
    message = refused("embed", "m", rows, "--output", tmp_path / "x.npy")
    assert 'rows.jsonl, line 2 is not a JSON object with a "text" string' in message
    latin = tmp_path / "latin.txt"
    latin.write_bytes("gut\nsch\xf6n\n".encode("latin-1"))
    assert "latin.txt, line 2 is not valid UTF-8" in refused("embed", "m", latin, "--output", tmp_path / "x.npy")
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(b"some text\n" * 100)[:-20])
    assert "not a complete gzip file" in refused("embed", "m", cut, "--output", tmp_path / "x.npy")


def test_texts_keep_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("a b\r\n\nc\u2028d\n no end".encode())
    assert list(files.texts(str(path))) == ["a b", "", "c\u2028d", " no end"]
    with gzip.open(tmp_path / "t.jsonl.gz", "wt") as stream:
        stream.write('{"text": "x\\ny", "other": 1}\n\n{"text": ""}\n')
    assert list(files.texts(str(tmp_path / "t.jsonl.gz"))) == ["x\ny", ""]


def test_infill_and_generate_arguments(refused: Refused) -> None:
    assert "[BLANK]" in refused("infill", "m", "Nothing is missing.")
    assert "TEXT is empty" in refused("infill", "m", " ")
    assert "PROMPT is empty" in refused("generate", "m", "")
    assert "--min-tokens 9" in refused("infill", "m", "a [BLANK]", "--min-tokens", 9, "--max-tokens", 8)
    assert "--temperature has no effect" in refused("generate", "m", "a", "--greedy", "--temperature", 0.5)
    assert "UTF-8" in refused("generate", "m", "caf\udce9")


def test_evaluate_and_compare_mistakes(refused: Refused, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    assert "no such file" in refused("evaluate", "m", "--tasks", "stsb", "--data", tmp_path / "no", "--output", output)
    assert "stbs" in refused("evaluate", "m", "--tasks", "stbs", "--data", tmp_path, "--output", output)
    assert "does not exist" in refused("compare", tmp_path / "no.json", "--output", tmp_path / "t.md")
    bad = tmp_path / "bad.json"
    bad.write_text("[]")
    assert "not a results file" in refused("compare", bad, "--output", tmp_path / "t.md")


def test_nothing_is_left_of_a_file_that_failed(tmp_path: Path) -> None:
    target = tmp_path / "x.npy"
    target.write_text("before")
    with pytest.raises(UserError), files.replacing(target) as temporary:
        temporary.write_text("half")
        raise UserError("in the middle")
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
