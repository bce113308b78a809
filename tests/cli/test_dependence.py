"""``ambilm dependence``: its four files, and mistakes in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ambilm.evaluation.dependence import BINS, dependence_by_bin

if TYPE_CHECKING:
    from ambilm import AmbiLM

FILES = ["dependence.json", "dependence.md", "dependence.png", "heads.png"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    questions = ("Who wrote Emma?", "Name a river.", "What is ice?")
    chats = [[{"role": "user", "content": question}] for question in questions]
    path.write_text("".join(json.dumps({"messages": chat, "split": "valid"}) + "\n" for chat in chats))
    return path


def test_two_models_side_by_side(run: Any, loaded: "AmbiLM", data: Path, tmp_path: Path) -> None:
    output = tmp_path / "made" / "report"
    result = run("dependence", "one/base", "two/base", "--data", data, "--limit", 2, "--output", output)
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in output.iterdir()) == FILES
    content = json.loads((output / "dependence.json").read_text())
    assert list(content["models"]) == ["one/base", "two/base"]
    assert content["run"] == {"data": "chats.jsonl", "split": None, "limit": 2, "seed": 0}
    entry = content["models"]["one/base"]
    chats = [json.loads(line)["messages"] for line in data.read_text().splitlines()]
    assert entry["bins"] == dependence_by_bin(loaded, chats, limit=2)["bins"]
    assert [row["n"] for row in entry["bins"]] == [2, 0, 0, 0] and len(entry["bins"]) == len(BINS)
    config = loaded.base.config
    assert len(entry["heads"]) == config.num_hidden_layers and len(entry["heads"][0]) == config.num_attention_heads
    after = f"{entry['bins'][0]['after']:.2f}"
    assert f"| later tokens (DP_after) | two/base | {after} ± " in (output / "dependence.md").read_text()
    assert result.stdout.splitlines()[0] == f"one/base\t0-256\tDP_after\t{after}"
    for name in FILES[2:]:
        assert (output / name).read_bytes().startswith(b"\x89PNG")


def test_mistakes_are_found_before_a_model_is_loaded(refused: Callable[..., str], data: Path, tmp_path: Path) -> None:
    def refusal(file: Path, *more: object) -> str:
        return refused("dependence", "m", *more, "--data", file, "--output", tmp_path / "report")

    assert "no.jsonl does not exist" in refusal(tmp_path / "no.jsonl")
    assert "names a model twice" in refusal(data, "m")
    assert "no rows with split 'test', only valid" in refusal(data, "--split", "test")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "good"}\n{"anchor": "other"}\n')
    assert "bad.jsonl, line 2: 'row': holds none of messages, text and sentences" in refusal(bad)
    bad.write_text('{"messages": [{"role": "user"}]}\n')
    assert "line 1: the field 'messages.0.content' is missing" in refusal(bad)
    bad.write_text("not json\n")
    assert "bad.jsonl, line 1: not a JSON object" in refusal(bad)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("gut\nsch\xf6n\n".encode("latin-1"))
    assert "latin.txt, line 2 is not valid UTF-8" in refusal(latin)
    other = tmp_path / "table.csv"
    other.write_text("a,b\n")
    assert "table.csv is neither .jsonl.gz, .jsonl nor .txt" in refusal(other)
    assert "is a file" in refused("dependence", "m", "--data", data, "--output", data / "report")
    assert not (tmp_path / "report").exists()
