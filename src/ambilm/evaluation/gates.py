"""What the gates of a UBMoE model decide: the share of tokens on expert 1, for each layer and kind of token.

Li et al. (ICML 2025, section 4) train the gates and do not show where they send what; this does. The model reads the texts
from left to right under its learned gates, as it does when it generates with ``--weights learned``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ambilm.adaptation import Recorder, routing
from ambilm.errors import UserError
from ambilm.evaluation.conversations import Document, turns_of
from ambilm.evaluation.data import sample
from ambilm.training.conversations import pieces_of
from ambilm.training.text import clean

if TYPE_CHECKING:
    from ambilm.model import AmbiLM

# What a token is part of, and what it looks like. Every token has one class of each kind.
PARTS = ("prompt", "answer", "text")
FORMS = ("beginning of a word", "inside a word", "number", "punctuation", "white space", "special token")


def form_of(text: str, start: int, stop: int) -> str:
    """The class in ``FORMS`` of the characters ``start`` to ``stop`` of a text, which a token stands for."""
    surface = text[start:stop]
    bare = surface.strip()
    if not bare:
        return "white space"
    if any(character.isalpha() for character in bare):
        before = text[start - 1 : start] if surface[0] == bare[0] else ""
        return "inside a word" if before.isalpha() else "beginning of a word"
    return "number" if any(character.isdigit() for character in bare) else "punctuation"


def classified(document: Document, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[tuple[str, str]]]:
    """Token ids of a text or conversation, and the part and form of each.

    A conversation is cut as in training; one that cannot be cut, or holds no answer, gives no tokens.
    """
    if isinstance(document, str):
        pieces = [(clean(document), "text")]
    else:
        cut = pieces_of(tokenizer, turns_of(document)) or []
        pieces = [(text, "answer" if answer else "prompt") for text, answer in cut]
    ids: list[int] = []
    classes: list[tuple[str, str]] = []
    for text, part in pieces:
        tokens = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for token, (start, stop) in zip(tokens["input_ids"], tokens["offset_mapping"], strict=True):
            form = "special token" if token in tokenizer.all_special_ids else form_of(text, start, stop)
            ids.append(token)
            classes.append((part, form))
    return ids, classes


def gate_shares(
    model: AmbiLM,
    documents: Iterable[Document],
    *,
    limit: int | None = 100,
    max_length: int = 512,
    seed: int = 0,
    progress: bool = False,
) -> dict[str, Any]:
    """Percent of the tokens that go to expert 1.

    Args:
        model: with a mixture (recipe ``ubmoe``).
        documents: texts or conversations; the latter go through the model's chat template.
        limit: most documents, a seeded sample; None for all.
        max_length: tokens after these are left out.
        progress: a bar on a terminal.

    Returns:
        ``documents``; ``classes``, under "all tokens" and each class that occurs of ``PARTS`` and ``FORMS``: ``n``
        (tokens), ``share`` (percent of them on expert 1, mean over layers) and ``layers`` (percent in each layer).

    Raises:
        UserError: when the model has no gates, or no document has tokens.
    """
    gated = model.with_weights("learned").base
    pairs = (classified(document, model.tokenizer) for document in documents)
    chosen = sample((pair for pair in pairs if pair[0]), limit, seed)
    if not chosen:
        raise UserError(
            "Nothing to measure the gates on: give --data with texts, or with conversations that have answers."
        )
    routed, classes = [], []
    for ids, own in tqdm(chosen, desc=f"Gates of {model.name}", unit="text", disable=None if progress else True):
        routed.append(_routed(gated, ids[:max_length]))
        classes += own[:max_length]
    return {"documents": len(chosen), "classes": _by_class(np.concatenate(routed, axis=1), np.array(classes))}


@torch.inference_mode()
def _routed(gated: PreTrainedModel, ids: list[int]) -> np.ndarray:
    """Whether each layer sends each token to expert 1, (layers, length)."""
    with routing("learned", record=True) as recorder:
        gated(torch.tensor([ids], device=gated.device), use_cache=False, logits_to_keep=1)
    assert isinstance(recorder, Recorder)
    return recorder.probabilities().argmax(dim=-1).bool().cpu().numpy()


def _by_class(routed: np.ndarray, classes: np.ndarray) -> dict[str, dict[str, Any]]:
    """Shares of (layers, tokens) for all tokens and for each class in (tokens, 2)."""
    members = {"all tokens": np.ones(len(classes), bool)}
    for place, names in enumerate((PARTS, FORMS)):
        members |= {name: classes[:, place] == name for name in names}
    found = {}
    for name, chosen in members.items():
        if chosen.any():
            layers = 100 * routed[:, chosen].mean(axis=1)  # (layers,)
            found[name] = {"n": int(chosen.sum()), "share": float(layers.mean()), "layers": layers.round(4).tolist()}
    return found
