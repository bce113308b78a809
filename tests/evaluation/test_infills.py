"""Written infills on the real SmolLM2-135M: the prompts, the rows, the texts that are kept."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ambilm.errors import UserError
from ambilm.evaluation import evaluate, infills
from ambilm.evaluation.infilling import Removal, remove_sentence
from ambilm.evaluation.infills import SHOT_WORDS, figures, first_line, prompt

if TYPE_CHECKING:
    from ambilm import AmbiLM

STORY = ["Tom lost his keys.", "He looked under the bed.", "Then he looked in the car.", "They were there.", "He sang."]


@pytest.fixture
def removal(smollm2: "AmbiLM") -> Removal:
    found = remove_sentence(smollm2, STORY, 2)
    assert found is not None
    return found


def test_prompts_of_chat_and_base_models(smollm2: "AmbiLM", removal: Removal, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Removal([], 0, 0, "far " * 100 + "near", "the removed", "near " + "far " * 100)
    chat = prompt(smollm2, removal, [long])
    assert chat.count("<|im_start|>user") == 2 and chat.count("<|im_start|>assistant") == 2
    assert "near [BLANK] near" in chat and chat.count("far") == 2 * (SHOT_WORDS - 1) and "the removed<|im_end|>" in chat
    assert STORY[2] not in chat and f"{STORY[1]} [BLANK] {STORY[3]}" in chat
    monkeypatch.setattr(smollm2.tokenizer, "chat_template", None)
    assert prompt(smollm2, removal, []) == f"{infills.QUESTION}{removal.blanked}\nMissing:"
    assert f"near {'far ' * (SHOT_WORDS - 1)}".strip() + "\nMissing: the removed\n\n" in prompt(
        smollm2, removal, [long]
    )


def test_answers_end_where_a_line_or_a_sentence_ends() -> None:
    assert first_line("\n He ran. She fell.\nText: more", True) == "He ran."
    assert first_line("He ran. She fell.\nText: more", False) == "He ran. She fell."
    assert first_line(" \n", True) == first_line("", False) == ""


def test_similarity_of_the_same_and_of_other_texts(smollm2: "AmbiLM") -> None:
    found = figures(smollm2, STORY, STORY)
    assert found["similarity"] == pytest.approx(1, abs=1e-5) and found["rouge_l"] == 1
    assert 0 < found["similarity_elsewhere"] < 0.95
    paraphrase, stranger = (
        figures(smollm2, [text, "A."], ["A man plays a guitar.", "A."])["similarity"]
        for text in ("Someone plays an instrument.", "The stock market fell.")
    )
    assert paraphrase > stranger


def test_rows_and_texts_of_real_stories(
    smollm2: "AmbiLM", data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infills, "FIXED_GAP", 8)
    monkeypatch.setattr(infills, "SHOTS", 2)

    def entry(limit: int) -> dict[str, Any]:
        tasks = evaluate(smollm2, "infills", [data_dir], tmp_path / f"{limit}.json", limit=limit, progress=False)[
            "tasks"
        ]
        assert list(tasks) == ["rocstories:infills", "wikitext2:infills"]
        return tasks["rocstories:infills"]

    found = entry(2)
    assert list(found["rows"]) == ["infill", "left_to_right", "zero_shot", "five_shot"]
    assert found["n"] == len(found["texts"]) == 2 and found["main"] == pytest.approx(found["rows"]["infill"]["rouge_l"])
    first = found["texts"][0]
    assert first["infill"] == smollm2.infill(f"{first['left']} [BLANK] {first['right'].strip()}", max_tokens=8).spans[0]
    assert first["removed"] not in first["left"] + first["right"] and first["zero_shot"] != first["five_shot"]

    monkeypatch.setattr(smollm2, "settings", smollm2.settings.model_copy(update={"recipe": "causal_control"}))
    control = evaluate(smollm2, "rocstories:infills", [data_dir], tmp_path / "c.json", limit=2, progress=False)["tasks"]
    rows = control["rocstories:infills"]["texts"]
    assert [text["causal_adapted"] for text in rows] == [text["left_to_right"] for text in found["texts"]]
    assert [text["removed"] for text in rows] == [text["removed"] for text in found["texts"]] and "infill" not in rows[
        0
    ]


def test_too_few_texts_are_explained(smollm2: "AmbiLM", tmp_path: Path) -> None:
    (tmp_path / "rocstories.jsonl").write_text((json.dumps({"sentences": STORY, "split": "valid"}) + "\n") * 3)
    with pytest.raises(UserError, match=r"rocstories\.jsonl: 3 texts .* 5 worked examples and 2 to fill"):
        evaluate(smollm2, "rocstories:infills", [tmp_path], tmp_path / "r.json", progress=False)
