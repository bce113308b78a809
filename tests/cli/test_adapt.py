"""``ambilm adapt``: its help teaches the settings, mistakes are named, and training gets what was asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ambilm.training
from ambilm.cli.adapt import LISTS, make_recipe
from ambilm.cli.settings import repeated
from ambilm.recipes import RECIPES, Recipe

Refused = Callable[..., str]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "notes.txt"
    path.write_text("Some text to train on.\n")
    return path


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the training was called with; it does not run."""
    calls: list[dict[str, Any]] = []

    def train(recipe: Recipe, **arguments: Any) -> Path:
        calls.append({"recipe": recipe, **arguments})
        return Path(arguments["output"])

    monkeypatch.setattr(ambilm.training, "adapt", train)
    return calls


def test_help_lists_recipes_and_settings(run: Any) -> None:
    shown = run("adapt", "--help").stdout
    assert all(name in shown for name in RECIPES)
    shown = run("adapt", "magnet", "--help")
    assert shown.exit_code == 0
    for name, field in RECIPES["magnet"].model_fields.items():
        assert name in shown.stdout
        assert field.description and field.description.split()[0] in shown.stdout


def test_everything_reaches_the_training(run: Any, text: Path, tmp_path: Path, trained: list[dict[str, Any]]) -> None:
    other = tmp_path / "more.txt"
    other.write_text("More.\n")
    output = tmp_path / "run"
    result = run(
        *("adapt", "magnet", "--model", "m", "--text", text, other, "--pairs", other, "--output", output),
        *(
            "--steps",
            30,
            "--seed",
            7,
            "--set",
            "temperature=0.1",
            "prompt=",
            "--set",
            "views=null",
            "--dtype",
            "float32",
        ),
    )
    assert (result.exit_code, result.stdout.strip()) == (0, str(output)), result.stderr
    (call,) = trained
    recipe = call.pop("recipe")
    assert call == {
        "model": "m",
        "text": [str(text), str(other)],
        "pairs": [str(other)],
        "output": output,
        "resume": False,
        "overwrite": False,
        "dtype": "float32",
    }
    assert (recipe.seed, recipe.temperature, recipe.prompt, recipe.views) == (7, 0.1, "", None)
    assert recipe.total_steps == 30
    assert recipe.stage1_steps == 10  # a third, as by default


def test_unknown_names_come_with_the_close_one(refused: Refused, text: Path, tmp_path: Path) -> None:
    common = ("--model", "m", "--text", text, "--output", tmp_path / "run")
    message = refused("adapt", "magnt", *common)
    assert "did you mean 'magnet'?" in message and "causal_control (" in message
    message = refused("adapt", "magnet", *common, "--set", "temprature=1")
    assert "did you mean 'temperature'?" in message and "lambda_msg" in message
    assert "no '='" in refused("adapt", "magnet", *common, "--set", "temperature")
    message = refused("adapt", "magnet", *common, "--set", "temperature=-1")
    assert "--set temperature=-1: Input should be greater than 0" in message
    assert "twice" in refused("adapt", "magnet", *common, "--seed", 1, "--set", "seed=2")


def test_missing_text_and_used_output(
    refused: Refused, run: Any, text: Path, tmp_path: Path, trained: list[dict[str, Any]]
) -> None:
    output = tmp_path / "run"
    assert "no.txt does not exist" in refused(
        "adapt", "magnet", "--model", "m", "--text", tmp_path / "no.txt", "--output", output
    )
    common = ("adapt", "magnet", "--model", "m", "--text", text, "--output", output)
    assert "nothing to resume" in refused(*common, "--resume")
    output.mkdir()
    (output / "recipe.json").write_text("{}")
    assert "--resume to go on" in refused(*common)
    assert "exclude each other" in refused(*common, "--resume", "--overwrite")
    assert "is a file" in refused(*common[:-1], text)
    assert "is empty" in refused(*common, "--resume", "--pairs", _empty(tmp_path))
    assert trained == []
    assert run(*common, "--resume").exit_code == 0
    assert trained[0]["resume"] is True


def _empty(directory: Path) -> Path:
    path = directory / "empty.jsonl"
    path.touch()
    return path


@pytest.mark.parametrize("name", sorted(RECIPES))
@pytest.mark.parametrize("steps", [1, 2, 7, 1000])
def test_steps_are_shared_among_stages(name: str, steps: int) -> None:
    assert make_recipe(RECIPES[name], [], steps, None).total_steps == steps


def test_repeated_options() -> None:
    assert repeated(["magnet", "--text", "a", "b", "--seed", "1"], LISTS) == [
        "magnet",
        "--text",
        "a",
        "--text",
        "b",
        "--seed",
        "1",
    ]
    assert repeated(["--text=a", "magnet", "--output", "x"], LISTS) == ["--text=a", "magnet", "--output", "x"]
