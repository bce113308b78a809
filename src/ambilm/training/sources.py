"""What ``--text`` and ``--pairs`` hold, as token ids: tokenised once into the run's directory, memory-mapped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ambilm.errors import UserError
from ambilm.model.ambilm import AmbiLM
from ambilm.model.encoding import PromptedTokenizer
from ambilm.recipes import ContrastiveSettings, PairSettings, Recipe
from ambilm.training.conversations import ConversationStore
from ambilm.training.text import read_conversations, read_pairs, read_texts
from ambilm.training.tokens import PairStore, TokenStore, fingerprint


@dataclass(frozen=True)
class Sources:
    """The files of a run.

    Attributes:
        text, pairs: as given to ``adapt``.
        directory: where token stores go.
        run_before: makes a run that this one builds on, and returns its directory.
    """

    text: Sequence[str]
    pairs: Sequence[str]
    directory: Path
    run_before: Callable[[Recipe], Path]


def text_stores(sources: Sources, model: AmbiLM, max_length: int) -> list[TokenStore]:
    """One token store for each source of running text."""
    stores = []
    for number, source in enumerate(sources.text):
        mark = fingerprint([source], model.tokenizer, max_length - 1, "train")
        directory = sources.directory / f"text{number}"
        store = TokenStore.open(directory, mark)
        if store is None:
            store = TokenStore.build(
                read_texts([source]), model.tokenizer, directory, max_length=max_length - 1, fingerprint=mark,
                progress=True,
            )  # fmt: skip
        if len(store) == 0:
            raise UserError(
                f"--text {source} holds no text to train on: check its 'split' fields or give another file."
            )
        stores.append(store)
    return stores


def pairs_or_dropout(sources: Sources, model: AmbiLM, recipe: PairSettings) -> PairStore | None:
    """The pairs of a recipe that can do without; None where a text is compared with itself.

    Raises:
        UserError: where the recipe's views need pairs or dropout that are not there, and as :func:`pair_store`.
    """
    wanted = recipe.views or ("pairs" if sources.pairs else "dropout")
    if wanted != "dropout":
        return pair_store(sources, model, recipe)
    if recipe.attention_dropout == 0 and getattr(recipe, "dropout", 0) == 0:
        raise UserError(
            "Two views of one text differ by dropout alone: set attention_dropout or dropout above 0, or give --pairs."
        )
    return None


def pair_store(sources: Sources, model: AmbiLM, recipe: ContrastiveSettings) -> PairStore:
    """The pairs, tokenised as ``encode`` of the adapted model will.

    Raises:
        UserError: without ``--pairs``, or with fewer than a step takes.
    """
    if not sources.pairs:
        raise UserError("This run needs --pairs FILE with rows of anchor and positive.")
    prompt = prompted(model, recipe)
    setting = f"train {model.settings.model_dump_json()}"
    mark = fingerprint(sources.pairs, model.tokenizer, recipe.pair_tokens_max, setting)
    directory = sources.directory / "pairs"
    store = PairStore.open(directory, mark)
    if store is None:
        store = PairStore.build(
            read_pairs(sources.pairs), lambda texts: [item.ids for item in prompt(texts)], len(model.tokenizer),
            directory, fingerprint=mark, progress=True,
        )  # fmt: skip
    if len(store) < recipe.pairs_per_step:
        raise UserError(
            f"--pairs holds {len(store)} pairs and a step takes {recipe.pairs_per_step}: lower pairs_per_step."
        )
    return store


def prompted(model: AmbiLM, recipe: ContrastiveSettings) -> PromptedTokenizer:
    """Tokenises what is compared exactly as ``encode`` of the adapted model will."""
    settings = model.settings
    return PromptedTokenizer(
        model.tokenizer, recipe.prompt, recipe.pair_tokens_max, start=settings.start_token_id, sink=recipe.sink,
        end=settings.appended_end(recipe.pooling, recipe.prompt),
    )  # fmt: skip


def conversation_store(sources: Sources, model: AmbiLM, max_length: int, needed: int) -> ConversationStore:
    """The conversations of all sources of text, through the model's chat template.

    Raises:
        UserError: when there are fewer than the ``needed`` ones of a step.
    """
    mark = fingerprint(sources.text, model.tokenizer, max_length, f"conversations {model.tokenizer.chat_template}")
    directory = sources.directory / "conversations"
    store = ConversationStore.open(directory, mark)
    if store is None:
        store = ConversationStore.build(
            read_conversations(sources.text), model.tokenizer, directory, max_length=max_length, fingerprint=mark,
            start_token=model.settings.start_token_id, progress=True,
        )  # fmt: skip
    if store.skipped:
        print(f"{store.skipped:,} conversations have no answer to learn from: skipped", file=sys.stderr)
    if len(store) < needed:
        raise UserError(
            f"--text holds {len(store)} conversations with an answer and a step takes {needed}:"
            " lower conversations_per_step or give more."
        )
    return store
