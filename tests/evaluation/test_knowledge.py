"""Knowledge tasks on the real SmolLM2-135M: the harness's own scores, what it is asked, and what users get wrong."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model
from lm_eval.models.huggingface import HFLM

from ambilm.adaptation import AdapterSettings, add_adapter, trainable_parameters
from ambilm.errors import UserError
from ambilm.evaluation import answers, evaluate, harness, knowledge
from ambilm.evaluation.data import Question, read_rows, sample
from ambilm.evaluation.served import Served
from ambilm.evaluation.statistics import mean_figures
from ambilm.evaluation.tasks import expand
from ambilm.model.ambilm import EveryJobWeights

if TYPE_CHECKING:
    from ambilm import AmbiLM

Rows = dict[str, list[dict[str, Any]]]
SUM = {"question": "What is 2 + 2?", "choices": ["3", "4", "5", "6"], "answer": 1, "subject": "elementary_mathematics"}
SKY = {"question": "天空通常是什么颜色？", "choices": ["红", "黄", "蓝", "绿"], "answer": 2, "subject": "astronomy"}
TRUTH = {
    "question": "Can pigs fly?",
    "mc1": {"choices": ["No.", "Yes."], "labels": [1, 0]},
    "mc2": {"choices": ["No.", "Never.", "Yes."], "labels": [1, 1, 0]},
    "split": "dev",
}
LETTER = {"question": "What is the first letter?", "choices": ["A", "B"], "answer": 0}
COMMON_SENSE = [
    {**LETTER, "task": "arc_easy", "choices": ["A", "B", "C"], "split": "test"},
    {**LETTER, "task": "openbookqa", "choices": ["A", "B", "C", "D"], "answer": 3, "split": "test"},
    {**LETTER, "task": "piqa", "answer": 1, "split": "valid"},
    {"task": "winogrande", "question": "Ann thanked Tom because _ helped.", "choices": ["Ann", "Tom"], "answer": 1,
     "split": "dev"},
    {"task": "boolq_no_passage", "question": "is ice cold?", "choices": ["false", "true"], "answer": 1, "split": "dev"},
]  # fmt: skip
PROBLEM = {"question": "Tom has 2 apples and gets 1. How many?", "solution": "2 + 1 = 3\n#### 3"}
ORDER = {
    "task": "task1_repeat",
    "definition": "Repeat the word.",
    "input": "house",
    "output": ["house", "the house"],
    "split": "test",
}
CHANT = "Who lives in the old lighthouse? Nobody lives in the old lighthouse."
FILES: Rows = {
    "mmlu": [{**SUM, "split": "test"}] * 2 + [{**SUM, "split": "dev"}] * 5,
    "cmmlu": [{**SKY, "split": "test"}] * 2 + [{**SKY, "split": "dev"}] * 5,
    "truthfulqa": [TRUTH, {**TRUTH, "question": "Can hens fly?"}],
    "mcq_commonsense": COMMON_SENSE,
    "gsm8k": [{**PROBLEM, "split": "test"}] + [{**PROBLEM, "split": "train"}] * 6,
    "lambada": [
        {"context": f"{CHANT} {CHANT} Who lives in the old", "target": word, "split": "test"}
        for word in ("lighthouse", "teapot")
    ],
    "dureader_demo": [{"question": "天空是什么颜色", "contexts": ["天空是蓝色的。" * 200], "answers": ["蓝色", "蓝"],
                       "question_type": "ENTITY", "split": "dev"}],
    "super_ni": [ORDER, {**ORDER, "input": "tree", "output": ["tree"]}],
}  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for stem, rows in FILES.items():
        write(tmp_path / f"{stem}.jsonl", rows)
    return tmp_path


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Rows:
    """The harness's records of the tasks that ran: what it asked, what it took for right."""
    seen: Rows = {}
    run_tasks = harness.run_tasks

    def remember(*arguments: Any) -> Rows:
        found = run_tasks(*arguments)
        seen.update(found)
        return found

    monkeypatch.setattr(harness, "run_tasks", remember)
    return seen


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(model: "AmbiLM", tasks: str, data: Path, **options: Any) -> dict[str, Any]:
    return evaluate(model, tasks, [data], data / "results.json", progress=False, **options)["tasks"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_are_those_of_the_harness_s_hf_model(
    dtype: str, smollm2: "AmbiLM", smollm2_bf16: "AmbiLM", data_dir: Path, tmp_path: Path
) -> None:
    model = smollm2 if dtype == "float32" else smollm2_bf16
    model.base.save_pretrained(tmp_path)
    model.tokenizer.save_pretrained(tmp_path)
    rows = [
        row for row in read_rows(data_dir / "mcq_commonsense.jsonl.gz", Question, "valid") if len(row.question) < 80
    ]
    piqa = knowledge.COMMON_SENSE["piqa"]
    served = [
        Served("piqa", {"test": [piqa.document(row) for row in sample(rows, 3, 0)]}, "piqa", knowledge.TEST_ONLY),
        Served("lambada_openai", {"test": [{"text": CHANT}] * 2}, "lambada", knowledge.TEST_ONLY),
        Served("gsm8k", {"test": [{"question": "1 + 1?", "answer": "#### 2"}]}, "gsm8k", {
            **knowledge.TEST_ONLY, "generation_kwargs": {"until": ["Question:"], "max_gen_toks": 8, "do_sample": False},
        }),
    ]  # fmt: skip
    ours = harness.run_tasks(harness.HarnessModel(model), served)
    plain = harness.run_tasks(HFLM(pretrained=str(tmp_path), dtype=dtype, device="cpu", batch_size=1), served)
    assert set(ours) == {"piqa", "lambada_openai", "gsm8k"} and len(ours["piqa"]) == 3
    for name, records in ours.items():
        # Log-probabilities and texts, so that equal accuracies cannot hide a difference.
        assert [record["resps"] for record in records] == [record["resps"] for record in plain[name]]


def test_the_harness_finds_ours_by_name() -> None:
    model = get_model("ambilm").create_from_arg_string("pretrained=smollm2-135m,dtype=float32", {"batch_size": 2})
    assert (
        isinstance(model, harness.HarnessModel) and model.batch_size == 2 and model.model.config.model_type == "llama"
    )


def test_weights_say_who_scores(smollm2: "AmbiLM") -> None:
    from ambilm import AmbiLM

    model = AmbiLM(smollm2.base, smollm2.tokenizer, "adapted")
    model.adapter = AdapterSettings(rank=4)
    add_adapter(model.view, model.adapter)
    with torch.no_grad():
        for parameter in trainable_parameters(model.view).values():
            parameter.fill_(0.05)
    request = Instance("loglikelihood", {}, (CHANT, " Nobody"), 0)

    def score(scored: "AmbiLM", weights: EveryJobWeights) -> float:
        return harness.HarnessModel(scored, weights).loglikelihood([request], disable_tqdm=True)[0][0]

    base = score(smollm2, "base")
    assert score(model, "base") == score(model, "by_job") == base
    assert score(model, "merged") == score(model.merged(), "base") != base
    with pytest.raises(UserError, match="needs gates"):
        harness.HarnessModel(smollm2, "learned")
    with pytest.raises(UserError, match="needs an adapted model"):
        harness.HarnessModel(smollm2, "merged")


def test_an_exam_is_asked_as_in_the_harness(smollm2: "AmbiLM", data: Path, asked: Rows) -> None:
    question = "What is 2 + 2?\nA. 3\nB. 4\nC. 5\nD. 6\nAnswer:"
    title = "The following are multiple choice questions (with answers) about elementary mathematics.\n\n"
    entry = run(smollm2, "mmlu", data)["mmlu"]
    [record, _] = asked["mmlu_elementary_mathematics"]
    assert record["arguments"][0][0] == title + f"{question} B\n\n" * 5 + question
    assert [answer for _, answer in record["arguments"]] == [" A", " B", " C", " D"] and record["target"] == 1
    # Five times the answer B before the same question: any model says B.
    assert entry["main"] == 1 and entry["n"] == 2 and entry["shots"] == 5 and entry["ties"] == 0
    assert entry["subsets"] == {"elementary_mathematics": {"accuracy": 1, "n": 2}}
    run(smollm2, "mmlu:0-shot,cmmlu:0-shot", data)
    assert asked["mmlu_elementary_mathematics"][0]["arguments"][0][0] == title + question
    [record, _] = asked["cmmlu_astronomy"]
    assert record["arguments"][0][0].endswith("天空通常是什么颜色？\nA. 红\nB. 黄\nC. 蓝\nD. 绿\n答案：")
    assert record["target"] == 2


def test_common_sense_is_asked_as_in_the_harness(smollm2: "AmbiLM", data: Path, asked: Rows) -> None:
    names = ("arc_easy", "openbookqa", "piqa", "winogrande", "boolq_no_passage")
    tasks = run(smollm2, ",".join(f"mcq_commonsense:{name}" for name in names), data)
    letter = "Question: What is the first letter?\nAnswer:"
    expected = {
        "arc_easy": ([(letter, " A"), (letter, " B"), (letter, " C")], 0),
        "openbookqa": ([("What is the first letter?", f" {choice}") for choice in "ABCD"], 3),
        "piqa": ([(letter, " A"), (letter, " B")], 1),
        "winogrande": ([(f"Ann thanked Tom because {name}", " helped.") for name in ("Ann", "Tom")], "helped."),
        "boolq": ([("Question: is ice cold?\nAnswer:", " no"), ("Question: is ice cold?\nAnswer:", " yes")], 1),
    }
    for name, (arguments, target) in expected.items():
        [record] = asked[name]
        assert record["arguments"] == arguments and record["target"] == target
    for entry, records in zip(tasks.values(), asked.values(), strict=True):
        assert entry["main"] == records[0]["acc"] and entry["n"] == 1 and entry["metric"] == "accuracy"
    ann, tom = (response[0][0] for response in asked["winogrande"][0]["resps"])
    assert asked["winogrande"][0]["acc"] == float(tom > ann)
    assert {"acc_norm" in tasks[f"mcq_commonsense:{name}"] for name in ("arc_easy", "piqa")} == {True}


def test_truthfulqa_is_shuffled_and_a_tie_is_wrong(smollm2: "AmbiLM", data: Path, asked: Rows) -> None:
    write(
        data / "truthfulqa.jsonl", [{**TRUTH, "question": f"Can {animal} fly?"} for animal in ("pigs", "hens", "ants")]
    )
    entry = run(smollm2, "truthfulqa", data)["truthfulqa"]
    places = set()
    for record in asked["truthfulqa_mc1"]:
        choices, labels = record["doc"]["mc1_targets"]["choices"], record["doc"]["mc1_targets"]["labels"]
        assert choices[labels.index(1)] == "No." and [choice for _, choice in record["arguments"]] == [
            f" {choice}" for choice in choices
        ]
        places.add(labels.index(1))
        scores = dict(zip(choices, (response[0][0] for response in record["resps"]), strict=True))
        assert record["acc"] == (max(scores, key=lambda choice: scores[choice]) == "No.")
    assert len(places) > 1
    assert entry["metric"] == "mc2" and 0 < entry["main"] < 1 and entry["n"] == 3 and 0 <= entry["mc1"] <= 1
    document = {"mc1_targets": {"labels": [0, 1, 0]}}

    def right(*scores: float) -> float:
        return knowledge._strictly_best(document, [(score, False) for score in scores])["acc"]

    assert right(-2, -1, -3) == 1 and right(-2, -1, -1) == 0 and right(-1, -1, -3) == 0
    assert right(-2, float("nan"), -3) == 0 and right(-2, -1, float("nan")) == 0


def test_lambada_knows_a_word_it_has_read(smollm2: "AmbiLM", data: Path) -> None:
    entry = run(smollm2, "lambada", data)["lambada"]
    assert entry["main"] == 0.5 and entry["n"] == 2 and entry["target_perplexity"] > 1


def test_answers_are_written_and_scored(smollm2: "AmbiLM", data: Path, asked: Rows) -> None:
    tasks = run(smollm2, "gsm8k,super_ni,dureader_demo", data)
    strict, flexible = asked["gsm8k"]
    assert strict["arguments"][0][0].count("2 + 1 = 3\n#### 3") == 5
    assert strict["arguments"][0][0].endswith("Question: Tom has 2 apples and gets 1. How many?\nAnswer:")
    # Five times the same problem with its solution: it is repeated.
    assert (strict["filter"], flexible["filter"]) == ("strict-match", "flexible-extract")
    assert tasks["gsm8k"]["main"] == tasks["gsm8k"]["flexible"] == 1 and tasks["gsm8k"]["n"] == 1
    prompt = asked["super_ni"][0]["arguments"][0][0]
    assert prompt == "Definition: Repeat the word.\n\nNow complete the following example -\nInput: house\nOutput:"
    [record] = asked["dureader_demo"]
    prompt = record["arguments"][0][0]
    assert prompt == f"材料：{('天空是蓝色的。' * 200)[: answers.PASSAGE_CHARACTERS]}\n问题：天空是什么颜色\n答案："
    assert tasks["dureader_demo"]["subsets"]["ENTITY"] == {"rouge_l": record["rouge_l"], "n": 1}
    entry = tasks["super_ni"]
    assert entry["metric"] == "ROUGE-L" and entry["n"] == 2 and entry["subsets"]["task1_repeat"]["n"] == 2
    assert entry["main"] == pytest.approx(sum(record["rouge_l"] for record in asked["super_ni"]) / 2)
    assert [sample["answer"] for sample in entry["samples"]] == [
        record["filtered_resps"][0].strip() for record in asked["super_ni"]
    ]


def test_an_answer_is_compared_with_the_best_right_one() -> None:
    document = {"right": ["a dog barked", "The cat sat."]}

    def score(answer: str) -> dict[str, float]:
        return answers.score_answer(answers.WORDS, document, [answer])

    assert score(" the cat sat ") == {"rouge_l": 1, "f1": 1, "exact_match": 1}
    # Of "cat sat down" two words are the two of "cat sat": precision 2/3, recall 1. For ROUGE-L "the" counts too.
    assert score("cat sat down") == {"rouge_l": pytest.approx(2 / 3), "f1": pytest.approx(0.8), "exact_match": 0}
    assert score("") == {"rouge_l": 0, "f1": 0, "exact_match": 0}
    records = [
        {"doc": {"subset": "t", "right": right}, "filtered_resps": [answer],
         **answers.score_answer(answers.WORDS, {"right": right}, [answer])}
        for right, answer in ((["one two three four", "x"], "one two three four"), (["five six seven eight"], "five"))
    ]  # fmt: skip
    figures = answers.answer_figures(answers.WORDS, records)
    assert figures["main"] == pytest.approx((1 + 0.4) / 2) and 0 < figures["bleu"] < 100
    assert answers.answer_figures(answers.WORDS, records[:1])["bleu"] == pytest.approx(100)


def test_chinese_answers_are_compared_by_characters() -> None:
    document = {"subset": "", "right": ["北京很大。", "上海"]}
    # 北京大 keeps the order of three of four characters.
    scores = answers.score_answer(answers.CHARACTERS, document, ["北京大！"])
    assert scores == {"rouge_l": pytest.approx(6 / 7), "f1": pytest.approx(6 / 7), "exact_match": 0}
    assert answers.score_answer(answers.CHARACTERS, document, ["上海。"])["exact_match"] == 1
    record = {"doc": document, "filtered_resps": ["北京很大。"], "rouge_l": 1, "f1": 1, "exact_match": 1}
    assert answers.answer_figures(answers.CHARACTERS, [record])["bleu"] == pytest.approx(100)


def test_a_mean_says_how_far_it_may_move() -> None:
    none = mean_figures([0] * 10)
    # Wilson's interval of 0 of 10, z = 1.96: 0 to z² / (10 + z²).
    assert none["standard_error"] == 0 and none["confidence_95"] == [0, pytest.approx(0.2775, abs=1e-4)]
    half = mean_figures([0, 1, 1, 0])
    assert half["main"] == 0.5 and half["standard_error"] == pytest.approx((1 / 12) ** 0.5)
    real = mean_figures([0.25, 0.75, 0.5])
    assert real["confidence_95"] == pytest.approx([0.5 - 1.96 * 0.25 / 3**0.5, 0.5 + 1.96 * 0.25 / 3**0.5])
    assert mean_figures([1])["confidence_95"] is None


def test_a_limit_draws_a_seeded_subset(smollm2: "AmbiLM", data: Path, asked: Rows) -> None:
    rows = [{**LETTER, "question": f"Letter {index}?", "task": "piqa", "split": "valid"} for index in range(30)]
    write(data / "mcq_commonsense.jsonl", rows)

    def questions(seed: int) -> list[str]:
        assert run(smollm2, "mcq_commonsense:piqa", data, limit=3, seed=seed)["mcq_commonsense:piqa"]["n"] == 3
        return [record["doc"]["goal"] for record in asked["piqa"]]

    assert questions(0) != questions(1) == questions(1)


def test_the_group_takes_what_is_there(data: Path) -> None:
    (data / "cmmlu.jsonl").unlink()
    keys = [job.key for job in expand("knowledge", [data])]
    assert "mmlu" in keys and "mcq_commonsense:piqa" in keys and "cmmlu" not in keys and "mmlu:0-shot" not in keys
    assert [job.key for job in expand("mcq_commonsense", [data])] == keys[keys.index("mcq_commonsense:arc_easy") :][:6]


@pytest.mark.parametrize(
    ("task", "stem", "row", "words"),
    [
        ("mcq_commonsense:piqq", None, {}, "did you mean mcq_commonsense:piqa"),
        ("mmlu", "mmlu", {"split": "test"}, r"mmlu\.jsonl has no rows with split 'dev', only test"),
        ("mmlu:0-shot", "mmlu", {"split": "dev"}, r"mmlu\.jsonl has no rows with split 'test', only dev"),
        ("mmlu:0-shot", "mmlu", {"split": "test", "subject": "sorcery"}, "no mmlu subject 'sorcery'"),
        ("mmlu", "mmlu", {"split": "test", "answer": 4}, r"mmlu\.jsonl, line 1: 'row': .*the answer 4 is no place in 4"),
        ("mmlu", "mmlu", {"split": "test", "choices": ["a", "b"]}, r"mmlu\.jsonl, line 1: 'choices'"),
        ("mcq_commonsense:piqa", "mcq_commonsense", {"split": "valid", "task": "piqa"}, "has 2 choices, not 4"),
        ("mcq_commonsense:piqa", "mcq_commonsense", {"split": "valid", "task": "arc_easy"}, "no rows with task 'piqa'"),
        ("gsm8k", "gsm8k", {"split": "test"}, r"gsm8k\.jsonl, line 1: the field 'solution' is missing"),
        ("truthfulqa", "truthfulqa", {**TRUTH, "mc1": TRUTH["mc2"]}, "mc1 has 2 true answers"),
        ("super_ni", "super_ni", {**ORDER, "output": []}, r"super_ni\.jsonl, line 1: 'output'"),
        ("lambada", "lambada", {"context": "a", "target": "two words", "split": "test"}, "line 1: 'target'"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(
    smollm2: "AmbiLM", tmp_path: Path, task: str, stem: str | None, row: dict[str, Any], words: str
) -> None:
    if stem is not None:
        write(tmp_path / f"{stem}.jsonl", [{**SUM, "subject": "anatomy", **row}])
    with pytest.raises(UserError, match=words) as error:
        run(smollm2, task, tmp_path)
    assert "\n" not in str(error.value)


def test_worked_examples_that_are_missing_are_counted(smollm2: "AmbiLM", data: Path) -> None:
    write(data / "mmlu.jsonl", [{**SUM, "split": "test"}] + [{**SUM, "split": "dev"}] * 4)
    with pytest.raises(
        UserError, match=r"5 rows of subject 'elementary_mathematics' with split 'dev', and there are 4"
    ):
        run(smollm2, "mmlu", data)


def test_without_the_harness_the_command_is_named(
    smollm2: "AmbiLM", data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "ambilm.evaluation.harness")
    monkeypatch.delattr("ambilm.evaluation.harness")
    with pytest.raises(UserError, match=r"pip install 'ambilm\[evaluate\]'"):
        run(smollm2, "lambada", data)
