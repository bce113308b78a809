"""UBMoE's training: conversations with their answers marked, only gates trained, expert 1 from a run or made first."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.training.conftest import TALK

from ambilm import AmbiLM
from ambilm.errors import UserError
from ambilm.recipes import Bidirectional, Ubmoe
from ambilm.training import adapt
from ambilm.training.conversations import ConversationStore, conversation_tokens, pieces_of, rendered
from ambilm.training.trainer import Interrupted, Trainer


def recipe(**changes: Any) -> Ubmoe:
    return Ubmoe(**{"steps": 3, "conversations_per_step": 2, "checkpoint_every": 1, "expert_steps": 2, **changes})


@pytest.fixture(scope="module")
def many_pairs(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    file.write_text(
        "\n".join(json.dumps({"anchor": f"A man {i} eats.", "positive": f"He {i} eats."}) for i in range(70))
    )
    return str(file)


@pytest.fixture(scope="module")
def expert(tiny_model: Path, many_pairs: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = Bidirectional(steps=2, pairs_per_step=8, rank=4, learning_rate=0.05)
    return adapt(
        settings, str(tiny_model), [], tmp_path_factory.mktemp("expert") / "run", pairs=[many_pairs], dtype="float32"
    )


def test_answers_are_what_the_assistant_says(smollm2: AmbiLM) -> None:
    tokenizer = smollm2.tokenizer
    pieces = pieces_of(tokenizer, TALK)
    assert pieces is not None
    assert [text for text, is_answer in pieces if is_answer] == ["It is 4.<|im_end|>", " 6, of course.\n<|im_end|>"]
    assert rendered(tokenizer, TALK).startswith("".join(text for text, _ in pieces))
    ids, answers = conversation_tokens(tokenizer, TALK, []) or ([], [])
    assert [tokenizer.decode(ids[start:stop]) for start, stop in answers] == [
        "It is 4.<|im_end|>",
        " 6, of course.\n<|im_end|>",
    ]
    assert rendered(tokenizer, TALK).startswith(str(tokenizer.decode(ids)))


def test_a_tokenizer_without_a_template_reads_lines(smollm2: AmbiLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2.tokenizer, "chat_template", None)
    pieces = pieces_of(smollm2.tokenizer, TALK[:2])
    assert pieces == [("user: What is 2 + 2?\nassistant:", False), (" It is 4.", True)]


def test_what_cannot_be_learned_from_is_skipped_and_counted(smollm2: AmbiLM, tmp_path: Path) -> None:
    long = [{"role": "user", "content": "word " * 90}, TALK[1]]
    odd = [TALK[1], {"role": "assistant", "content": "Again."}]
    store = ConversationStore.build(
        [TALK, TALK[:1], long, odd], smollm2.tokenizer, tmp_path / "store", max_length=64, fingerprint="", start_token=0
    )
    assert len(store) == 2 and store.skipped == 2
    ids, answers = store[0]
    assert len(ids) <= 64 and answers[-1][1] == len(ids)


def test_only_the_gates_learn(tiny_model: Path, expert: Path, talk_file: str, tmp_path: Path) -> None:
    output = adapt(recipe(learning_rate=0.1), str(expert), [talk_file], tmp_path / "ubmoe", dtype="float32")
    base, bidirectional, model = (
        AmbiLM.from_pretrained(name, dtype="float32") for name in (tiny_model, expert, output)
    )
    assert model.settings.recipe == "ubmoe" and model.mixture is not None and model.adapter is None
    ids = torch.arange(100, 140)[None]
    with torch.inference_mode():
        assert torch.equal(model.base(ids).logits, base.base(ids).logits)
    texts = ["A man eats.", "He sleeps in the rain."]
    assert model.encode(texts) == pytest.approx(bidirectional.encode(texts), abs=2e-5)
    untrained = adapt(recipe(learning_rate=1e-12), str(expert), [talk_file], tmp_path / "untrained")
    first, last = (load_file(run / "mixture" / "mixture.safetensors") for run in (untrained, output))
    for name, value in first.items():
        assert torch.allclose(value, last[name], atol=1e-6) != (".gate." in name)
    line = json.loads((output / "log.jsonl").read_text().splitlines()[0])
    assert line["answer"] > 0 and 1 <= line["balance"] <= 2
    assert line["loss"] == pytest.approx(line["answer"] + 0.001 * line["balance"], rel=1e-5)


def test_expert_1_is_made_first_and_all_of_it_resumes(
    tiny_model: Path, talk_file: str, many_pairs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = adapt(recipe(), str(tiny_model), [talk_file], tmp_path / "whole", pairs=[many_pairs])
    stopped = tmp_path / "stopped"
    step = Trainer.step
    for stop_in, at in (("bidirectional", 1), ("ubmoe", 1)):

        def stop(trainer: Trainer, number: int, stop_in: str = stop_in, at: int = at) -> Any:
            if trainer.recipe.name == stop_in and number == at:
                raise Interrupted
            return step(trainer, number)

        monkeypatch.setattr(Trainer, "step", stop)
        with pytest.raises(Interrupted):
            adapt(recipe(), str(tiny_model), [talk_file], stopped, pairs=[many_pairs], resume=stop_in == "ubmoe")
    monkeypatch.setattr(Trainer, "step", step)
    adapt(recipe(), str(tiny_model), [talk_file], stopped, pairs=[many_pairs], resume=True)
    left, right = (load_file(run / "mixture" / "mixture.safetensors") for run in (whole, stopped))
    assert left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
    assert AmbiLM.from_pretrained(whole / "bidirectional").settings.recipe == "bidirectional"


def test_mistakes_are_one_sentence(
    tiny_model: Path, expert: Path, talk_file: str, text_file: str, tmp_path: Path
) -> None:
    def refused(words: str, model: Path, text: str, **changes: Any) -> None:
        with pytest.raises(UserError, match=words):
            adapt(recipe(**changes), str(model), [text] if text else [], tmp_path / "new")
        assert not (tmp_path / "new").exists()

    refused("needs expert 1", tiny_model, talk_file)
    refused("give --text FILE", expert, "")
    refused(r"suffix that is not read here", expert, text_file)
    refused("lower conversations_per_step", expert, talk_file, conversations_per_step=9)
    (tmp_path / "odd.jsonl").write_text(json.dumps({"messages": [{"role": "user"}]}))
    refused("odd.jsonl, line 1 has a message without", expert, str(tmp_path / "odd.jsonl"))
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "no talk"}))
    refused("text.jsonl, line 1 has no conversation", expert, str(tmp_path / "text.jsonl"))
    done = adapt(recipe(), str(expert), [talk_file], tmp_path / "done")
    refused("holds a mixture already", done, talk_file)
