"""Sentence and word vectors: tokenising with prompts, length-sorted packed batches, pooling, precision."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ambilm.errors import UserError
from ambilm.model.forward import hidden_states, pack, pack_layout, token_budget_batches
from ambilm.model.settings import LayoutName, Pooling

Precision = Literal["float32", "int8", "uint8", "binary", "ubinary"]
Subword = Literal["mean", "first", "last"]

CHUNK = 4096  # texts that are sorted by length together; bounds the memory for any number of texts
BATCH_TOKENS = 1024  # tokens of one packed row; larger rows fall out of the processor's cache


Range = tuple[int, int]  # first token and the one after the last


@dataclass(frozen=True)
class Encoded:
    """Token ids of one text with its prompt, and which of them are the text: where a template repeats it, the last time."""

    ids: list[int]
    text: Range


def clean(text: str) -> str:
    """NUL and lone surrogates cannot be tokenised: NUL goes, a surrogate becomes the replacement character."""
    return text.replace("\x00", "").encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class PromptedTokenizer:
    """Texts into token ids, with a prompt before (or a template around) each and perhaps the end token after it.

    A template holds ``{text}`` once or several times. A token belongs to the part of it that its last character lies in.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: str,
        max_length: int,
        *,
        start: int,
        sink: bool,
        end: int | None,
    ) -> None:
        self.tokenizer, self.end = tokenizer, end
        # The start token is the sink; without one it still stands in for a text of no tokens.
        self.start = start
        self.prepended = [start] if sink else self._bos()
        self.pieces = prompt.split("{text}")
        if len(self.pieces) == 1:  # a prefix
            self.pieces = [prompt if not prompt or prompt[-1].isspace() else prompt + " ", ""]
        self.room = max_length - len(self.prepended) - (end is not None)
        if self._kept(sum(map(len, self._ids(self.pieces)))) < 1:
            raise UserError(f"max_length={max_length} leaves no room for a text beside its prompt: raise it.")

    def _ids(self, texts: list[str]) -> list[list[int]]:
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"]  # type: ignore[return-value]

    def __call__(self, texts: Sequence[str]) -> list[Encoded]:
        cleaned = [clean(text) for text in texts]
        joined = [text.join(self.pieces) for text in cleaned]
        if self.pieces == ["", ""]:
            return [self._finished(*self._cut(ids, [(0, len(ids))])) for ids in self._ids(joined)]
        tokens = self.tokenizer(joined, add_special_tokens=False, return_offsets_mapping=True)
        encoded = []
        for text, ids, offsets in zip(cleaned, tokens["input_ids"], tokens["offset_mapping"], strict=True):  # type: ignore[arg-type]
            ranges = self._ranges(len(text), [stop for _, stop in offsets])
            encoded.append(self._finished(*self._cut(ids, ranges)))
        return encoded

    def text_of(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text in token ids that this made, without prompt and template, as far as it was kept."""
        whole = str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        length = (len(whole) - sum(map(len, self.pieces))) // (len(self.pieces) - 1)
        return whole[len(self.pieces[0]) : len(self.pieces[0]) + length]

    def pooled_range(self, item: Encoded, include_prompt: bool) -> Range:
        """Tokens that mean pooling counts: the text's, or all but what was prepended, which says nothing of the text."""
        return (min(len(self.prepended), len(item.ids) - 1), len(item.ids)) if include_prompt else item.text

    def _ranges(self, characters: int, stops: Sequence[int]) -> list[Range]:
        """Where each occurrence of a text of so many characters lies among tokens that end at the characters ``stops``."""
        ranges, place = [], 0
        for piece in self.pieces[:-1]:
            begin = place + len(piece)
            place = begin + characters
            ranges.append((bisect_right(stops, begin), bisect_right(stops, place)))
        return ranges

    def _cut(self, ids: list[int], occurrences: list[Range]) -> tuple[list[int], Range]:
        """What fits of the text, in each of its places; the template stays. Also where the last occurrence is now."""
        if len(ids) <= self.room:
            return ids, occurrences[-1]
        kept = self._kept(len(ids) - sum(stop - start for start, stop in occurrences))
        cut: list[int] = []
        first = done = 0
        for start, stop in occurrences:
            cut += ids[done:start]
            first, done = len(cut), stop
            cut += ids[start : min(stop, start + kept)]
        return cut + ids[done:], (first, len(cut))

    def _finished(self, ids: list[int], text: Range) -> Encoded:
        """With what stands around every text. A text without a token of its own borrows its neighbour's."""
        ids = self.prepended + ids + ([self.end] if self.end is not None else []) or [self.start]
        first = min(len(self.prepended) + text[0], len(ids) - 1)
        return Encoded(ids, (first, max(len(self.prepended) + text[1], first + 1)))

    def _kept(self, template_tokens: int) -> int:
        """How many tokens of a text fit in each of its places."""
        return max(self.room - template_tokens, 0) // (len(self.pieces) - 1)

    def _bos(self) -> list[int]:
        """The BOS that the tokenizer adds by itself (Gemma), which the model was trained to expect."""
        ids = self.tokenizer("a")["input_ids"]
        bos = self.tokenizer.bos_token_id
        return [bos] if bos is not None and ids and ids[0] == bos else []  # type: ignore[index, list-item]


def pooled(hidden: Tensor, lengths: Sequence[int], ranges: Sequence[Range], pooling: Pooling) -> Tensor:
    """Sentence vectors of a packed row.

    Args:
        hidden: (1, sum of lengths, hidden).
        lengths: tokens of each text.
        ranges: which tokens of each text mean pooling counts, (first, the one after the last).
        pooling: ``last``, ``mean``, or ``weighted_mean`` (weights grow linearly with the place; Muennighoff 2022, SGPT).

    Returns:
        (texts, hidden).
    """
    rows = hidden[0]  # (sum of lengths, hidden)
    counts = torch.tensor(lengths, device=rows.device)
    if pooling == "last":
        return rows[torch.cumsum(counts, 0) - 1]
    text = torch.repeat_interleave(torch.arange(len(counts), device=rows.device), counts)
    place = torch.arange(rows.shape[0], device=rows.device) - (torch.cumsum(counts, 0) - counts)[text]
    first, stop = torch.tensor(ranges, device=rows.device)[text].unbind(1)  # (sum of lengths,) each
    weight = ((place >= first) & (place < stop)).to(rows.dtype)
    if pooling == "weighted_mean":
        weight = weight * (place - first + 1).to(rows.dtype)
    sums = torch.zeros(len(counts), rows.shape[1], dtype=rows.dtype, device=rows.device)
    sums.index_add_(0, text, rows * weight[:, None])
    totals = torch.zeros(len(counts), dtype=rows.dtype, device=rows.device).index_add_(0, text, weight)
    return sums / totals[:, None]


def packed_hidden(view: PreTrainedModel, sequences: Sequence[Sequence[int]], layout: LayoutName, sink: bool) -> Tensor:
    """Hidden states of several texts in one packed row, (1, sum of lengths, hidden)."""
    ids = pack(sequences, view.device)
    is_span = torch.full(ids.shape, layout == "causal", device=view.device)
    return hidden_states(view, ids, pack_layout([len(s) for s in sequences], is_span, sink=sink))


def chunks(items: Iterable[str], size: int = CHUNK) -> Iterator[list[str]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


@torch.inference_mode()
def encode_texts(
    view: PreTrainedModel,
    tokenizer: PromptedTokenizer,
    texts: Iterable[str],
    *,
    layout: LayoutName,
    sink: bool,
    pooling: Pooling,
    include_prompt: bool,
    finish: Callable[[np.ndarray], np.ndarray],
    batch_tokens: int,
    batch_size: int | None,
    show_progress: bool,
) -> np.ndarray:
    """Vectors in the order given, (texts, dimension). Memory beyond the result is one chunk, however many texts come."""
    total = len(texts) if isinstance(texts, Sequence) else None
    result: np.ndarray | None = None
    done = 0
    with tqdm(total=total, desc="Encoding", unit="text", disable=not show_progress) as progress:
        for chunk in chunks(texts):
            for place, text in enumerate(chunk):
                if not isinstance(text, str):
                    raise UserError(
                        f"encode takes texts, item {done + place} is a {type(text).__name__}: pass strings."
                    )
            encoded = tokenizer(chunk)
            for batch in token_budget_batches([len(item.ids) for item in encoded], batch_tokens, batch_size):
                members = [encoded[index] for index in batch]
                hidden = packed_hidden(view, [item.ids for item in members], layout, sink)
                ranges = [tokenizer.pooled_range(item, include_prompt) for item in members]
                vectors = finish(
                    pooled(hidden, [len(item.ids) for item in members], ranges, pooling).float().cpu().numpy()
                )
                if result is None:
                    result = np.empty((total or len(chunk), vectors.shape[1]), vectors.dtype)
                if result.shape[0] < done + len(chunk):
                    # Grown in place: a list of pieces would need the result twice when it is joined.
                    result.resize((max(done + len(chunk), result.shape[0] * 5 // 4), vectors.shape[1]), refcheck=False)
                result[[done + index for index in batch]] = vectors
                progress.update(len(batch))
            done += len(chunk)
    if result is None:
        return finish(np.empty((0, view.config.get_text_config().hidden_size), np.float32))
    result.resize((done, result.shape[1]), refcheck=False)
    return result


def finisher(normalize: bool, truncate_dim: int | None, precision: Precision) -> Callable[[np.ndarray], np.ndarray]:
    """What happens to raw vectors: truncation, unit length, then the stored precision.

    ``int8``/``uint8`` map each vector's own range, largest absolute value to 127, which keeps cosines; ``binary``/
    ``ubinary`` keep the signs, eight to a byte, as sentence-transformers does.
    """

    def finish(vectors: np.ndarray) -> np.ndarray:
        vectors = vectors[:, :truncate_dim].astype(np.float32)
        if normalize:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        if precision == "float32":
            return vectors
        if precision in ("binary", "ubinary"):
            bits = np.packbits(vectors > 0, axis=1)
            return bits if precision == "ubinary" else (bits.astype(np.int16) - 128).astype(np.int8)
        scale = 127.0 / np.maximum(np.abs(vectors).max(axis=1, keepdims=True, initial=0.0), 1e-12)
        rounded = np.rint(vectors * scale)
        return rounded.astype(np.int8) if precision == "int8" else (rounded + 128).astype(np.uint8)

    return finish


@dataclass(frozen=True)
class Words:
    """Token ids of one sentence given as words, and the token range (start, stop) of each word."""

    ids: list[int]
    ranges: list[tuple[int, int]]


def tokenize_words(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sequence[str]], start: int, max_length: int
) -> list[Words]:
    """Words joined by spaces, tokenised as running text; a token belongs to the word that its characters lie in."""
    result = []
    for number, words in enumerate(sentences):
        if isinstance(words, str):
            raise UserError(
                f"Sentence {number} is a string: encode_tokens takes lists of words, e.g. sentence.split()."
            )
        cleaned = [clean(word) for word in words]
        bounds = list(itertools.accumulate((len(word) + 1 for word in cleaned), initial=0))
        encoded = tokenizer(" ".join(cleaned), add_special_tokens=False, return_offsets_mapping=True)
        # A token before the first word, so that the MNTP shift has something to read there.
        ids, offsets = [start, *encoded["input_ids"]], encoded["offset_mapping"]  # type: ignore[misc]
        if len(ids) > max_length:
            raise UserError(
                f"Sentence {number} has {len(ids)} tokens and max_length is {max_length}: split it or raise max_length."
            )
        ranges, token = [], 0
        for begin, word in zip(bounds, cleaned, strict=False):
            stop_character = begin + len(word)
            while token < len(offsets) and offsets[token][1] <= begin:
                token += 1
            first = token
            while token < len(offsets) and offsets[token][0] < stop_character:
                token += 1
            # A word without a token of its own (empty, or inside its neighbour's token) reads the token before it.
            ranges.append((first + 1, token + 1) if token > first else (max(first, 0), max(first, 0) + 1))
        result.append(Words(ids, ranges))
    return result


def word_vectors(rows: Tensor, ranges: Sequence[tuple[int, int]], subword: Subword, shift: int) -> Tensor:
    """Vectors of the words of one sentence.

    Args:
        rows: (tokens, hidden).
        ranges: token range of each word.
        subword: ``first``, ``last`` or ``mean`` of the word's tokens.
        shift: 1 reads one token earlier, where MNTP training put what it knows of a token (LLM2Vec, section 3.2).

    Returns:
        (words, hidden).
    """
    if not ranges:
        return rows[:0]
    picked = []
    for start, stop in ranges:
        start, stop = max(start - shift, 0), max(stop - shift, 1)
        piece = {"first": rows[start : start + 1], "last": rows[stop - 1 : stop], "mean": rows[start:stop]}[subword]
        picked.append(piece.mean(dim=0))
    return torch.stack(picked)


@torch.inference_mode()
def encode_words(
    view: PreTrainedModel, sentences: Sequence[Words], *, layout: LayoutName, sink: bool, subword: Subword, shift: int,
    batch_tokens: int,
) -> list[np.ndarray]:  # fmt: skip
    """Word vectors of each sentence, (words, hidden), in the order given."""
    result: list[np.ndarray] = [np.empty(0)] * len(sentences)
    for batch in token_budget_batches([len(item.ids) for item in sentences], batch_tokens):
        lengths = [len(sentences[index].ids) for index in batch]
        hidden = packed_hidden(view, [sentences[index].ids for index in batch], layout, sink)
        for index, rows in zip(batch, hidden[0].split(lengths), strict=True):
            result[index] = word_vectors(rows, sentences[index].ranges, subword, shift).float().cpu().numpy()
    return result
