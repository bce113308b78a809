"""``ambilm sheet`` and ``ambilm ratings``: what raters see and do not see, totals by hand, mistakes in one sentence."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sklearn.metrics import cohen_kappa_score

TASK = "rocstories:infills"


def results(path: Path, rows: dict[str, list[str]], count: int = 4) -> Path:
    """A results file as ``ambilm evaluate --tasks infills`` writes it."""
    texts = [
        {"left": f"Left {n}.", "right": f"Right {n}.", "removed": f"Truth {n}.", **{row: rows[row][n] for row in rows}}
        for n in range(count)
    ]
    entry = {"main": 0.1, "rows": {row: {} for row in rows}, "texts": texts}
    path.write_text(json.dumps({"model": "m", "tasks": {TASK: entry}}))
    return path


@pytest.fixture
def written(tmp_path: Path) -> list[Path]:
    """Two models over one base: the rows of the base are in both files; one text was written twice."""
    base = {"left_to_right": [f"On </script> {n}." for n in range(4)]}
    own = {"infill": [f"Own {n}." for n in range(3)] + ["On </script> 3."], **base}
    control = {"causal_adapted": [f"Control {n}." for n in range(4)], **base}
    return [results(tmp_path / "magnet.json", own), results(tmp_path / "control.json", control)]


def page_data(page: Path) -> dict[str, Any]:
    found = re.search(r'<script id="sheet" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def answer(path: Path, key: Path, rater: str, fitting: set[str], best: str) -> Path:
    """Answers of a rater who likes the rows named."""
    content = json.loads(key.read_text())
    answers = [
        {
            "fits": [bool(fitting & {name.split(":")[-1] for name in rows}) for rows in item],
            "best": next((place for place, rows in enumerate(item) if best in rows), None),
        }
        for item in content["items"]
    ]
    path.write_text(json.dumps({"sheet": content["sheet"], "rater": rater, "answers": answers}))
    return path


def test_the_sheet_is_blind_seeded_and_needs_nothing_else(run: Any, written: list[Path], tmp_path: Path) -> None:
    pages = [tmp_path / f"{name}.html" for name in ("a", "b", "c")]
    for page, seed in zip(pages, (0, 0, 1), strict=True):
        result = run("sheet", *written, "--output", page, "--seed", seed)
        assert result.exit_code == 0, result.output
    assert pages[0].read_bytes() == pages[1].read_bytes() != pages[2].read_bytes()
    text = pages[0].read_text()
    assert not re.search(r"infill|left_to_right|causal_adapted|magnet|control|removed", text.replace("Control ", ""))
    assert not re.search(r"https?://|src=|<link", text)

    shown, key = page_data(pages[0]), json.loads((tmp_path / "a.key.json").read_text())
    assert shown["sheet"] == key["sheet"] and len(shown["items"]) == len(key["items"]) == 4
    texts = {
        "Own": "magnet:infill",
        "On": "magnet:left_to_right",
        "Control": "control:causal_adapted",
        "Truth": "removed",
    }
    orders = set()
    for item, rows in zip(shown["items"], key["items"], strict=True):
        number = item["left"].split()[1].rstrip(".")
        assert item["right"] == f"Right {number}." and len(item["candidates"]) == len(rows) == (
            3 if number == "3" else 4
        )
        for filling, writers in zip(item["candidates"], rows, strict=True):
            expected = [texts[filling.split()[0]]]
            assert writers == (["magnet:infill", *expected] if filling == "On </script> 3." else expected)
        orders.add(tuple(filling.split()[0] for filling in item["candidates"]))
    assert len(orders) > 2 and [item["left"] for item in shown["items"]] != [f"Left {n}." for n in range(4)]

    assert run("sheet", *written, "-o", pages[2], "--rows", "infill,removed", "--limit", 2).exit_code == 0
    chosen = json.loads((tmp_path / "c.key.json").read_text())["items"]
    assert [sorted(name for rows in item for name in rows) for item in chosen] == [["magnet:infill", "removed"]] * 2


def test_totals_by_hand(run: Any, written: list[Path], tmp_path: Path) -> None:
    run("sheet", *written, "--output", tmp_path / "s.html")
    key = tmp_path / "s.key.json"
    first = answer(tmp_path / "1.json", key, "Ann", {"infill", "removed"}, "magnet:infill")
    second = answer(tmp_path / "2.json", key, "Bo", {"removed"}, "removed")
    result = run("ratings", key, first, second, "--output", tmp_path / "r.json")
    assert result.exit_code == 0, result.output
    found = json.loads((tmp_path / "r.json").read_text())
    rows = found["rows"]
    assert found["raters"] == ["Ann", "Bo"] and found["judgements"] == 2 * (4 + 4 + 4 + 3)
    assert rows["removed"]["fits"]["main"] == 1 and rows["removed"]["best"]["main"] == 0.5
    assert rows["magnet:infill"]["fits"]["main"] == 0.5 == rows["magnet:infill"]["best"]["main"]
    # Of the four texts the continuation shares one with the infill, and what was said of it.
    assert rows["magnet:left_to_right"]["fits"]["main"] == 0.5 / 4 == rows["magnet:left_to_right"]["best"]["main"]
    assert rows["control:causal_adapted"]["fits"]["main"] == 0 and rows["removed"]["fits"]["confidence_95"][0] < 0.6
    ann = [True, True, False, False] * 3 + [True, True, False]
    bo = [False, True, False, False] * 3 + [False, True, False]
    assert found["agreement"] == pytest.approx(11 / 15) and found["kappa"] == pytest.approx(cohen_kappa_score(ann, bo))

    alone = run("ratings", key, first, "--output", tmp_path / "r.md")
    table = (tmp_path / "r.md").read_text()
    assert alone.stdout == table and "agree" not in table and f"{TASK}: raters 1, judgements 15." in table
    assert "\n| magnet:infill | 100 | 51 to 100 | 100 | 4 |\n" in table


def test_mistakes_are_one_sentence(refused: Callable[..., str], run: Any, written: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "s.html"
    other = results(tmp_path / "short.json", {"infill": ["A.", "B."]}, 2)
    assert "short.json fills other texts than" in refused("sheet", written[0], other, "-o", page)
    assert "has no written infills of wikitext2:infills" in refused(
        "sheet", written[0], "-o", page, "--task", "wikitext2:infills"
    )
    assert "--rows magic not written; choose two or more of infill, left_to_right, removed" in refused(
        "sheet", written[0], "-o", page, "--rows", "infill,magic"
    )
    assert "one row alone" in refused("sheet", written[0], "-o", page, "--rows", "infill")
    assert "does not end in .html" in refused("sheet", written[0], "-o", tmp_path / "s.txt")
    assert not page.exists()

    run("sheet", *written, "--output", page)
    key, output = tmp_path / "s.key.json", tmp_path / "r.md"
    good = answer(tmp_path / "1.json", key, "Ann", {"removed"}, "removed")
    assert "'Ann' answered twice" in refused("ratings", key, good, good, "-o", output)
    assert "is no key that `ambilm sheet` wrote" in refused("ratings", good, good, "-o", output)
    assert "is no file of answers saved from a sheet" in refused("ratings", key, key, "-o", output)
    content = json.loads(good.read_text())
    for change, words in (
        ({"sheet": "0"}, "answers another sheet (0)"),
        ({"answers": content["answers"][:1]}, "answers another sheet"),
        ({"answers": [{"fits": [True], "best": 3}]}, "best is 3, but there are 1 fillings"),
        ({"rater": ""}, "'rater': string should have at least 1 character"),
        (
            {"answers": [{"fits": [None] * len(item["fits"]), "best": None} for item in content["answers"]]},
            "no judgement at all",
        ),
    ):
        bad = tmp_path / "bad.json"
        bad.write_text(json.dumps({**content, **change}))
        assert words in refused("ratings", key, bad, "-o", output)
