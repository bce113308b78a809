"""Answers that the model writes to an instruction, compared with the right ones: ROUGE-L, F1, exact match, BLEU.

The prompt is that of Tk-Instruct (Wang et al. 2022), without worked examples; the answer is its first line. ROUGE-L (with
Porter stemming, as in Super-NaturalInstructions' own script) and F1 (SQuAD's) take the best of several right answers.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import zip_longest
from typing import Any

import numpy as np
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu import corpus_bleu

from ambilm.evaluation.data import Instruction
from ambilm.evaluation.served import Served
from ambilm.evaluation.statistics import mean_figures

PROMPT = "Definition: {{definition}}\n\nNow complete the following example -\nInput: {{input}}\nOutput:"
LONGEST_ANSWER = 64  # tokens
SCORES = ("rouge_l", "f1", "exact_match")


def instruction_task(rows: Sequence[Instruction]) -> Served:
    """The rows as a task for lm-evaluation-harness, which has none for such answers itself."""
    documents = [
        {
            "definition": row.definition.strip(),
            "input": row.input.strip(),
            "output": [answer.strip() for answer in row.output],
            "task": row.task,
        }
        for row in rows
    ]
    return Served("super_ni", {"test": documents}, None, {
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": PROMPT,
        "doc_to_target": "output",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": LONGEST_ANSWER, "do_sample": False},
        "process_results": score_answer,
        "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in SCORES],
        "num_fewshot": 0,
    })  # fmt: skip


def score_answer(document: dict[str, Any], results: Sequence[str]) -> dict[str, float]:
    """The scores of one answer, each the best over the right ones, 0 to 1."""
    answer, right = results[0].strip(), document["output"]
    return {
        "rouge_l": float(_rouge().score_multi(right, answer)["rougeL"].fmeasure),
        "f1": max(word_f1(answer, other) for other in right),
        "exact_match": float(any(normalised(answer) == normalised(other) for other in right)),
    }


@cache
def _rouge() -> RougeScorer:
    return RougeScorer(["rougeL"], use_stemmer=True)


def normalised(text: str) -> list[str]:
    """Words in lower case without punctuation and articles, as SQuAD compares answers."""
    plain = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def word_f1(answer: str, right: str) -> float:
    """F1 of the words that two answers share (SQuAD, Rajpurkar et al. 2016); 1 when neither has a word."""
    found, wanted = normalised(answer), normalised(right)
    if not found or not wanted:
        return float(found == wanted)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted))


def answer_figures(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Means over answers, ROUGE-L as ``main``; corpus BLEU (0 to 100); ROUGE-L of each task; a few answers to look at."""
    entry = mean_figures([record["rouge_l"] for record in records])
    for name in ("f1", "exact_match"):
        found = mean_figures([record[name] for record in records])
        entry |= {name: found["main"], f"{name}_error": found["standard_error"]}
    answers = [record["filtered_resps"][0].strip() for record in records]
    # One stream for each first, second … right answer; None where a document has fewer.
    references = [list(column) for column in zip_longest(*(record["doc"]["output"] for record in records))]
    by_task: dict[str, list[float]] = {}
    for record in records:
        by_task.setdefault(record["doc"]["task"], []).append(record["rouge_l"])
    return {
        **entry,
        "bleu": float(corpus_bleu(answers, references).score),
        "subsets": {name: {"rouge_l": float(np.mean(part)), "n": len(part)} for name, part in sorted(by_task.items())},
        "samples": [
            {
                "task": record["doc"]["task"],
                "input": record["doc"]["input"],
                "answer": answer,
                "right": record["doc"]["output"],
            }
            for record, answer in list(zip(records, answers, strict=True))[:5]
        ],
    }
