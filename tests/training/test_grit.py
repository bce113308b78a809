"""GRIT: its step is the contrastive one and the answers' one, added with their weights."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.conftest import TALK

from ambilm import AmbiLM
from ambilm.errors import UserError
from ambilm.objectives import answers_view
from ambilm.recipes import Grit
from ambilm.training import adapt
from ambilm.training.conversations import conversation_tokens
from ambilm.training.losses import LossSettings, StepViews, packed_losses
from ambilm.training.step_views import compared


def recipe(**changes: Any) -> Grit:
    small = {"steps": 2, "conversations_per_step": 2, "pairs_per_step": 4, "rank": 4, "learning_rate": 0.02}
    return Grit(**{**small, **changes})


def test_one_pass_equals_both_apart(smollm2: AmbiLM) -> None:
    """Answers and pairs share a packed row, and see nothing of one another."""
    talk = [answers_view(*(conversation_tokens(smollm2.tokenizer, TALK, []) or ([], [])))]
    texts = ("A man eats.", "He is eating.", "It rains.", "Rain falls on the town.", "A cat sleeps.")
    ids = [np.array([0, *smollm2.tokenizer(text)["input_ids"]]) for text in texts]  # type: ignore[misc]
    pairs = compared([], [(ids[0], ids[1], ids[4]), (ids[2], ids[3], None)])
    both = StepViews(talk, pairs.anchors, pairs.positives, pairs.negatives)
    settings = LossSettings({"answer": 0.5, "sscl": 2.0}, temperature=0.02, pooling="mean")
    with torch.no_grad():
        joint, answers, contrast = (
            packed_losses(smollm2.view, views, settings) for views in (both, StepViews(talk), pairs)
        )
    assert joint.parts["answer"].item() == pytest.approx(answers.parts["answer"].item(), abs=1e-4)
    assert joint.parts["sscl"].item() == pytest.approx(contrast.parts["sscl"].item(), abs=1e-3)
    assert joint.total.item() == pytest.approx(0.5 * joint.parts["answer"].item() + 2 * joint.parts["sscl"].item())


def test_a_weight_of_zero_leaves_the_other_loss_alone(
    tiny_model: Path, talk_file: str, pair_file: str, tmp_path: Path
) -> None:
    def trained(**weights: float) -> tuple[AmbiLM, list[dict[str, float]]]:
        output = tmp_path / "-".join(weights)
        adapt(recipe(steps=12, **weights), str(tiny_model), [talk_file], output, [pair_file], dtype="float32")
        lines = [json.loads(line) for line in (output / "log.jsonl").read_text().splitlines()]
        return AmbiLM.from_pretrained(output, dtype="float32"), lines

    embeds, answers = trained(lambda_answer=0.0), trained(lambda_contrastive=0.0)
    for name, learned, other in (("sscl", embeds, answers), ("answer", answers, embeds)):
        mine, theirs = ([line[name] for line in lines[-4:]] for _, lines in (learned, other))
        assert np.mean(mine) < np.mean(theirs) - 0.05
    model = embeds[0]
    assert (model.settings.recipe, model.settings.layout, model.settings.pooling) == ("grit", "bidirectional", "mean")


def test_mistakes_are_one_sentence(tiny_model: Path, talk_file: str, pair_file: str, tmp_path: Path) -> None:
    def refused(words: str, text: list[str], pairs: list[str], **changes: Any) -> None:
        with pytest.raises(UserError, match=words):
            adapt(recipe(**changes), str(tiny_model), text, tmp_path / "new", pairs)
        assert not (tmp_path / "new").exists()

    refused("needs --pairs FILE", [talk_file], [])
    refused("give --text FILE", [], [pair_file])
    refused("lower pairs_per_step", [talk_file], [pair_file], pairs_per_step=99)
    refused("lower conversations_per_step", [talk_file], [pair_file], conversations_per_step=99)
    with pytest.raises(ValueError, match="views"):
        recipe(views="dropout")
