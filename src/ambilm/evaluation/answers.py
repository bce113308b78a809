"""Answers that the model writes, compared with the right ones: ROUGE-L, F1, exact match, BLEU.

``super_ni`` puts an instruction with Tk-Instruct's prompt (Wang et al. 2022), without worked examples; ``dureader_demo`` a
Chinese question under passages that were found for it (He et al. 2018). The answer is the first line that the model writes.
ROUGE-L and F1 (SQuAD's) take the best of several right answers. English is compared by words, for ROUGE-L by their stems as
in Super-NaturalInstructions' own script, Chinese by characters.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from rouge_score.tokenizers import Tokenizer
from sacrebleu import corpus_bleu

from ambilm.evaluation.data import Instruction, PassageQuestion
from ambilm.evaluation.served import Served
from ambilm.evaluation.statistics import mean_figures

INSTRUCTION = "Definition: {{definition}}\n\nNow complete the following example -\nInput: {{input}}\nOutput:"
PASSAGES = "材料：{{passages}}\n问题：{{question}}\n答案："
PASSAGE_CHARACTERS = 600  # of all passages of a question together
LONGEST_ANSWER = 64  # tokens
SCORES = ("rouge_l", "f1", "exact_match")


def words(text: str) -> list[str]:
    """Words in lower case without punctuation and articles, as SQuAD compares answers."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def characters(text: str) -> list[str]:
    """Letters, digits and Chinese characters, one by one, in lower case."""
    return [letter for letter in text.lower() if letter.isalnum()]


class _Characters(Tokenizer):
    """ROUGE's own tokenizer drops everything that is not a-z or 0-9."""

    def tokenize(self, text: str) -> list[str]:
        return characters(text)


@dataclass(frozen=True)
class Units:
    """What answers are compared by.

    Attributes:
        split: the units of F1 and exact match.
        rouge: scores ROUGE-L.
        bleu: sacrebleu's tokenizer.
    """

    split: Callable[[str], list[str]]
    rouge: RougeScorer
    bleu: str


WORDS = Units(words, RougeScorer(["rougeL"], use_stemmer=True), "13a")
CHARACTERS = Units(characters, RougeScorer(["rougeL"], tokenizer=_Characters()), "zh")


def instruction_task(rows: Sequence[Instruction]) -> Served:
    """Rows of ``super_ni`` as a task for lm-evaluation-harness, which has none for such answers itself."""
    documents = [
        {
            "definition": row.definition.strip(),
            "input": row.input.strip(),
            "right": [answer.strip() for answer in row.output],
            "subset": row.task,
        }
        for row in rows
    ]
    return _answer_task("super_ni", INSTRUCTION, documents, WORDS)


def passage_task(rows: Sequence[PassageQuestion]) -> Served:
    """Rows of ``dureader_demo`` as a task for the harness."""
    documents = [
        {
            "passages": "\n".join(row.contexts)[:PASSAGE_CHARACTERS],
            "question": row.question.strip(),
            "right": [answer.strip() for answer in row.answers],
            "subset": row.question_type,
        }
        for row in rows
    ]
    return _answer_task("dureader_demo", PASSAGES, documents, CHARACTERS)


def _answer_task(name: str, prompt: str, documents: list[dict[str, Any]], units: Units) -> Served:
    return Served(name, {"test": documents}, None, {
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": prompt,
        "doc_to_target": "right",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": LONGEST_ANSWER, "do_sample": False},
        "process_results": partial(score_answer, units),
        "metric_list": [{"metric": score, "aggregation": "mean", "higher_is_better": True} for score in SCORES],
        "num_fewshot": 0,
    })  # fmt: skip


def score_answer(units: Units, document: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """The scores of one answer, each the best over the right ones, 0 to 1."""
    answer, right = results[0].strip(), document["right"]
    found = units.split(answer)
    return {
        "rouge_l": float(units.rouge.score_multi(right, answer)["rougeL"].fmeasure),
        "f1": max(unit_f1(found, units.split(other)) for other in right),
        "exact_match": float(any(found == units.split(other) for other in right)),
    }


def unit_f1(found: list[str], right: list[str]) -> float:
    """F1 of the units that two answers share (SQuAD, Rajpurkar et al. 2016); 1 when neither has one."""
    if not found or not right:
        return float(found == right)
    shared = sum((Counter(found) & Counter(right)).values())
    return 2 * shared / (len(found) + len(right))


def answer_figures(units: Units, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over answers, ROUGE-L as ``main``; corpus BLEU (0 to 100); ROUGE-L of each subset; a few answers to look at."""
    entry = mean_figures([record["rouge_l"] for record in records])
    for name in ("f1", "exact_match"):
        found = mean_figures([record[name] for record in records])
        entry |= {name: found["main"], f"{name}_error": found["standard_error"]}
    documents = [record["doc"] for record in records]
    answers = [record["filtered_resps"][0].strip() for record in records]
    # One stream for each first, second … right answer; None where a document has fewer.
    references = [list(column) for column in zip_longest(*(document["right"] for document in documents))]
    subsets: dict[str, list[float]] = {}
    for record in records:
        subsets.setdefault(record["doc"]["subset"], []).append(record["rouge_l"])
    return {
        **entry,
        "bleu": float(corpus_bleu(answers, references, tokenize=units.bleu).score),
        "subsets": {name: {"rouge_l": float(np.mean(part)), "n": len(part)} for name, part in sorted(subsets.items())},
        "samples": [{**document, "answer": answer} for document, answer in zip(documents[:5], answers, strict=False)],
    }
