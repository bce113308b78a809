"""Token probes: figures against seqeval's own, the head, and the tasks on the real SmolLM2-135M."""

import json
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from seqeval.metrics import accuracy_score, f1_score

from ambilm.errors import UserError
from ambilm.evaluation import evaluate
from ambilm.evaluation.data import NerSentence
from ambilm.evaluation.task import Run
from ambilm.evaluation.tasks import expand
from ambilm.evaluation.token_head import LinearHead, word_features
from ambilm.evaluation.token_probe import Part, figures, majorities, named_spans, part_features, words

if TYPE_CHECKING:
    from ambilm import AmbiLM

TAGS = ("O", "O", "B-PER", "I-PER", "B-LOC", "I-LOC")
ROW: dict[str, Any] = {
    "tokens": ["Ann", "sees", "Rome"],
    "pos": ["NNP", "VBZ", "NNP"],
    "chunk": ["B-NP", "B-VP", "B-NP"],
}
NAMES: dict[str, Any] = {**ROW, "ner": ["B-PER", "O", "B-LOC"]}


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path.parent


def tagging(seed: int) -> list[list[str]]:
    generator = random.Random(seed)
    return [generator.choices(TAGS, k=length) for length in range(1, 30)]


def test_figures_are_seqevals() -> None:
    heads, gold = [tagging(seed) for seed in (1, 2, 3)], tagging(4)
    for spans, theirs in ((named_spans(), f1_score), (words, accuracy_score)):
        each = [theirs(gold, tags) for tags in heads]
        ours = figures(heads, gold, spans, seed=0)
        assert ours["main"] == pytest.approx(np.mean(each))
        assert ours["head_error"] == pytest.approx(np.std(each, ddof=1) / 3**0.5)
        assert ours["confidence_95"][0] < ours["main"] < ours["confidence_95"][1] and ours["standard_error"] > 0
    assert figures([gold] * 3, gold, named_spans(), 0)["main"] == 1


def test_majorities_by_hand() -> None:
    train = [NerSentence.model_validate({**NAMES, "split": "train"})] * 2
    train.append(NerSentence(tokens=["Rome", "is", "old"], ner=["O", "O", "O"], split="train"))  # type: ignore[call-arg]
    test = [NerSentence(tokens=["Rome", "calls", "Ann"], ner=["O", "O", "O"], split="dev")]  # type: ignore[call-arg]
    found = majorities(Part(Path(), "train", [*train]), Part(Path(), "dev", [*test]))
    assert found == {"majority_tag": [["O", "O", "O"]], "word_majority": [["B-LOC", "O", "B-PER"]]}


def test_the_head_is_linear_scaled_and_seeded() -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(10500, 16)).astype(np.float32)
    labels = (features @ generator.normal(size=(16, 3))).argmax(axis=1)
    features *= np.logspace(-3, 3, 16, dtype=np.float32)  # some dimensions shout
    before = torch.random.get_rng_state()
    head = LinearHead(features[:10000], labels[:10000], 3, seed=1)
    assert torch.equal(before, torch.random.get_rng_state())
    assert (head.predict(features[10000:]) == labels[10000:]).mean() > 0.93
    again, other = (LinearHead(features[:10000], labels[:10000], 3, seed).linear.weight for seed in (1, 2))
    assert torch.equal(again, head.linear.weight) and not torch.equal(other, head.linear.weight)


def test_features_are_encode_tokens_and_are_kept(smollm2: "AmbiLM", tmp_path: Path) -> None:
    sentences = [["Rome", "is", "old"], ["Ann", "left"]]
    options: dict[str, Any] = {"layout": "bidirectional", "shift": 1}
    features = word_features(smollm2, sentences, tmp_path / "f.npy", **options)
    np.testing.assert_array_equal(features, np.concatenate(smollm2.encode_tokens(sentences, **options)))
    assert isinstance(features, np.memmap) and features.dtype == np.float32
    doubled = features * 2
    np.save(tmp_path / "f.npy", doubled)
    np.testing.assert_array_equal(word_features(smollm2, sentences, tmp_path / "f.npy"), doubled)


def test_real_rows_of_conll2003(smollm2: "AmbiLM", data_dir: Path, tmp_path: Path) -> None:
    names = "conll2003:pos,conll2003:ner,conll2003:pos@shift-1"
    tasks = evaluate(smollm2, names, [data_dir], tmp_path / "r.json", limit=60, progress=False)["tasks"]
    own, names, earlier = tasks.values()
    assert own["n"] == own["train_sentences"] == 60 and own["split"] == "dev" and own["metric"] == "accuracy"
    # One token earlier a causal model has not seen the word.
    assert own["main"] > 0.65 > own["word_majority"] > own["majority_tag"] and own["main"] > earlier["main"] + 0.2
    assert (
        names["metric"] == "span F1"
        and names["accuracy"] > names["main"] > names["word_majority"] > 0 == names["majority_tag"]
    )
    assert 0.6 < names["majority_tag_accuracy"] < 0.95
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_base_rows_leave_the_models_settings_aside(smollm2: "AmbiLM", tmp_path: Path) -> None:
    settings = smollm2.settings.model_copy(update={"layout": "bidirectional", "word_shift": 1})
    model = type(smollm2)(smollm2.base, smollm2.tokenizer, "other", settings)
    part = Part(tmp_path / "x.jsonl", "dev", [NerSentence.model_validate({**NAMES, "split": "dev"})])
    readings: dict[str | None, dict[str, Any]] = {None: {"shift": 1}, "causal": {"layout": "causal"}, "shift-0": {}}
    for row, options in readings.items():
        options = {"layout": "bidirectional", "shift": 0, **options}
        expected = model.encode_tokens([NAMES["tokens"]], **options)[0]
        found = part_features(Run(model, [part.path], tmp_path, row=row), part)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_second_folder_brings_what_is_scored(smollm2: "AmbiLM", tmp_path: Path) -> None:
    data = write(
        tmp_path / "data" / "conll2000.jsonl", *[{**ROW, "split": split} for split in ("train", "train", "dev")]
    )
    assert (
        evaluate(smollm2, "tokens", [data], tmp_path / "a.json", progress=False)["tasks"]["conll2000:chunk"]["n"] == 1
    )
    held_out = write(tmp_path / "held" / "conll2000_test.jsonl", *[{**ROW, "split": "test"}] * 3)
    entry = evaluate(smollm2, "tokens", [data, held_out], tmp_path / "b.json", progress=False)["tasks"][
        "conll2000:chunk"
    ]
    assert (entry["n"], entry["split"], entry["words"]) == (3, "test", 9) and entry["main"] > 0.9


def test_the_group_holds_every_probe(tmp_path: Path) -> None:
    for stem in ("conll2003", "conll2000", "ud_ewt"):
        write(tmp_path / "data" / f"{stem}.jsonl", {**NAMES, "split": "train"})
    keys = [job.key for job in expand("tokens", [tmp_path / "data"])]
    assert keys == ["conll2003:ner", "conll2003:pos", "conll2003:chunk", "conll2000:chunk", "ud_ewt:pos"]


@pytest.mark.parametrize(
    ("task", "rows", "words"),
    [
        ("conll2003:nre", [{}], "no such task; did you mean conll2003:ner"),
        ("conll2003", [{}], "no such task; did you mean conll2003:"),
        ("conll2003:ner@shift-2", [{}], "unknown row 'shift-2'; choose from causal, bidirectional, shift-0, shift-1"),
        ("conll2003:pos", [{"split": "dev"}], r"conll2003\.jsonl has no rows with split 'train'"),
        ("conll2003:pos", [{}], r"conll2003\.jsonl has rows with split 'train' alone"),
        ("conll2003:ner", [{}, {"ner": None}], r"conll2003\.jsonl, line 2: 'ner': input should be a valid list"),
        ("conll2003:ner", [{"ner": ["PER", "O", "O"]}], r"line 1: 'ner\.0': string should match pattern"),
        ("conll2003:chunk", [{"chunk": ["O"]}], "line 1: 'row': .*there are 1 tags for 3 tokens"),
        ("ud_ewt:pos", [{}], r"no file ud_ewt\.jsonl"),
    ],
)
def test_mistakes_are_explained(
    smollm2: "AmbiLM", tmp_path: Path, task: str, rows: list[dict[str, Any]], words: str
) -> None:
    data = write(tmp_path / "conll2003.jsonl", *[{**NAMES, "split": "train", **row} for row in rows])
    with pytest.raises(UserError, match=words) as error:
        evaluate(smollm2, task, [data], tmp_path / "r.json", progress=False)
    assert "\n" not in str(error.value)


def test_a_missing_field_and_a_missing_package_are_named(
    smollm2: "AmbiLM", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "conll2003.jsonl", {**ROW, "split": "train"})
    with pytest.raises(UserError, match=r"conll2003\.jsonl, line 1: the field 'ner' is missing"):
        evaluate(smollm2, "conll2003:ner", [data], tmp_path / "r.json", progress=False)
    monkeypatch.setitem(sys.modules, "seqeval.metrics.sequence_labeling", None)
    with pytest.raises(UserError, match=r"pip install 'ambilm\[evaluate\]'"):
        evaluate(smollm2, "conll2003:ner", [data], tmp_path / "r.json", progress=False)
