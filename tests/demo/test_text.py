"""Held-out text is held out, on every machine the same."""

import json
from pathlib import Path

import pytest

from ambilm.demo import text as demo_text
from ambilm.demo.text import Limits, documentation_text, shared_text
from ambilm.training.text import read_texts

LIMITS = Limits(stories=6, passages=6, similarity_pairs=10, neighbours=6)


def test_documentation_is_prose_and_the_held_out_part_is_not_trained_on(tmp_path: Path) -> None:
    found = documentation_text(tmp_path, LIMITS, seed=0)
    trained = list(read_texts(found.text))
    assert len(trained) > 1000
    assert not any("    " in paragraph or ">>>" in paragraph for paragraph in trained)
    everything = "\n".join(trained)
    held_out = found.held_out
    assert (len(held_out.stories), len(held_out.passages), len(held_out.partners)) == (6, 6, 6)
    for passage in (*held_out.passages, *(" ".join(story) for story in held_out.stories)):
        assert passage not in everything
    assert held_out.similarity == []
    assert documentation_text(tmp_path / "again", LIMITS, seed=0).held_out == held_out
    assert documentation_text(tmp_path / "other", LIMITS, seed=1).held_out != held_out


def test_pairs_are_two_sentences_that_follow_one_another_in_training_text(tmp_path: Path) -> None:
    found = documentation_text(tmp_path, LIMITS, seed=0)
    everything = "\n".join(read_texts(found.text))
    rows = [json.loads(line) for line in Path(found.pairs[0]).read_text(encoding="utf-8").splitlines()]
    assert len(rows) > 200
    assert all(f"{row['anchor']} {row['positive']}" in everything for row in rows)


def test_shared_data_gives_its_valid_and_dev_parts(data_dir: Path) -> None:
    found = shared_text(data_dir, LIMITS, seed=0)
    assert [Path(name).name for name in (*found.text, *found.pairs)] == list(demo_text.TRAINING_FILES)
    trained = set(read_texts(found.text))
    held_out = found.held_out
    assert not trained & {*held_out.passages, *(" ".join(story) for story in held_out.stories)}
    assert {row.split for row in held_out.similarity} == {"dev"}
    assert len(held_out.similarity) == 10


def test_the_documentation_stands_in_where_there_is_no_shared_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_text, "TRAINING_FILES", ("nowhere.jsonl.gz",))
    assert "Python" in demo_text.demo_text(tmp_path, LIMITS, seed=0).source
