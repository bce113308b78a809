"""Knowledge: what the causal model knows, measured by lm-evaluation-harness on local files.

Prompts, scoring and metrics are the harness's own task code; only the documents come from a file instead of the hub.
``main`` is the harness's figure, except for TruthfulQA, whose files put the true answer first: there the choices are
shuffled and a tie is never right. Elsewhere the harness gives a tie to the first choice, and ``ties`` counts them.

The harness is the optional extra ``ambilm[evaluate]``; it is imported when a task runs, because that costs seconds.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from ambilm.errors import UserError
from ambilm.evaluation.answers import CHARACTERS, WORDS, Units, answer_figures, instruction_task, passage_task
from ambilm.evaluation.data import (
    Cloze,
    ExamQuestion,
    Instruction,
    LabelledChoices,
    PassageQuestion,
    Question,
    TruthfulQuestion,
    WorkedProblem,
    read_rows,
    sample,
)
from ambilm.evaluation.served import Served
from ambilm.evaluation.statistics import mean_figures, perplexity, perplexity_error
from ambilm.evaluation.task import Run, Task

Record = dict[str, Any]  # what the harness keeps of a document

SHOTS = 5  # worked examples before a question of an exam, as in its paper
DEFAULT_QUESTIONS = 1000  # the standard error of an accuracy is then at most 1.6 points
DEFAULT_ANSWERS = 100  # of the tasks where text is written, which is some ten times slower than scoring
GENERATION_BATCH = 8
# The harness's configurations name splits that the local files do not have, and that no document is scored on.
TEST_ONLY = {
    "training_split": None,
    "validation_split": None,
    "test_split": "test",
    "fewshot_split": None,
    "num_fewshot": 0,
}


def _records(run: Run, served: Sequence[Served], batch_size: int = 1) -> dict[str, list[Record]]:
    """Runs tasks of the harness on the model; texts one by one, so that a score depends on nothing but its own text."""
    harness = _harness()
    model = harness.HarnessModel(run.model, batch_size=batch_size)
    model.terminal = sys.stderr if run.progress else None
    return harness.run_tasks(model, served)


def _harness() -> ModuleType:
    try:
        from ambilm.evaluation import harness
    except ImportError as error:
        raise UserError(
            f"Knowledge tasks need lm-evaluation-harness ({error.name} is missing): pip install 'ambilm[evaluate]'."
        ) from None
    return harness


# Exams of many subjects.


@dataclass(frozen=True)
class Exam:
    """Questions with the choices A to D; every subject is a task of the harness, with a headline of its own."""

    name: str
    folder: str
    document: Callable[[ExamQuestion], dict[str, Any]]


def _mmlu_document(row: ExamQuestion) -> dict[str, Any]:
    return {"question": row.question, "choices": row.choices, "answer": row.answer}


def _cmmlu_document(row: ExamQuestion) -> dict[str, Any]:
    return {"Question": row.question, **dict(zip("ABCD", row.choices, strict=True)), "Answer": "ABCD"[row.answer]}


MMLU = Exam("mmlu", "mmlu/default", _mmlu_document)
CMMLU = Exam("cmmlu", "cmmlu", _cmmlu_document)


def _run_exam(exam: Exam, shots: int, run: Run) -> dict[str, Any]:
    """Accuracy over all questions together, as the harness weights subjects by size; and of each subject."""
    asked = sample(read_rows(run.path, ExamQuestion, "test"), run.limit or DEFAULT_QUESTIONS, run.seed)
    questions = _by_subject(asked)
    worked = _by_subject(read_rows(run.path, ExamQuestion, "dev")) if shots else {}
    served = []
    for subject, rows in questions.items():
        name = f"{exam.name}_{subject}"
        if not _harness().has_task(exam.folder, name):
            raise UserError(
                f"{run.path}: lm-evaluation-harness has no {exam.name} subject {subject!r}; correct the rows."
            )
        if len(worked.get(subject, [])) < shots:
            raise UserError(
                f"{run.path}: {shots} worked examples need {shots} rows of subject {subject!r} with split 'dev', "
                f"and there are {len(worked.get(subject, []))}; add them or ask for {exam.name}:0-shot."
            )
        splits = {"test": [exam.document(row) for row in rows]}
        if shots:
            splits["dev"] = [exam.document(row) for row in worked[subject]]
        changes = {"num_fewshot": shots} if shots else TEST_ONLY
        served.append(Served(name, splits, exam.folder, changes))
    found = _records(run, served)
    subsets = {
        subject: {"accuracy": float(np.mean([record["acc"] for record in records])), "n": len(records)}
        for subject, records in ((name.removeprefix(f"{exam.name}_"), found[name]) for name in sorted(found))
    }
    return {
        **_accuracy([record for records in found.values() for record in records]),
        "shots": shots,
        "subsets": subsets,
    }


def _by_subject(rows: Iterable[ExamQuestion]) -> dict[str, list[ExamQuestion]]:
    found: dict[str, list[ExamQuestion]] = {}
    for row in rows:
        found.setdefault(row.subject, []).append(row)
    return found


def _accuracy(records: Sequence[Record]) -> dict[str, Any]:
    """Accuracy, and how many questions have several best choices, of which the harness takes the first."""
    scores = [[score for score, _ in record["filtered_resps"]] for record in records]
    ties = sum(row.count(max(row)) > 1 for row in scores)
    return {**mean_figures([record["acc"] for record in records]), "ties": ties}


# Common sense.


@dataclass(frozen=True)
class CommonSense:
    """One data set of ``mcq_commonsense``: the split that is scored, and its shape in the harness."""

    part: str
    harness: str
    folder: str
    document: Callable[[Question], dict[str, Any]]
    changes: dict[str, Any] = field(default_factory=dict)


def _lettered(question: str, row: Question) -> dict[str, Any]:
    labels = [chr(ord("A") + place) for place in range(len(row.choices))]
    return {question: row.question, "choices": {"text": row.choices, "label": labels}, "answerKey": labels[row.answer]}


def _arc_document(row: Question) -> dict[str, Any]:
    return _lettered("question", row)


def _openbookqa_document(row: Question) -> dict[str, Any]:
    return _lettered("question_stem", row)


def _winogrande_document(row: Question) -> dict[str, Any]:
    first, second = row.choices
    return {"sentence": row.question, "option1": first, "option2": second, "answer": str(row.answer + 1)}


def _piqa_document(row: Question) -> dict[str, Any]:
    first, second = row.choices
    return {"goal": row.question, "sol1": first, "sol2": second, "label": row.answer}


def _boolq_document(row: Question) -> dict[str, Any]:
    return {
        "question": row.question.removesuffix("?"),
        "label": int(row.choices[row.answer].lower() in ("true", "yes")),
    }


COMMON_SENSE = {
    "arc_easy": CommonSense("test", "arc_easy", "arc", _arc_document),
    "arc_challenge": CommonSense("test", "arc_challenge", "arc", _arc_document),
    "openbookqa": CommonSense("test", "openbookqa", "openbookqa", _openbookqa_document),
    "piqa": CommonSense("valid", "piqa", "piqa", _piqa_document),
    "winogrande": CommonSense("dev", "winogrande", "winogrande", _winogrande_document),
    # The file has no passages: the harness's prompt without its first line.
    "boolq_no_passage": CommonSense(
        "dev", "boolq", "super_glue/boolq", _boolq_document, {"doc_to_text": "Question: {{question}}?\nAnswer:"}
    ),
}


def _run_common_sense(name: str, run: Run) -> dict[str, Any]:
    """Accuracy, and ``acc_norm``: by log-probability for each character of a choice, where the harness has it."""
    task = COMMON_SENSE[name]
    rows = [row for row in read_rows(run.path, Question, task.part) if row.task == name]
    if not rows:
        raise UserError(f"{run.path} has no rows with task {name!r} and split {task.part!r}; give the complete file.")
    documents = [task.document(row) for row in sample(rows, run.limit or DEFAULT_QUESTIONS, run.seed)]
    served = Served(task.harness, {"test": documents}, task.folder, {**TEST_ONLY, **task.changes})
    records = _records(run, [served])[task.harness]
    entry = _accuracy(records)
    if "acc_norm" in records[0]:
        normalised = mean_figures([record["acc_norm"] for record in records])
        entry |= {"acc_norm": normalised["main"], "acc_norm_error": normalised["standard_error"]}
    return entry


# TruthfulQA.


def _shuffled(row: LabelledChoices, generator: random.Random) -> dict[str, Any]:
    order = generator.sample(range(len(row.choices)), len(row.choices))
    return {"choices": [row.choices[place] for place in order], "labels": [row.labels[place] for place in order]}


def _strictly_best(document: dict[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """mc1: 1 when the true answer is likelier than every other one; a tie, or a score that is no number, is wrong."""
    scores = [score for score, _ in results]
    right = scores.pop(document["mc1_targets"]["labels"].index(1))
    return {"acc": float(all(right > other for other in scores))}


def _run_truthfulqa(run: Run) -> dict[str, Any]:
    """``main`` is mc2, the share of probability on true answers; ``mc1`` counts questions whose one true answer is best."""
    documents = []
    for row in sample(read_rows(run.path, TruthfulQuestion, "dev"), run.limit or DEFAULT_QUESTIONS, run.seed):
        generator = random.Random(f"choices {run.seed} {row.question}")
        mc1, mc2 = _shuffled(row.mc1, generator), _shuffled(row.mc2, generator)
        documents.append({"question": row.question, "mc1_targets": mc1, "mc2_targets": mc2})
    single = {**TEST_ONLY, "process_results": _strictly_best}
    served = [
        Served("truthfulqa_mc1", {"test": documents}, "truthfulqa", single),
        Served("truthfulqa_mc2", {"test": documents}, "truthfulqa", TEST_ONLY),
    ]
    found = _records(run, served)
    mc1 = mean_figures([record["acc"] for record in found["truthfulqa_mc1"]])
    mc2 = mean_figures([float(record["acc"]) for record in found["truthfulqa_mc2"]])
    return {**mc2, "mc1": mc1["main"], "mc1_error": mc1["standard_error"], "mc1_confidence_95": mc1["confidence_95"]}


# LAMBADA (Paperno et al. 2016): the last word of a passage, which only the whole passage makes guessable.


def _run_lambada(run: Run) -> dict[str, Any]:
    """Accuracy of greedy decoding, and the perplexity of the last word (of a word, not of a token)."""
    rows = sample(read_rows(run.path, Cloze, "test"), run.limit or DEFAULT_QUESTIONS, run.seed)
    documents = [{"text": f"{row.context.rstrip()} {row.target}"} for row in rows]
    served = Served("lambada_openai", {"test": documents}, "lambada", TEST_ONLY)
    records = _records(run, [served])["lambada_openai"]
    log_probs = [np.array([record["perplexity"]]) for record in records]  # the harness's name for log p(word)
    return {
        **mean_figures([record["acc"] for record in records]),
        "target_perplexity": perplexity(log_probs),
        "target_perplexity_error": perplexity_error(log_probs, run.seed),
    }


# Tasks whose answers are written.


def _run_gsm8k(run: Run) -> dict[str, Any]:
    """``main`` takes the number after ``####`` only; ``flexible`` the last number of the answer. Five worked examples."""
    asked = sample(read_rows(run.path, WorkedProblem, "test"), run.limit or DEFAULT_ANSWERS, run.seed)
    splits = {
        split: [{"question": row.question, "answer": row.solution} for row in rows]
        for split, rows in (("train", read_rows(run.path, WorkedProblem, "train")), ("test", asked))
    }
    served = Served("gsm8k", splits, "gsm8k")
    records = _records(run, [served], GENERATION_BATCH)["gsm8k"]

    def matches(name: str) -> dict[str, Any]:
        return mean_figures([record["exact_match"] for record in records if record["filter"] == name])

    flexible = matches("flexible-extract")
    return {**matches("strict-match"), "flexible": flexible["main"], "flexible_error": flexible["standard_error"]}


def _run_super_ni(run: Run) -> dict[str, Any]:
    """ROUGE-L, F1, exact match and BLEU of answers to instructions, without a worked example."""
    rows = sample(read_rows(run.path, Instruction, "test"), run.limit or DEFAULT_ANSWERS, run.seed)
    return _answers(run, instruction_task(rows), WORDS)


def _run_dureader(run: Run) -> dict[str, Any]:
    """The same of answers to Chinese questions from passages."""
    rows = sample(read_rows(run.path, PassageQuestion, "dev"), run.limit or DEFAULT_ANSWERS, run.seed)
    return _answers(run, passage_task(rows), CHARACTERS)


def _answers(run: Run, served: Served, units: Units) -> dict[str, Any]:
    return answer_figures(units, _records(run, [served], GENERATION_BATCH)[served.name])


TASKS = (
    Task("mmlu", "mmlu", "accuracy", partial(_run_exam, MMLU, SHOTS)),
    Task("mmlu:0-shot", "mmlu", "accuracy", partial(_run_exam, MMLU, 0)),
    Task("cmmlu", "cmmlu", "accuracy", partial(_run_exam, CMMLU, SHOTS)),
    Task("cmmlu:0-shot", "cmmlu", "accuracy", partial(_run_exam, CMMLU, 0)),
    Task("truthfulqa", "truthfulqa", "mc2", _run_truthfulqa),
    *(
        Task(f"mcq_commonsense:{name}", "mcq_commonsense", "accuracy", partial(_run_common_sense, name))
        for name in COMMON_SENSE
    ),
    Task("gsm8k", "gsm8k", "exact match", _run_gsm8k),
    Task("lambada", "lambada", "accuracy", _run_lambada),
    Task("super_ni", "super_ni", "ROUGE-L", _run_super_ni),
    Task("dureader_demo", "dureader_demo", "ROUGE-L", _run_dureader),
)
_COMMON_SENSE_NAMES = tuple(f"mcq_commonsense:{name}" for name in COMMON_SENSE)
GROUPS = {
    "knowledge": ("mmlu", "cmmlu", "truthfulqa", *_COMMON_SENSE_NAMES, "gsm8k", "lambada", "super_ni", "dureader_demo"),
    "mcq_commonsense": _COMMON_SENSE_NAMES,
}
