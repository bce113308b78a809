"""Results side by side, and what a wrong file is told."""

import json
from pathlib import Path
from typing import Any

import pytest

from ambilm.errors import UserError
from ambilm.evaluation import compare
from ambilm.evaluation.compare import Figure, comparison, within_noise


def results(path: Path, model: str, **tasks: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"model": model, "ambilm_version": "0", "versions": {}, "tasks": tasks}))
    return path


def sts(value: float, error: float = 0.01) -> dict[str, Any]:
    return {"main": value, "metric": "spearman", "n": 10, "standard_error": error}


def story(value: float) -> dict[str, Any]:
    return {"main": value, "metric": "infill perplexity", "n": 9, "standard_error": 0.1, "left_to_right": 23.0}


@pytest.fixture
def two(tmp_path: Path) -> list[Path]:
    return [
        results(tmp_path / "before.json", "base", sts15=sts(0.5), stsb=sts(0.7), rocstories=story(107)),
        results(tmp_path / "after.json", "runs/<tuned>", sts15=sts(0.7), stsb=sts(0.69), rocstories=story(14.4)),
    ]


def test_the_table_marks_best_noise_and_change(two: list[Path], tmp_path: Path) -> None:
    compare(two, tmp_path / "out" / "table.md")
    lines = (tmp_path / "out" / "table.md").read_text().splitlines()
    assert lines[0] == "| task | metric | base | <tuned> |"
    assert lines[2] == "| sts15 | spearman ↑ | 0.500 ± 0.010 | **0.700 ± 0.010** (+0.200) |"
    assert lines[3] == "| stsb | spearman ↑ | **0.700 ± 0.010** | 0.690 ± 0.010 ≈ (−0.010) |"
    assert lines[4] == "| rocstories | infill perplexity ↓ | 107.00 ± 0.100 | **14.40 ± 0.100** (−92.60) |"
    # What all models share is no one's best.
    assert lines[5] == "| rocstories: base, left to right | infill perplexity ↓ | 23.00 | 23.00 (+0.000) |"
    assert any(line.startswith("| STS mean of 2 | spearman ↑ | 0.600 ± 0.007 | **0.695") for line in lines)


def test_html_is_escaped_and_png_is_a_picture(two: list[Path], tmp_path: Path) -> None:
    compare(two, tmp_path / "table.html")
    page = (tmp_path / "table.html").read_text()
    assert "<th>&lt;tuned&gt;</th>" in page and "<b>0.700" in page
    compare(two, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert not list(tmp_path.glob(".part*"))


def test_figures_beside_the_main_one_have_a_direction_of_their_own(tmp_path: Path) -> None:
    repeats = {"main": 0.2, "metric": "Rep-4", "rep_sen": 0.1, "rep_sen_error": 0.02, "merged_rep_4": 0.4}
    paths = [
        results(tmp_path / "before.json", "a", rep=repeats, truthfulqa={"main": 0.4, "metric": "mc2", "mc1": 0.25}),
        results(tmp_path / "after.json", "b", rep={**repeats, "main": 0.1}, lambada={"main": 30, "metric": "accuracy"}),
    ]
    compare(paths, tmp_path / "table.md")
    lines = (tmp_path / "table.md").read_text().splitlines()
    assert "| rep | Rep-4 ↓ | 0.200 | **0.100** (−0.100) |" in lines
    assert "| rep: Rep-Sen | Rep-Sen ↓ | 0.100 ± 0.020 | 0.100 ± 0.020 (+0.000) |" in lines
    assert "| rep: merged | Rep-4 ↓ | 0.400 | 0.400 (+0.000) |" in lines
    assert "| truthfulqa: mc1 | mc1 ↑ | 0.250 | – |" in lines
    compare(paths, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_one_name_twice_is_told_apart_and_a_gap_is_a_dash(tmp_path: Path) -> None:
    paths = [results(tmp_path / f"{name}.json", "m", **{name: sts(0.5)}) for name in ("sts12", "sts13")]
    names, lines = comparison(paths)
    assert names == ["m (sts12)", "m (sts13)"]
    assert [[figure is None for figure in line.figures] for line in lines] == [[False, True], [True, False]]


def test_noise_is_two_standard_errors_of_the_difference() -> None:
    assert within_noise(Figure(0.50, 0.01), Figure(0.528, 0.01))
    assert not within_noise(Figure(0.50, 0.01), Figure(0.529, 0.01))
    assert not within_noise(Figure(0.50), Figure(0.51, 0.1))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("{", "not a results file"),
        ("[]", "not a results file"),
        ('{"model": "m"}', "no 'model' and 'tasks'"),
        ('{"model": "m", "tasks": {}}', "no finished task"),
        ('{"model": "m", "tasks": {"sts15": 3}}', "not a results file"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "results.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError) as error:
        compare([path], tmp_path / "table.md")
    assert words in str(error.value) and str(path) in str(error.value)
    assert not (tmp_path / "table.md").exists()


def test_a_wrong_suffix_is_refused(two: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.md, \.html, \.png"):
        compare(two, tmp_path / "table.pdf")
