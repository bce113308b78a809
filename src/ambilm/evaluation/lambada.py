"""LAMBADA (Paperno et al. 2016): the last word of a passage, which only the whole passage makes guessable.

Accuracy counts a word as guessed when greedy decoding from the base weights gives exactly its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm

from ambilm.evaluation.data import Cloze, read_rows, sample
from ambilm.evaluation.perplexity import BATCH_TOKENS, token_ids
from ambilm.evaluation.statistics import perplexity, perplexity_error
from ambilm.evaluation.task import Run, Task
from ambilm.model.forward import logits, token_budget_batches

if TYPE_CHECKING:
    from ambilm import AmbiLM

DEFAULT_PASSAGES = 1000


@dataclass(frozen=True)
class Guess:
    """Token ids of a passage with its start token, and how many at the end are the word to guess."""

    ids: list[int]
    word: int


@torch.inference_mode()
def guess_words(model: AmbiLM, guesses: Sequence[Guess], progress: bool = False) -> tuple[list[bool], list[np.ndarray]]:
    """Whether each word is what greedy decoding gives, and the log-probabilities of its tokens."""
    right = [False] * len(guesses)
    log_probs: list[np.ndarray] = [np.empty(0)] * len(guesses)
    batches = token_budget_batches([len(guess.ids) for guess in guesses], BATCH_TOKENS)
    for batch in tqdm(batches, desc="lambada", disable=not progress, leave=False):
        rows = [torch.tensor(guesses[index].ids) for index in batch]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(model.device)  # (batch, length)
        # Padding stands on the right, where no causal position looks: no mask is needed.
        hidden = model.base.base_model(input_ids=ids).last_hidden_state  # (batch, length, hidden)
        for row, index in enumerate(batch):
            guess = guesses[index]
            stop = len(guess.ids)
            scores = logits(model.base, hidden[row, stop - guess.word - 1 : stop - 1])  # (word tokens, vocabulary)
            target = ids[row, stop - guess.word : stop]  # (word tokens,)
            right[index] = bool((scores.argmax(dim=-1) == target).all())
            log_probs[index] = scores.log_softmax(dim=-1).gather(1, target[:, None])[:, 0].cpu().numpy()
    return right, log_probs


def _guess(model: AmbiLM, row: Cloze) -> Guess:
    context = token_ids(model, row.context.rstrip())
    word = token_ids(model, " " + row.target)
    return Guess([model.settings.start_token_id, *context, *word], len(word))


def _run(run: Run) -> dict[str, Any]:
    rows = sample(read_rows(run.path, Cloze, "test"), run.limit or DEFAULT_PASSAGES, run.seed)
    right, log_probs = guess_words(run.model, [_guess(run.model, row) for row in rows], run.progress)
    accuracy = float(np.mean(right))
    return {
        "main": accuracy,
        "n": len(rows),
        "standard_error": float(np.sqrt(accuracy * (1 - accuracy) / len(rows))),
        "target_perplexity": perplexity(log_probs),
        "target_perplexity_error": perplexity_error(log_probs, run.seed),
    }


TASKS = (Task("lambada", "lambada", "accuracy", _run),)
GROUPS: dict[str, tuple[str, ...]] = {}
