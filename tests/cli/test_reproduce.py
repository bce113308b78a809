"""``ambilm reproduce``: what it teaches and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ambilm import reproduce
from ambilm.reproduce import EXPERIMENTS, Experiment, UbmoeSettings


def test_help_lists_experiments_and_settings(run: Any) -> None:
    shown = run("reproduce", "--help").stdout
    assert all(name in shown for name in EXPERIMENTS)
    shown = run("reproduce", "ubmoe", "--help")
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in UbmoeSettings.model_fields)


def test_everything_reaches_the_experiment(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def record(*arguments: Any, **options: Any) -> Path:
        calls.append((*arguments, options))
        return tmp_path / "ubmoe.md"

    monkeypatch.setitem(reproduce.EXPERIMENTS, "ubmoe", Experiment(UbmoeSettings, record))
    options = ("--model", "m", "--data", tmp_path, "--output", tmp_path / "run")
    result = run("reproduce", "ubmoe", *options, "--set", "seeds=1", "modules=ffn,att", "--cost")
    assert result.exit_code == 0, result.output
    settings = UbmoeSettings(seeds=1, modules=("ffn", "att"))
    assert calls == [(settings, "m", tmp_path, tmp_path / "run", {"only_cost": True})]
    assert result.stdout.strip() == str(tmp_path / "ubmoe.md")


def test_mistakes(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = ("--model", "m", "--data", tmp_path, "--output", tmp_path / "run")
    assert "did you mean 'ubmoe'?" in refused("reproduce", "ubmo", *options)
    assert "did you mean 'seeds'?" in refused("reproduce", "ubmoe", *options, "--set", "seed=1")
    message = refused("reproduce", "ubmoe", *options, "--set", "modules=att")
    assert "--set modules=att: ffn is missing" in message and "see ambilm reproduce ubmoe --help" in message
    assert "is not a folder" in refused("reproduce", "ubmoe", *options[:3], tmp_path / "no", *options[4:])
    assert "is a file" in refused("reproduce", "ubmoe", *options[:5], tmp_path / "file")
    assert "has no nli_triplets" in refused("reproduce", "ubmoe", *options)
    assert not (tmp_path / "run").exists()
