"""Recipe ``ambi``: a real teacher beside MAGNET's objectives."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from ambilm.errors import UserError
from ambilm.model.encoding import PromptedTokenizer
from ambilm.model.settings import PROMPT_EOL
from ambilm.objectives import plain_view
from ambilm.recipes import Ambi
from ambilm.training import adapt
from ambilm.training.losses import StepViews
from ambilm.training.teacher import TaughtViews, Teacher

if TYPE_CHECKING:
    from ambilm import AmbiLM

TEACHER = "all-minilm-l6-v2"
TEXTS = ["A man is playing a guitar.", "Stocks fell on Monday.", " A man  plays the guitar.\n", "Ünï 'code' \"x\""]


@pytest.fixture(scope="module")
def teacher() -> Teacher:
    return Teacher(TEACHER)


@pytest.mark.parametrize("prompt", ["", "Read:", PROMPT_EOL, "{text} again: {text} end"])
def test_the_text_comes_back_from_its_tokens(smollm2: "AmbiLM", prompt: str) -> None:
    prompted = PromptedTokenizer(smollm2.tokenizer, prompt, 64, start=1, sink=True, end=2)
    assert [prompted.text_of(item.ids) for item in prompted(TEXTS)] == TEXTS
    cut = prompted.text_of(prompted([" ".join(["word"] * 200)])[0].ids)
    assert cut.startswith("word word") and set(cut.split()) == {"word"}


def test_the_teacher_reads_what_the_student_reads(smollm2: "AmbiLM", teacher: Teacher) -> None:
    prompted = PromptedTokenizer(smollm2.tokenizer, PROMPT_EOL, 64, start=1, sink=True, end=2)
    views = [plain_view(item.ids) for item in prompted(TEXTS)]
    taught = TaughtViews(lambda step: StepViews([], views[:2], views[2:]), teacher, prompted)(0).teacher
    assert taught is not None
    expected = np.asarray(teacher.model.encode(TEXTS))
    np.testing.assert_allclose(taught.numpy(), expected, atol=1e-5)
    unit = torch.nn.functional.normalize(taught, dim=1)
    assert unit[0] @ unit[2] > 0.9 > 0.3 > unit[0] @ unit[1]


def test_the_distillation_falls(tiny_model: Path, text_file: str, pair_file: str, tmp_path: Path) -> None:
    recipe = Ambi(
        stage1_steps=1, stage2_steps=24, texts_per_step=2, pairs_per_step=8, teacher=TEACHER, learning_rate=0.01, rank=4,
        lambda_distillation=3.0,
    )  # fmt: skip
    output = adapt(recipe, str(tiny_model), [text_file], tmp_path / "run", [pair_file], dtype="float32")
    log = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
    assert "distillation" not in log[0]
    parts = [line["distillation"] for line in log[1:]]
    assert np.mean(parts[-5:]) < 0.8 * np.mean(parts[:5])


def test_without_a_teacher_nothing_is_distilled(
    tiny_model: Path, text_file: str, pair_file: str, tmp_path: Path
) -> None:
    recipe = Ambi(stage1_steps=1, stage2_steps=1, texts_per_step=2, pairs_per_step=2)
    output = adapt(recipe, str(tiny_model), [text_file], tmp_path / "run", [pair_file], dtype="float32")
    assert "distillation" not in (output / "log.jsonl").read_text()


def test_a_teacher_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="teacher=a/b/c does not exist"):
        Teacher("a/b/c")
    with pytest.raises(UserError, match="cannot be loaded by sentence-transformers"):
        Teacher(str(tmp_path))
