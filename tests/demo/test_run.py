"""The whole demo at its smallest, on Python's documentation: page, results, model, and what a second run does."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ambilm import AmbiLM
from ambilm.cli import app
from ambilm.demo import report, run
from ambilm.demo import text as demo_text
from ambilm.demo.figures import layouts
from ambilm.demo.report import Measure, Reading
from ambilm.demo.text import Limits
from ambilm.errors import UserError
from ambilm.evaluation import compare
from ambilm.evaluation.results import load
from ambilm.recipes import Magnet

RECIPE = Magnet(
    stage1_steps=1, stage2_steps=1, texts_per_step=2, pairs_per_step=2, max_length=32, pooling="mean", prompt="",
    checkpoint_every=1,
)  # type: ignore[call-arg]  # fmt: skip
LIMITS = Limits(
    stories=3, passages=3, similarity_pairs=4, neighbours=3, shown_infills=1, shown_neighbours=1, greedy_tokens=3
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a finished demo."""
    output = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_text, "shared_data", lambda: None)
        assert run.run_demo(output, RECIPE, LIMITS) == output / "report.html"
        yield output


def test_the_page_needs_no_other_file(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|iframe)|https?://|url\(|@import", page)
    sources = re.findall(r'src="([^"]*)"', page)
    assert len(sources) == 3
    for source in sources:
        assert base64.b64decode(source.removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert page.count("<section>") == page.count("</section>") == 9


def test_generation_is_reported_identical(finished: Path) -> None:
    page = (finished / "report.html").read_text(encoding="utf-8")
    assert page.count("identical: ") == 3 and "DIFFERENT" not in page


def test_results_and_model_are_left(finished: Path, tmp_path: Path) -> None:
    base, adapted = (load(finished / f"results-{name}.json")["tasks"] for name in ("base", "adapted"))
    assert {"stories", "passages", "own_text:retrieval", "perplexity"} <= base.keys() & adapted.keys()
    assert base["perplexity"]["main"] == adapted["perplexity"]["main"]
    assert base["stories"]["main"] != adapted["stories"]["main"]
    compare([finished / "results-base.json", finished / "results-adapted.json"], tmp_path / "table.md")
    model = AmbiLM.from_pretrained(finished / "model", dtype="float32")
    assert model.is_adapted and model.encode("A text.").shape == (576,)


def test_an_unfinished_demo_goes_on_and_a_finished_one_starts_afresh(finished: Path) -> None:
    log = finished / "model" / "log.jsonl"
    first = log.read_text()
    (finished / "report.html").unlink()
    run.run_demo(finished, RECIPE, LIMITS)
    assert log.read_text() == first  # seconds and all: nothing was trained again
    run.run_demo(finished, RECIPE, LIMITS)
    again = [json.loads(line) for line in log.read_text().splitlines()]
    before = [json.loads(line) for line in first.splitlines()]
    assert log.read_text() != first
    assert [line["loss"] for line in again] == [line["loss"] for line in before]


def test_a_directory_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="model"):
        run.run_demo(tmp_path, RECIPE, LIMITS)
    assert (tmp_path / "model" / "thesis.txt").read_text() == "years of work"


def test_the_layouts_are_the_packages_own() -> None:
    pictures = layouts()
    assert list(pictures) == ["causal", "bidirectional", "prefix", "infill"]
    assert pictures["causal"][0, 1] == 0 and pictures["causal"][2, 1] == 2
    assert pictures["bidirectional"][1, 7] == 1 and pictures["bidirectional"][0, 7] == 0
    assert pictures["infill"][1, 3] == 0 and pictures["infill"][3, 7] == 2 and pictures["infill"][3, 4] == 0


def test_changes_point_the_right_way() -> None:
    adapted, reading = Reading("own", 8.0), Reading("base", 10.0)
    assert Measure("m", "perplexity", 2, [reading], adapted, lower_is_better=True).change(reading) == (
        "▼ 20%",
        "better",
    )
    assert Measure("m", "recall", 2, [reading], adapted).change(reading) == ("▼ 2.0", "worse")
    assert Measure("m", "recall", 2, [reading], reading).change(reading) == ("= 0", "same")


def test_texts_are_escaped() -> None:
    shown = report.ShownInfill("a < b", "c & d", "<b>", "<script>", "x")
    card = report._infills([shown])
    assert "<script>" not in card and "a &lt; b" in card and "c &amp; d" in card


def test_the_command_prints_where_the_page_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ambilm.demo.run_demo", lambda output: output / "report.html")
    result = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "demo")])
    assert result.exit_code == 0 and result.stdout.strip() == str(tmp_path / "demo" / "report.html")
