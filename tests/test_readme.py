"""Every code block of the README runs, and the examples do."""

import re
import shlex
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import ambilm
from ambilm.cli import app, models
from ambilm.model.settings import READINGS
from ambilm.recipes import RECIPES, Magnet

if TYPE_CHECKING:
    from ambilm import AmbiLM

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
# What makes a command of the README quick enough for a test.
TINY = {
    "adapt": "--steps 2 --set texts_per_step=2 pairs_per_step=2 max_length=32 pair_tokens_max=16",
    "evaluate": "--limit 2",
    "infill": "--max-tokens 8",
}
SENTENCES = ["A dog runs in the park.", "Stocks fell on Monday.", "She walked home and slept."]
PARAGRAPHS = [
    "The ship left the harbour at dawn. Its crew had loaded forty barrels of salted fish and a piano for the captain's wife.",
    "Bread needs four things and some patience. Flour, water, salt and yeast are mixed, and then the dough must rest for hours.",
    "A compiler reads a program twice. First it finds the names, and later it decides where every value of theirs is stored.",
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the files that the README and the examples name."""
    (tmp_path / "notes.txt").write_text("\n\n".join(PARAGRAPHS), encoding="utf-8")
    (tmp_path / "sentences.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_readme_has_blocks_of_known_kinds_only() -> None:
    assert len(BLOCKS) >= 9
    assert {kind for kind, _ in BLOCKS} == {"python", "sh"}


def test_python_blocks(smollm2: "AmbiLM", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ambilm.AmbiLM, "from_pretrained", lambda name: smollm2)
    namespace: dict[str, Any] = {}
    for kind, code in BLOCKS:
        if kind == "python":
            exec(compile(code, "README.md", "exec"), namespace)
    assert namespace["vectors"].shape == (3, 576)
    assert [array.shape for array in namespace["words"]] == [(4, 576)]
    assert namespace["filled"].text in capsys.readouterr().out
    assert len(namespace["filled"].candidates) == 2


def test_shell_blocks(smollm2: "AmbiLM", files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load: Callable[..., Any] = models.load
    monkeypatch.setattr(
        models, "load", lambda name, *others: smollm2 if name == "smollm2-135m" else load(name, *others)
    )
    targets = re.search(r"^\.PHONY: (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None
    for line in "".join(code for kind, code in BLOCKS if kind == "sh").splitlines():
        program, command, *arguments = shlex.split(line)
        if program == "make":
            assert command in targets[1].split()
            continue
        assert program == "ambilm", line
        result = CliRunner().invoke(app, [command, *arguments, *TINY.get(command, "").split()])
        assert result.exit_code == 0, f"{line}\n{result.output}"
    table = (files / "table.md").read_text(encoding="utf-8")
    assert "own_text:retrieval" in table and "my-model" in table
    assert (files / "vectors.npy").stat().st_size > 0
    assert len((files / "words.jsonl").read_text().splitlines()) == len(SENTENCES)


def test_readme_names_every_command() -> None:
    help_text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for command in re.findall(r"^\| `ambilm (\w+)", README, re.MULTILINE):
        assert f" {command} " in help_text
    assert len(re.findall(r"^\| `ambilm (\w+)", README, re.MULTILINE)) == len(app.registered_commands)


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (REPOSITORY / target).exists(), target


def test_the_page_of_recipes_has_each_recipe_and_reading() -> None:
    page = (REPOSITORY / "docs" / "recipes.md").read_text(encoding="utf-8")
    for name in RECIPES:
        assert f"\n| [{name}](#" in page and f"ambilm adapt {name} " in page, name
    for name in READINGS:
        assert f"\n| `{name}` |" in page, name


def example(name: str) -> ModuleType:
    spec = spec_from_file_location(f"example_{name}", REPOSITORY / "examples" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_examples_on_the_base_model(smollm2: "AmbiLM") -> None:
    found = example("embeddings").search(smollm2, SENTENCES, "The stock market went down.")
    assert found[0][1] == SENTENCES[1]
    infilling, text = example("infilling"), "She [BLANK] home and slept."
    assert len(infilling.propose(smollm2, text, 2)) == 2
    assert infilling.rate(smollm2, text, "went") > infilling.rate(smollm2, text, "purple")


def test_the_example_that_adapts(files: Path) -> None:
    recipe = Magnet(stage1_steps=1, stage2_steps=1, texts_per_step=2, pairs_per_step=2, max_length=32)
    table = example("own_text").adapt_and_measure(
        "smollm2-135m", files / "notes.txt", files / "notes.txt", files / "run", recipe, limit=2
    )
    assert "own_text:infill" in table.read_text(encoding="utf-8")
