"""``ambilm gates``: its three files, and mistakes in one sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ambilm.cli import models

if TYPE_CHECKING:
    from ambilm import AmbiLM


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("The harbour was quiet before dawn.\nPrices rose by 3 percent in March.\n")
    return path


def test_table_and_picture(
    run: Any, smollm2: "AmbiLM", data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ambilm import AmbiLM
    from ambilm.adaptation import MixtureSettings, add_mixture, set_route

    model = AmbiLM(smollm2.base, smollm2.tokenizer, "gated")
    model.mixture = MixtureSettings()
    torch.manual_seed(0)
    add_mixture(model.view, model.mixture)
    set_route(model.view, "all_tuned")
    monkeypatch.setattr(models, "load", lambda *_: model)
    output = tmp_path / "made" / "gates"
    result = run("gates", "run", "--data", data, "--limit", 1, "--output", output)
    assert result.exit_code == 0, result.stderr
    assert sorted(path.name for path in output.iterdir()) == ["gates.json", "gates.md", "gates.png"]
    content = json.loads((output / "gates.json").read_text())
    assert content["documents"] == 1 and content["run"]["model"] == "run" and content["run"]["limit"] == 1
    everything = content["classes"]["all tokens"]
    assert len(everything["layers"]) == smollm2.base.config.num_hidden_layers
    assert result.stdout.splitlines()[0] == f"all tokens\t{everything['n']}\texpert 1\t{everything['share']:.1f}"
    assert (output / "gates.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes(run: Any, refused: Callable[..., str], loaded: "AmbiLM", data: Path, tmp_path: Path) -> None:
    output = tmp_path / "gates"
    assert "no.jsonl does not exist" in refused("gates", "m", "--data", tmp_path / "no.jsonl", "--output", output)
    assert "no rows with split 'test'" not in refused("gates", "m", "--data", data, "--output", data)
    result = run("gates", "m", "--data", data, "--output", output)
    assert result.exit_code == 2 and "train recipe ubmoe" in result.stderr and not list(output.glob("*"))
