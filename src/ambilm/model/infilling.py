"""Filling in missing text: one bidirectional prefill of the context, then ordinary cached decoding of each span.

This computes what the hybrid-mask pass of MAGNET computes (section 3.1), token by token: a context token never sees a span
token, so its keys and values are final after the prefill; a span token sees everything cached so far. Each blank keeps
its place in the order by a gap of positions, as in training; the end-of-span token stops it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase
from transformers.generation import logits_process

from ambilm.attention import Layout, Tokens
from ambilm.errors import UserError
from ambilm.model.decoding import Step, Steps, decode
from ambilm.model.encoding import clean
from ambilm.model.forward import hidden_states, logits
from ambilm.model.settings import BLANK, Settings

# A span that reaches its bound is cut where the model gave its end at least this probability.
LIKELY_END = 0.02


@dataclass(frozen=True)
class Infilled:
    """A text with its blanks filled.

    Attributes:
        text: the whole text.
        spans: what stands in each blank, without the spaces around it.
        score: log-probability (nats) of the spans and their ends given both sides.
        ended: whether every span ended by itself; a span that reached its bound was cut.
        candidates: all candidates, best first, this one included; empty on the candidates themselves.
    """

    text: str
    spans: list[str]
    score: float
    ended: bool = True
    candidates: list[Infilled] = field(default_factory=list)


@dataclass(frozen=True)
class Gaps:
    """A text cut at its blanks.

    Attributes:
        texts: the text around the blanks, one more than there are blanks.
        pieces: their token ids; the first begins with the start token, and none but the last is empty.
    """

    texts: list[str]
    pieces: list[list[int]]


def cut_at_blanks(text: str, tokenizer: PreTrainedTokenizerBase, settings: Settings) -> Gaps:
    """Cuts a text at ``[BLANK]``. A space before a blank belongs to what is missing, as tokenizers see it.

    Raises:
        UserError: without a blank, or for two blanks with nothing between them.
    """
    if not isinstance(text, str) or BLANK not in text:
        raise UserError(f"There is nothing to fill in: mark each missing part with {BLANK}.")
    texts = clean(text).split(BLANK)
    if any(not part.strip() for part in texts[1:-1]):
        raise UserError(f"Two blanks have no text between them: write one {BLANK} for both.")
    trimmed = [part[:-1] if part.endswith(" ") else part for part in texts[:-1]] + [texts[-1]]
    pieces = [list(tokenizer(part, add_special_tokens=False)["input_ids"]) for part in trimmed]  # type: ignore[arg-type]
    pieces[0] = [settings.start_token_id, *pieces[0]]
    return Gaps(texts, pieces)


def with_spans(
    gaps: Gaps, spans: Sequence[str], tokenizer: PreTrainedTokenizerBase
) -> tuple[list[int], list[tuple[int, int]]]:
    """The whole text as token ids (without the start token) with the given spans in place, and where they stand.

    Raises:
        UserError: for an empty span.
    """
    ids = gaps.pieces[0][1:]
    places = []
    for number, span in enumerate(spans):
        spaced = " " + span.strip() if gaps.texts[number].endswith(" ") else span
        tokens = list(tokenizer(clean(spaced), add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]
        if not span.strip():
            raise UserError(f"Span {number} is empty: give the text that stands in the blank.")
        places.append((len(ids), len(ids) + len(tokens)))
        ids = ids + tokens + gaps.pieces[number + 1]
    return ids, places


@dataclass(frozen=True)
class Decoding:
    """How spans are decoded.

    Attributes:
        candidates: how many fillings.
        min_tokens, max_tokens: bounds of each blank's length; ``max_tokens`` is also the gap of positions it keeps.
        sample: draw from the distribution instead of taking the most likely token.
        seed: seed of the drawing.
        processors: transformers' logits processors.
    """

    candidates: int
    min_tokens: list[int]
    max_tokens: list[int]
    sample: bool
    seed: int | None
    processors: LogitsProcessorList


def per_blank(name: str, value: int | Sequence[int], blanks: int, least: int) -> list[int]:
    """A bound for each blank from one number or one a blank."""
    values = [value] * blanks if isinstance(value, int) else list(value)
    if len(values) != blanks:
        raise UserError(f"{name} has {len(values)} values for {blanks} blanks: give one number, or one for each blank.")
    if any(item < least for item in values):
        raise UserError(f"{name} must be at least {least}.")
    return values


# transformers' generate options that shape the distribution, and the processor of each.
PROCESSORS = {
    "repetition_penalty": logits_process.RepetitionPenaltyLogitsProcessor,
    "no_repeat_ngram_size": logits_process.NoRepeatNGramLogitsProcessor,
    "temperature": logits_process.TemperatureLogitsWarper,
    "top_k": logits_process.TopKLogitsWarper,
    "top_p": logits_process.TopPLogitsWarper,
    "min_p": logits_process.MinPLogitsWarper,
    "typical_p": logits_process.TypicalLogitsWarper,
    "epsilon_cutoff": logits_process.EpsilonLogitsWarper,
}


def processors(options: dict[str, Any]) -> LogitsProcessorList:
    """The processors of the given options, in transformers' order.

    Raises:
        UserError: for an option or a value that does not exist.
    """
    unknown = sorted(set(options) - set(PROCESSORS))
    if unknown:
        raise UserError(f"infill has no option {unknown[0]!r}: choose from {', '.join(PROCESSORS)}.")
    try:
        return LogitsProcessorList(
            [make(options[name]) for name, make in PROCESSORS.items() if options.get(name) is not None]
        )
    except ValueError as error:
        raise UserError(f"infill refused its options: {error}") from error


def planned(
    text: str, tokenizer: PreTrainedTokenizerBase, settings: Settings, room: int, *, num_candidates: int,
    min_tokens: int | Sequence[int], max_tokens: int | Sequence[int], do_sample: bool, seed: int | None,
    options: dict[str, Any],
) -> tuple[Gaps, Decoding]:  # fmt: skip
    """What :meth:`AmbiLM.infill` is asked for, checked; ``room`` is the model's longest text in tokens.

    Raises:
        UserError: without a blank, with two blanks side by side, for a text that does not fit, or a wrong option.
    """
    if num_candidates < 1:
        raise UserError(f"num_candidates={num_candidates} must be at least 1.")
    gaps = cut_at_blanks(text, tokenizer, settings)
    blanks = len(gaps.pieces) - 1
    longest = per_blank("max_tokens", max_tokens, blanks, 1)
    shortest = per_blank("min_tokens", min_tokens, blanks, 0)
    if any(low > high for low, high in zip(shortest, longest, strict=True)):
        raise UserError("min_tokens is larger than max_tokens.")
    needed = sum(map(len, gaps.pieces)) + sum(longest)
    if needed > room:
        raise UserError(f"The text and its blanks need {needed} tokens, the model has {room}: shorten the text.")
    return gaps, Decoding(num_candidates, shortest, longest, do_sample, seed, processors(options))


@torch.inference_mode()
def fill(
    view: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: Settings, gaps: Gaps, decoding: Decoding
) -> list[Infilled]:
    """The candidates, best first."""
    filling = Filling(view, settings, gaps, decoding, set(tokenizer.all_special_ids))
    decode(view, filling.cache, filling.steps())
    return filling.candidates(tokenizer)


def _assemble(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], spans: list[list[int]], score: float, ended: bool
) -> Infilled:  # fmt: skip
    decoded = [str(tokenizer.decode(span, skip_special_tokens=True)) for span in spans]
    whole = texts[0]
    for span, after in zip(decoded, texts[1:], strict=True):
        whole = whole + (span[1:] if whole.endswith(" ") and span.startswith(" ") else span) + after
    return Infilled(whole, [re.sub(r"\s+", " ", span).strip() for span in decoded], score, ended)


class Filling:
    """One infill under way: the cache, which tokens stand in it, and what was decoded so far. Made, the context is read.

    Attributes:
        cache: keys and values of every candidate.
        spans: token ids of the blanks filled so far, of each candidate.
        ended: of each candidate, whether all of them ended by themselves.
    """

    def __init__(
        self, view: PreTrainedModel, settings: Settings, gaps: Gaps, decoding: Decoding, special: set[int]
    ) -> None:
        self.view, self.settings, self.gaps, self.decoding = view, settings, gaps, decoding
        self.forbidden = torch.tensor(sorted(special - {settings.end_of_span_token_id}), dtype=torch.long)
        self.cache = DynamicCache()
        self.rows = decoding.candidates
        self.generator = torch.Generator(view.device)
        if decoding.seed is not None:
            self.generator.manual_seed(decoding.seed)
        else:
            self.generator.seed()
        self._prefill()
        self.spans: list[list[list[int]]] = [[] for _ in range(self.rows)]
        self.scores = torch.zeros(self.rows, device=view.device)
        self.ended = [True] * self.rows

    def _prefill(self) -> None:
        position: list[int] = []
        ends = []  # the place of the last context token before each blank
        self.starts = []  # the first position of each blank
        for number, piece in enumerate(self.gaps.pieces):
            place = position[-1] + 1 + self.decoding.max_tokens[number - 1] if number else 0
            position += range(place, place + len(piece))
            ends.append(len(position) - 1)
            self.starts.append(position[-1] + 1)
        device = self.view.device
        ids = torch.tensor([[token for piece in self.gaps.pieces for token in piece]], device=device)  # (1, context)
        zeros = torch.zeros_like(ids)
        context = Tokens(zeros, zeros.bool(), torch.tensor([position], device=device))
        context = context.with_sinks() if self.settings.sink else context
        hidden = hidden_states(self.view, ids, Layout.of(context), self.cache)  # (1, context, hidden)
        self.first_logits = logits(self.view, hidden[0, ends[:-1]])  # (blanks, vocabulary)
        self.context_ids = ids.expand(self.rows, -1)
        self.cached = Tokens(
            *(getattr(context, name).expand(self.rows, -1) for name in ("text", "is_span", "position"))
        )
        if self.rows > 1:
            self.cache.batch_repeat_interleave(self.rows)

    def steps(self) -> Steps[None]:
        """Fills the blanks one after the other."""
        for number in range(len(self.gaps.pieces) - 1):
            yield from self._fill_blank(number)

    def candidates(self, tokenizer: PreTrainedTokenizerBase) -> list[Infilled]:
        """What was decoded, best first."""
        filled = [
            _assemble(tokenizer, self.gaps.texts, *row)
            for row in zip(self.spans, self.scores.tolist(), self.ended, strict=True)
        ]
        return sorted(filled, key=lambda item: -item.score)

    def _fill_blank(self, number: int) -> Steps[None]:
        """Decodes one blank of every candidate until each has ended its span or reached its bound."""
        end, longest, shortest = (
            self.settings.end_of_span_token_id,
            self.decoding.max_tokens[number],
            self.decoding.min_tokens[number],
        )
        scores = self.first_logits[number].expand(self.rows, -1)  # (candidates, vocabulary)
        running = torch.ones(self.rows, dtype=torch.bool, device=scores.device)
        first_column = self.cached.text.shape[1]
        written: list[Tensor] = []  # (candidates,) a step, as are the next two
        gains: list[Tensor] = []
        ends: list[Tensor] = []
        for step in range(longest):
            branch = number == 0 and step == 0 and not self.decoding.sample
            token = self._choose(scores, written, may_end=step >= shortest, branch=branch)
            log_probs = torch.log_softmax(scores, -1)
            ends.append(log_probs[:, end])
            gains.append(torch.where(running, log_probs.gather(1, token[:, None])[:, 0], 0.0))
            running = running & (token != end)
            if not bool(running.any()):
                break
            written.append(torch.where(running, token, -1))
            last = number + 1 == len(self.first_logits) and step + 1 == longest
            if not last:  # the last token of all has nothing to predict
                scores = yield self._next(token, running, self.starts[number] + step)
        self._finish_blank(written, gains, ends, running, shortest, first_column)

    def _finish_blank(
        self, written: list[Tensor], gains: list[Tensor], ends: list[Tensor], running: Tensor, shortest: int, column: int
    ) -> None:  # fmt: skip
        """Keeps what was written; a span that reached its bound is cut where its end was likely, if it ever was."""
        columns = torch.stack(written, 1).tolist() if written else [[] for _ in range(self.rows)]
        gain, ended = torch.stack(gains, 1), torch.stack(ends, 1).exp()  # (candidates, steps)
        text = self.cached.text.clone()
        for row, (spans, tokens) in enumerate(zip(self.spans, columns, strict=True)):
            kept, total = [token for token in tokens if token >= 0], gain[row].sum()
            likely = int(ended[row, shortest:].argmax()) + shortest if ended.shape[1] > shortest else 0
            if bool(running[row]) and likely > 0 and float(ended[row, likely]) >= LIKELY_END:
                kept, total = kept[:likely], gain[row, :likely].sum() + ended[row, likely].log()
                # Later blanks must not see what was cut: in the cache it becomes padding.
                cut = torch.arange(column + likely, text.shape[1], device=text.device)
                text[row, cut] = -1 - cut
            self.ended[row] = self.ended[row] and not bool(running[row])
            spans.append(kept)
            self.scores[row] += total
        self.cached = replace(self.cached, text=text)

    def _choose(self, scores: Tensor, written: list[Tensor], may_end: bool, branch: bool) -> Tensor:
        """The next token of each candidate, (candidates,)."""
        allowed = scores.index_fill(1, self.forbidden.to(scores.device), -torch.inf)
        if not may_end:
            allowed[:, self.settings.end_of_span_token_id] = -torch.inf
        if len(self.decoding.processors):
            past = torch.cat([self.context_ids, *(token.clamp(min=0)[:, None] for token in written)], dim=1)
            allowed = self.decoding.processors(past, allowed)  # type: ignore[arg-type]
        if branch:  # greedy candidates differ in their first token: the most likely ones
            best = allowed[0].topk(self.rows)
            if bool(best.values.isinf().any()):
                raise UserError(
                    f"The options leave fewer than {self.rows} first tokens: lower num_candidates, or cut fewer tokens off."
                )
            return best.indices
        if self.decoding.sample:
            return torch.multinomial(torch.softmax(allowed, -1), 1, generator=self.generator)[:, 0]
        return allowed.argmax(-1)

    def _next(self, token: Tensor, running: Tensor, position: int) -> Step:
        """One span token of each candidate; candidates that ended read padding."""
        column = self.cached.text.shape[1]
        new = Tokens(
            torch.where(running, 0, -1 - column)[:, None],
            torch.ones_like(token, dtype=torch.bool)[:, None],
            torch.full_like(token, position)[:, None],
        )
        self.cached = Tokens.join([self.cached, new])
        return Step(token[:, None], new, self.cached)
