"""Conversations as token ids that know which tokens are answers, through the model's own chat template."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from jinja2 import TemplateError
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ambilm.training.tokens import Flat

Message = dict[str, str]
Spans = list[tuple[int, int]]


def rendered(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], answer_next: bool = False) -> str:
    """The conversation as the model reads it; without a chat template, lines of ``role: content``.

    Args:
        answer_next: end where the assistant begins to speak.

    Raises:
        TemplateError: when the template refuses the conversation.
    """
    if tokenizer.chat_template:
        options: dict[str, Any] = {"tokenize": False, "add_generation_prompt": answer_next}
        return str(tokenizer.apply_chat_template(list(messages), **options))
    lines = [f"{message['role']}: {message['content']}\n" for message in messages]
    return "".join(lines) + ("assistant:" if answer_next else "")


def pieces_of(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[tuple[str, bool]] | None:
    """The rendered conversation cut into pieces, each with whether it is an answer; None when that cannot be said.

    An answer is what the template adds for a turn of the assistant beyond the prompt to speak, the end of the turn
    included. Templates that change earlier turns later on (dropping a model's thoughts, say) allow no such cut.
    """
    pieces, done = [], ""
    try:
        for number, message in enumerate(messages):
            if message["role"] != "assistant" or number == 0:  # nobody asked for what opens a conversation
                continue
            before = rendered(tokenizer, messages[:number], answer_next=True)
            after = rendered(
                tokenizer, messages[: number + 1]
            ).rstrip()  # white space after the end of a turn is no answer
            if not before.startswith(done) or not after.startswith(before):
                return None
            pieces += [(before[len(done) :], False), (after[len(before) :], True)]
            done = after
    except TemplateError:
        return None
    return pieces


def conversation_tokens(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], start: Sequence[int]
) -> tuple[list[int], Spans] | None:
    """Token ids after ``start``, and (start, stop) of each answer; None for a conversation without an answer."""
    ids, answers = list(start), []
    for text, is_answer in pieces_of(tokenizer, messages) or []:
        tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[assignment]
        if is_answer:
            answers.append((len(ids), len(ids) + len(tokens)))
        ids += tokens
    return (ids, answers) if answers else None


class ConversationStore(Flat):
    """Conversations as token ids; ``store[i]`` is (ids, answers). Two sequences each: the ids, and the answers' bounds."""

    def __len__(self) -> int:
        return super().__len__() // 2

    def __getitem__(self, index: int) -> tuple[np.ndarray, Spans]:
        ids, bounds = (self.sequence(2 * index + part).astype(np.int64) for part in range(2))
        return ids, [(int(start), int(stop)) for start, stop in bounds.reshape(-1, 2)]

    @property
    def skipped(self) -> int:
        """Conversations that were left out: no answer, none within the length, or a template that cannot be cut."""
        return int(self.facts["skipped"])

    @classmethod
    def build(
        cls, conversations: Iterable[list[Message]], tokenizer: PreTrainedTokenizerBase, directory: Path, max_length: int,
        fingerprint: str, start_token: int, progress: bool = False,
    ) -> Self:  # fmt: skip
        """Tokenises ``conversations`` into ``directory``, each cut to its first ``max_length`` tokens."""
        counts = {"skipped": 0}
        start = [] if tokenizer.chat_template else [start_token]  # a template writes its own

        def sequences() -> Iterator[Sequence[int]]:
            for messages in tqdm(conversations, desc="Tokenising", unit="conversation", disable=not progress):
                ids, answers = conversation_tokens(tokenizer, messages, start) or ([], [])
                kept = [(first, min(stop, max_length)) for first, stop in answers if first < max_length]
                if not kept:
                    counts["skipped"] += 1
                    continue
                yield ids[: kept[-1][1]]  # nothing is learned from what follows the last answer
                yield [bound for span in kept for bound in span]

        vocabulary = max(len(tokenizer), max_length + 1)  # ids and bounds share one type
        return cls._write(sequences(), vocabulary, directory, fingerprint, counts)
