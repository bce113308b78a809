"""``ambilm reproduce ubmoe`` on the real model: everything in miniature, stopped and gone on with."""

import gzip
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import typer

from ambilm.cli import app
from ambilm.cli.adapt import find_recipe, make_recipe
from ambilm.errors import UserError
from ambilm.reproduce import UbmoeSettings, published, reproduce_ubmoe
from ambilm.reproduce.run import cost, minutes
from ambilm.reproduce.steps import Evaluation, Training
from ambilm.reproduce.ubmoe import UbmoeExperiment
from ambilm.reproduce.ubmoe_report import sections

ROWS = 60
SMALL = UbmoeSettings(
    modules=("ffn", "att"), seeds=1, expert_steps=1, pairs_per_step=2, gate_steps=1, conversations_per_step=1, limit=2,
    dependence_limit=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def few(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first rows of each part of the files that the experiment reads; reading all of them takes minutes."""
    folder = tmp_path_factory.mktemp("data")
    stems = ("nli_triplets", "sft", "wikitext2", "lambada", "truthfulqa", "mmlu", "mcq_commonsense", "stsb", "sickr")
    for stem in stems:
        name, counts, kept = f"{stem}.jsonl.gz", Counter[str](), []
        with gzip.open(data_dir / name, "rt") as rows:
            for line in rows:
                row = json.loads(line)
                part = f"{row.get('task')} {row['split']}"
                counts[part] += 1
                if counts[part] <= ROWS:
                    kept.append(line)
        with gzip.open(folder / name, "wt") as file:
            file.writelines(kept)
    return folder


@pytest.fixture(scope="module")
def finished(few: Path, tmp_path_factory: pytest.TempPathFactory) -> UbmoeExperiment:
    """The small experiment, run to its end with the report written."""
    output = tmp_path_factory.mktemp("reproduce") / "run"
    reproduce_ubmoe(SMALL, "smollm2-135m", few, output)
    return UbmoeExperiment(SMALL, "smollm2-135m", few, output)


def test_the_report_holds_every_table_beside_the_papers_rows(finished: UbmoeExperiment) -> None:
    text = (finished.output / "ubmoe.md").read_text()
    for section in sections(finished):
        assert f"## {section.title}" in text
        widths = {len(row) for row in section.rows}
        assert len(widths) == 1, section.title
        assert all(isinstance(cell, str) and cell for row in section.rows for cell in row)
    for model, figures in published.STS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {model} (paper)"))
        assert f"{figures[0]:.2f}" in row
    page = (finished.output / "ubmoe.html").read_text()
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert f'src="{picture}"' in page
        assert (finished.output / picture).read_bytes().startswith(b"\x89PNG")
    assert not (finished.output / "rehearsal").exists()


def test_the_figures_are_those_of_the_result_files(finished: UbmoeExperiment) -> None:
    text = (finished.output / "ubmoe.md").read_text()
    tuned = json.loads((finished.output / "results" / "ffn-0-generation.json").read_text())["tasks"]["perplexity"][
        "main"
    ]
    base = json.loads((finished.output / "results" / "base-generation.json").read_text())["tasks"]["perplexity"]["main"]
    assert f"| ffn | {tuned:.2f} |" in text
    assert f"| base | {base:.2f} |" in text


def test_what_is_done_is_kept_and_the_rest_done_again(finished: UbmoeExperiment) -> None:
    steps = finished.steps()
    assert all(step.done for step in steps)
    lost = finished.base_dependence.output
    before = {step.output: step.output.stat().st_mtime_ns for step in steps}
    figures = json.loads(lost.read_text())["bins"]
    lost.unlink()
    reproduce_ubmoe(SMALL, "smollm2-135m", finished.data, finished.output)
    assert json.loads(lost.read_text())["bins"] == figures
    assert all(path.stat().st_mtime_ns == time for path, time in before.items() if path != lost)


def test_commands_by_hand_do_the_same(finished: UbmoeExperiment) -> None:
    group = typer.main.get_command(app)
    for step in finished.steps():
        program, name, *arguments = shlex.split(step.command())
        if program != "ambilm":
            continue
        parsed = group.commands[name].make_context(name, arguments).params  # type: ignore[attr-defined]
        if isinstance(step, Training):
            recipe = make_recipe(find_recipe(parsed["recipe"]), parsed["settings"], parsed["steps"], parsed["seed"])
            assert recipe == step.recipe
            assert (parsed["text"] or [], parsed["pairs"] or []) == (list(step.text), list(step.pairs))
        if isinstance(step, Evaluation):
            assert (parsed["tasks"], parsed["limit"]) == (",".join(step.tasks), step.limit)
            assert parsed["weights"].value == step.weights
        assert parsed.get("data") is None or str(finished.data) in str(parsed["data"])


def test_another_experiment_in_the_directory_is_refused(finished: UbmoeExperiment) -> None:
    with pytest.raises(UserError, match="holds an experiment with another model or settings"):
        reproduce_ubmoe(SMALL.model_copy(update={"limit": 3}), "smollm2-135m", finished.data, finished.output)


def test_the_cost_is_the_pace_of_the_rehearsal(finished: UbmoeExperiment, capsys: pytest.CaptureFixture[str]) -> None:
    training = next(step for step in finished.steps() if isinstance(step, Training))
    longer = type(training)(
        output=training.output, kind=training.kind, recipe=training.recipe.model_copy(update={"steps": 7200}),
        model=training.model,
    )  # fmt: skip
    said = cost([longer], [training])
    assert minutes(7200 * training.seconds()) in said
    assert "kept: ffn-0" in capsys.readouterr().err


def test_missing_data_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no nli_triplets"):
        UbmoeExperiment(SMALL, "smollm2-135m", tmp_path, tmp_path / "run")


def test_settings_that_make_no_experiment() -> None:
    with pytest.raises(ValueError, match="ffn is missing"):
        UbmoeSettings(modules="att")
    with pytest.raises(ValueError, match="twice"):
        UbmoeSettings(modules="ffn,ffn")
    with pytest.raises(UserError, match="Unknown module group 'nothing'"):
        UbmoeSettings(modules="ffn,nothing")


def test_tasks_missing_in_a_results_file_are_still_to_do(tmp_path: Path) -> None:
    output = tmp_path / "x.json"
    step = Evaluation(
        output=output, kind="similarity", model="m", weights="by_job", tasks=("stsb", "sickr"), data=tmp_path, limit=2
    )
    assert not step.done
    output.write_text(json.dumps({"tasks": {"stsb": {}}}))
    assert not step.done
    output.write_text(json.dumps({"tasks": {"stsb": {}, "sickr": {}}}))
    assert step.done
