"""Conversations whose prompts are seen left to right or both ways: the masks are what they say, and the draws."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.conftest import TALK

from ambilm import AmbiLM
from ambilm.model.forward import hidden_states
from ambilm.objectives import CLM, View, answers_view
from ambilm.objectives.views import NO_TARGET
from ambilm.recipes import Instruction
from ambilm.training import adapt
from ambilm.training.batch import packed_batch
from ambilm.training.conversations import ConversationStore, conversation_tokens
from ambilm.training.step_views import AnswerViews


@pytest.fixture(scope="module")
def store(smollm2: AmbiLM, tmp_path_factory: pytest.TempPathFactory) -> ConversationStore:
    directory = tmp_path_factory.mktemp("store")
    talks = [TALK, TALK[:2], TALK]
    return ConversationStore.build(talks, smollm2.tokenizer, directory, max_length=128, fingerprint="", start_token=0)


def states(model: AmbiLM, view: View, sink: bool) -> torch.Tensor:
    """(length, hidden) of the view, packed behind another one."""
    other = answers_view(np.arange(100, 109), [(4, 9)])
    batch = packed_batch([other, view], "cpu", dropout=0.0, sink=sink)
    with torch.inference_mode():
        return hidden_states(model.view, batch.ids, batch.layout)[0, len(other) :]


@pytest.mark.parametrize(("prefix", "sink"), [(False, True), (True, True), (True, False)])
def test_the_prompt_sees_what_the_mask_says(smollm2: AmbiLM, prefix: bool, sink: bool) -> None:
    ids, answers = conversation_tokens(smollm2.tokenizer, TALK, []) or ([], [])
    start, stop = answers[-1]
    made = [answers_view(row, [(start, stop)], prefix=start if prefix else 0) for row in changed(ids[:stop], start)]
    plain, in_prompt, in_answer = (states(smollm2, view, sink) for view in made)
    # (length,): how far each place moves when the prompt's last token changes
    moved = (plain - in_prompt).abs().amax(-1)
    earlier = moved[int(sink) : start - 1]
    assert bool((earlier > 1e-2).all()) if prefix else bool((earlier < 1e-4).all())
    assert not sink or moved[0] < 1e-4
    assert (moved[start:] > 1e-2).all()
    # nothing that is predicted sees what it predicts, nor what follows
    place = start + 2
    assert (plain - in_answer).abs().amax(-1)[:place].max() < 1e-4


def changed(ids: list[int], start: int) -> list[list[int]]:
    """The ids; with another last token of the prompt; with another third token of the answer that begins at ``start``."""
    return [ids] + [[*ids[:place], ids[place] + 1, *ids[place + 1 :]] for place in (start - 1, start + 2)]


def test_one_drawn_answer_follows_a_prefix(store: ConversationStore) -> None:
    views = AnswerViews(store, seed=0, per_step=3, prefix_share=1.0)
    starts = set()
    for step in range(8):
        for view, again in zip(views(step), views(step), strict=True):
            asked = np.flatnonzero(view.objective == CLM)
            prefix = int((~view.is_span).sum())
            starts.add(prefix)
            np.testing.assert_array_equal(asked, np.arange(prefix - 1, len(view) - 1))
            np.testing.assert_array_equal(view.targets[asked], view.ids[asked + 1])
            assert not view.is_span[:prefix].any() and (view.targets[-1], prefix > 0) == (NO_TARGET, True)
            np.testing.assert_array_equal(view.ids, again.ids)
    assert starts == {first for number in range(2) for first, _ in store[number][1]} and len(starts) == 2


def test_mixed_draws_both_and_causal_asks_for_every_answer(store: ConversationStore) -> None:
    mixed = AnswerViews(store, seed=0, per_step=3, prefix_share=0.5)
    causal = [bool(view.is_span.all()) for step in range(20) for view in mixed(step)]
    assert 15 < sum(causal) < 45
    assert all(view.is_span.all() for view in AnswerViews(store, 0, 3)(0))
    tokens = sum(int((view.objective == CLM).sum()) for view in AnswerViews(store, 0, 3)(0))
    assert tokens == sum(stop - start for number in range(3) for start, stop in store[number][1])


def test_the_masks_learn_different_things(tiny_model: Path, talk_file: str, tmp_path: Path) -> None:
    """From the same step on the same conversations each mask leaves another adapter; the model remembers its sink."""
    vectors = []
    for mask, sink in (("causal", True), ("prefix", True), ("prefix", False)):
        recipe = Instruction(steps=1, mask=mask, sink=sink, conversations_per_step=2, learning_rate=0.05)  # type: ignore[arg-type]
        model = AmbiLM.from_pretrained(
            adapt(recipe, str(tiny_model), [talk_file], tmp_path / f"{mask}{sink}"), "float32"
        )
        assert (model.settings.recipe, model.settings.sink) == ("instruction", sink)
        vectors.append(model.encode("A man eats."))
    for one, other in ((0, 1), (1, 2)):
        assert np.abs(vectors[one] - vectors[other]).max() > 1e-4
