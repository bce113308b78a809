"""``AmbiLM``: one decoder, both directions, from one set of weights."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, overload

import numpy as np
import torch
from pydantic import ValidationError
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ambilm.adaptation import (
    AdapterSettings,
    MixtureSettings,
    has_mixture,
    load_adapter,
    load_mixture,
    merged_copy,
    save_adapter,
    save_mixture,
    set_route,
    shared_view,
    stock_view,
    tuned_copy,
    with_mixture,
)
from ambilm.errors import UserError
from ambilm.loading import load_base
from ambilm.loading.quiet import quiet_transformers
from ambilm.model import encoding, generation, infilling, scoring
from ambilm.model.encoding import Precision, Subword
from ambilm.model.generation import Message, PrefixReader
from ambilm.model.infilling import Infilled
from ambilm.model.scoring import InfillExample, Score
from ambilm.model.settings import LayoutName, Pooling, Settings

Weights = Literal["adapted", "base"]
PromptLayout = Literal["causal", "prefix"]
EveryJobWeights = Literal["base", "by_job", "merged", "learned"]
SETTINGS_FILE = "ambilm.json"
ADAPTER_DIRECTORY = "adapter"
MIXTURE_DIRECTORY = "mixture"


class AmbiLM:
    """A decoder-only language model that also embeds sentences, represents tokens and fills in missing text.

    Generation runs on ``base``, the untouched transformers model; the other jobs run on ``view``, a second tree of modules
    over the same weights that carries the adapter. Nothing is switched, so calls of all kinds may run in several threads.

    Attributes:
        base: the stock transformers model.
        view: the same weights, attending by layout, with the adapter.
        tokenizer: the base's tokenizer.
        settings: defaults of the jobs.
        adapter: the adapter of the view, None without one.
        mixture: the two experts in each FFN of the view (UBMoE), None without them.
        notice: one line about device and dtype, with the reason.
    """

    def __init__(
        self, base: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, settings: Settings | None = None,
        notice: str = "",
    ) -> None:  # fmt: skip
        self.base, self.tokenizer, self.name, self.notice = base, tokenizer, name, notice
        self.settings = settings or Settings.for_tokenizer(tokenizer)
        self.view = shared_view(base)
        self.adapter: AdapterSettings | None = None
        self.mixture: MixtureSettings | None = None

    @classmethod
    def from_pretrained(
        cls, name: str | os.PathLike[str], dtype: str | torch.dtype = "auto", device: str = "auto", trust_remote_code: bool = False
    ) -> AmbiLM:  # fmt: skip
        """Loads a packaged model (``smollm2-135m``, ``gemma3-270m``), a directory, a ``.gguf`` file or a hub id.

        Args:
            dtype: ``auto`` takes bfloat16 where this processor computes it faster, else float32.
            device: ``auto``, ``cpu``, ``cuda``, ``mps``.
            trust_remote_code: run code that comes with a hub model; off unless you trust its author.

        Raises:
            UserError: when there is no such model, or it is not a decoder whose causal mask can be changed.
        """
        loaded = load_base(os.fspath(name), dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        directory = Path(name)
        settings = _read_settings(directory / SETTINGS_FILE) if (directory / SETTINGS_FILE).is_file() else None
        model = cls(loaded.model, loaded.tokenizer, loaded.name, settings, loaded.notice)
        if settings is not None and (directory / ADAPTER_DIRECTORY).is_dir():
            model.adapter = load_adapter(model.view, directory / ADAPTER_DIRECTORY)
        if settings is not None and (directory / MIXTURE_DIRECTORY).is_dir():
            model.mixture = load_mixture(model.view, directory / MIXTURE_DIRECTORY)
            set_route(model.view, "all_tuned")
        return model

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Writes base weights, tokenizer, settings and adaptation; the directory loads with nothing else installed.

        transformers loads the same directory as the base model. Files appear whole or not at all.

        Raises:
            UserError: for ``with_weights("learned")``, whose parts the model itself saves.
        """
        if has_mixture(self.base):
            raise UserError(f"{self.name} is a way to use a model: save the model that with_weights was called on.")
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target, prefix=".saving") as name:
            scratch = Path(name)
            with quiet_transformers():
                self.base.save_pretrained(scratch)
                self.tokenizer.save_pretrained(scratch)
            if self.adapter is not None:
                save_adapter(self.view, self.adapter, scratch / ADAPTER_DIRECTORY)
            if self.mixture is not None:
                save_mixture(self.view, self.mixture, scratch / MIXTURE_DIRECTORY)
            (scratch / SETTINGS_FILE).write_text(self.settings.model_dump_json(indent=2))
            for stale in (ADAPTER_DIRECTORY, MIXTURE_DIRECTORY):  # of an earlier save: it would be loaded with these
                if not (scratch / stale).exists():
                    shutil.rmtree(target / stale, ignore_errors=True)
            for item in scratch.iterdir():
                destination = target / item.name
                if destination.is_dir():
                    shutil.rmtree(destination)
                item.replace(destination)

    @property
    def is_adapted(self) -> bool:
        return self.adapter is not None or self.mixture is not None

    @property
    def device(self) -> torch.device:
        return self.base.device

    @cached_property
    def plain_view(self) -> PreTrainedModel:
        """The base weights attending by layout, without the adapter: the untrained rows of every comparison."""
        return shared_view(self.base) if self.is_adapted else self.view

    @cached_property
    def base_view(self) -> PreTrainedModel:
        """The base with its own rounding, attending by layout: what writes several texts in one pass."""
        return stock_view(self.base)

    def view_of(self, weights: Weights | None) -> PreTrainedModel:
        """``adapted`` (the default) or ``base``."""
        if weights not in (None, "adapted", "base"):
            raise UserError(f"weights={weights!r} does not exist: 'adapted' or 'base'.")
        return self.plain_view if weights == "base" else self.view

    def merged(self) -> AmbiLM:
        """The papers' way: the adaptation folded into a copy of the weights, for every job. Generation changes with it."""
        fold = merged_copy if self.mixture is None else tuned_copy
        return self._over(fold(self.view, self.base), "merged")

    def with_weights(self, weights: EveryJobWeights) -> AmbiLM:
        """This model with other weights in every job, to compare with and to measure.

        Args:
            weights: ``base``, without the adaptation; ``by_job``, the model as it is: the base generates, the adaptation
                does the bidirectional jobs; ``merged``, the adaptation everywhere, in a copy of the weights; ``learned``,
                the gates of a mixture pick an expert for each token (UBMoE), over the same weights.

        Raises:
            UserError: for other weights, or those that this model has not.
        """
        _choice("weights", weights, get_args(EveryJobWeights))
        if weights == "by_job":
            return self
        if weights == "learned":
            if self.mixture is None:
                raise UserError(f"weights='learned' needs gates, which {self.name} has not: train recipe ubmoe.")
            return self._over(with_mixture(self.base, self.view, "learned"), "learned gates")
        if not self.is_adapted:
            if weights == "merged":
                raise UserError(f"weights='merged' needs an adapted model and {self.name} is not: take weights=base.")
            return self
        return self.merged() if weights == "merged" else self._over(self.base, "base")

    def _over(self, base: PreTrainedModel, name: str) -> AmbiLM:
        return AmbiLM(base, self.tokenizer, f"{self.name} ({name})", self.settings, self.notice)

    def encode(
        self,
        texts: str | Iterable[str],
        *,
        reading: str | None = None,
        layout: LayoutName | None = None,
        sink: bool | None = None,
        pooling: Pooling | None = None,
        prompt: str | None = None,
        include_prompt: bool | None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        precision: Precision = "float32",
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        max_length: int | None = None,
        weights: Weights | None = None,
    ) -> np.ndarray:
        """Sentence vectors, in the order given.

        Args:
            texts: one text, or any iterable of texts; a generator is never held in memory.
            reading: one of ``READINGS`` (``echo``, ``prompt-eol``, ``causal-mean`` …) in place of the model's own defaults.
            layout: ``bidirectional`` or ``causal``; the reading's, or else the model's own, when None, as for all that follows.
            sink: whether a bidirectional text begins with the start token, which sees only itself; False is the papers' mask.
            pooling: ``last``, ``mean`` or ``weighted_mean``.
            prompt: a prefix, or a template holding ``{text}`` once or more often; "" for none.
            include_prompt: whether mean pooling counts the prompt's tokens, or those of the text alone (where a template
                repeats it, of the last time).
            normalize_embeddings: unit length.
            truncate_dim: keep the first so many dimensions.
            precision: ``float32``, ``int8``, ``uint8``, ``binary`` or ``ubinary``.
            batch_tokens: tokens of one packed row.
            batch_size: most texts of one packed row; no limit by default, the tokens decide.
            show_progress_bar: by default for more than 1,000 texts.
            max_length: longest text in tokens, longer ones are cut (the prompt stays).
            weights: ``base`` leaves the adapter out.

        Returns:
            (texts, dimension), float32 unless ``precision`` says otherwise; (dimension,) for a single text.

        Raises:
            UserError: for an option that does not exist or an item that is not a text.
        """
        own = self.settings.read_as(reading)
        chosen_layout = _choice("layout", layout or own.layout, ("bidirectional", "causal"))
        chosen_pooling = _choice("pooling", pooling or own.pooling, ("last", "mean", "weighted_mean"))
        _choice("precision", precision, ("float32", "int8", "uint8", "binary", "ubinary"))
        if truncate_dim is not None and truncate_dim < 1:
            raise UserError(f"truncate_dim={truncate_dim} must be at least 1.")
        if batch_size is not None and batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1.")
        has_sink = chosen_layout == "bidirectional" and (own.sink if sink is None else sink)
        chosen_prompt = own.prompt if prompt is None else prompt
        tokenizer = encoding.PromptedTokenizer(
            self.tokenizer, chosen_prompt, self._max_length(max_length), start=own.start_token_id, sink=has_sink,
            end=own.appended_end(chosen_pooling, chosen_prompt),
        )  # fmt: skip
        single = isinstance(texts, str)
        items: Iterable[str] = [texts] if isinstance(texts, str) else texts
        large = isinstance(items, Sequence) and len(items) > 1000
        vectors = encoding.encode_texts(
            self.view_of(weights), tokenizer, items, layout=chosen_layout, sink=has_sink, pooling=chosen_pooling,
            include_prompt=own.include_prompt if include_prompt is None else include_prompt,
            finish=encoding.finisher(normalize_embeddings, truncate_dim, precision),
            batch_tokens=batch_tokens or encoding.BATCH_TOKENS,
            batch_size=batch_size,
            show_progress=large if show_progress_bar is None else show_progress_bar,
        )  # fmt: skip
        return vectors[0] if single else vectors

    def encode_tokens(
        self,
        sentences: Iterable[Sequence[str]],
        *,
        layout: LayoutName | None = None,
        subword: Subword = "mean",
        shift: Literal[0, 1] | None = None,
        max_length: int | None = None,
        batch_tokens: int | None = None,
        weights: Weights | None = None,
    ) -> list[np.ndarray]:
        """One vector for each word of each sentence.

        Args:
            sentences: lists of words.
            subword: which of a word's tokens speak for it: ``first``, ``last`` or their ``mean``.
            shift: 1 reads each word one token earlier, where MNTP training put what it knows (LLM2Vec); the model's own
                default when None.

        Returns:
            list of (words, hidden) float32.
        """
        _choice("subword", subword, ("first", "last", "mean"))
        own = self.settings
        chosen = _choice("layout", layout or own.layout, ("bidirectional", "causal"))
        moved = own.word_shift if shift is None else shift
        if moved not in (0, 1):
            raise UserError(f"shift={moved} does not exist: 0 (own place) or 1 (one token earlier, after MNTP).")
        words = encoding.tokenize_words(
            self.tokenizer, list(sentences), own.start_token_id, self._max_length(max_length)
        )
        return encoding.encode_words(
            self.view_of(weights), words, layout=chosen, sink=own.sink, subword=subword, shift=moved,
            batch_tokens=batch_tokens or encoding.BATCH_TOKENS,
        )  # fmt: skip

    def infill(
        self,
        text: str,
        *,
        num_candidates: int = 1,
        min_tokens: int | Sequence[int] = 1,
        max_tokens: int | Sequence[int] = 32,
        do_sample: bool = False,
        seed: int | None = None,
        weights: Weights | None = None,
        **options: Any,
    ) -> Infilled:
        """Fills every ``[BLANK]`` of a text, seeing what stands on both sides; each span stops by itself.

        Args:
            num_candidates: how many fillings; sampled ones, or greedy ones with different first tokens.
            min_tokens, max_tokens: bounds of a span, one number or one for each blank.
            do_sample: draw instead of taking the most likely token.
            seed: seed of the drawing.
            options: ``temperature``, ``top_k``, ``top_p``, ``min_p``, ``typical_p``, ``epsilon_cutoff``,
                ``repetition_penalty``, ``no_repeat_ngram_size``, as in transformers' generate.

        Returns:
            the best filling, by log-probability; all of them under ``candidates``.

        Raises:
            UserError: without a blank, with two blanks side by side, for a text that does not fit, or a wrong option.
        """
        gaps, decoding = self.plan_infill(
            text, num_candidates=num_candidates, min_tokens=min_tokens, max_tokens=max_tokens, do_sample=do_sample,
            seed=seed, **options,
        )  # fmt: skip
        candidates = infilling.fill(self.view_of(weights), self.tokenizer, self.settings, gaps, decoding)
        best = candidates[0]
        return replace(best, candidates=candidates)

    def plan_infill(
        self, text: str, *, num_candidates: int, min_tokens: int | Sequence[int], max_tokens: int | Sequence[int],
        do_sample: bool, seed: int | None, **options: Any,
    ) -> tuple[infilling.Gaps, infilling.Decoding]:  # fmt: skip
        """Checks what :meth:`infill` is asked for, without computing anything; it raises what that raises."""
        return infilling.planned(
            text, self.tokenizer, self.settings, self._max_length(10**9), num_candidates=num_candidates,
            min_tokens=min_tokens, max_tokens=max_tokens, do_sample=do_sample, seed=seed, options=options,
        )  # fmt: skip

    @overload
    def generate(
        self, prompt: str, *, stream: Literal[False] = False, layout: PromptLayout = ..., **options: Any
    ) -> str: ...
    @overload
    def generate(
        self, prompt: list[str], *, stream: Literal[False] = False, layout: PromptLayout = ..., **options: Any
    ) -> list[str]: ...
    @overload
    def generate(
        self, prompt: str, *, stream: Literal[True], layout: PromptLayout = ..., **options: Any
    ) -> Iterator[str]: ...
    def generate(
        self, prompt: str | list[str], *, stream: bool = False, layout: PromptLayout = "causal", **options: Any
    ) -> str | list[str] | Iterator[str]:
        """Continues a prompt left to right, exactly as the base model does: it is the base model.

        Args:
            prompt: a text or a list of texts.
            stream: return an iterator over pieces of the continuation (one prompt only).
            layout: ``prefix`` lets the tokens of a prompt see it on both sides, for weights that were trained so (recipe
                ``instruction``); what is written sees what stands before it in any case.
            options: everything that transformers' ``generate`` takes.

        Returns:
            the continuation without the prompt, one for each prompt.
        """
        start = self.settings.start_token_id
        _choice("layout", layout, get_args(PromptLayout))
        prefix = PrefixReader(self.view_of("base"), self.settings.sink) if layout == "prefix" else None
        if stream:
            if not isinstance(prompt, str):
                raise UserError("stream=True takes one prompt, not a list.")
            return generation.stream(self.base, self.tokenizer, prompt, start, options, prefix)
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not prompts:
            return []
        texts = generation.generate(self.base, self.tokenizer, prompts, start, options, prefix)
        return texts[0] if isinstance(prompt, str) else texts

    def chat(self, messages: Sequence[Message], *, stream: bool = False, **options: Any) -> str | Iterator[str]:
        """Answers a conversation (``[{"role": "user", "content": ...}, ...]``) through the model's chat template."""
        options = {"max_new_tokens": 256, **options}
        prompt = generation.chat_prompt(self.tokenizer, messages)
        return self.generate(prompt, stream=True, **options) if stream else self.generate(prompt, **options)

    def score(self, text: str, spans: Sequence[str] | None = None, *, weights: Weights | None = None) -> Score:
        """Log-probabilities (nats) of a text, or of what stands in its blanks.

        Args:
            text: a text, read left to right by the base model; or a text with ``[BLANK]``s.
            spans: what stands in each blank; scored given both sides, under the hybrid mask.
            weights: of the view that scores spans.

        Raises:
            UserError: when the number of spans is not that of the blanks, or a span is empty.
        """
        if spans is None:
            ids = list(self.tokenizer(encoding.clean(text), add_special_tokens=False)["input_ids"])  # type: ignore[arg-type]
            values = self.causal_log_probs([ids])[0]
            return Score([str(self.tokenizer.decode([token])) for token in ids], values)
        gaps = infilling.cut_at_blanks(text, self.tokenizer, self.settings)
        if len(spans) != len(gaps.pieces) - 1:
            raise UserError(f"The text has {len(gaps.pieces) - 1} blanks and {len(spans)} spans were given.")
        ids, places = infilling.with_spans(gaps, spans, self.tokenizer)
        values = self.infill_log_probs([InfillExample(ids, places)], weights=weights)[0]
        tokens = [ids[place] for start, stop in places for place in range(start, stop)]
        return Score([str(self.tokenizer.decode([token])) for token in tokens], values)

    def causal_log_probs(self, texts: Sequence[Sequence[int]], weights: Weights = "base") -> list[np.ndarray]:
        """log p(token | tokens before it) in nats, (tokens,) for each text of token ids; a start token stands before it."""
        return scoring.causal_log_probs(self.view_of(weights), texts, self.settings.start_token_id)

    def infill_log_probs(
        self, examples: Sequence[InfillExample], weights: Weights | None = None, gap: int | None = None,
        sink: bool | None = None,
    ) -> list[np.ndarray]:  # fmt: skip
        """log p(span token | both sides, earlier span tokens) in nats, (span tokens,) for each example.

        ``gap`` reserves that many positions for each span; None keeps natural positions. ``sink=False`` is the paper's mask,
        None the model's own default.
        """
        return scoring.infill_log_probs(self.view_of(weights), examples, self.settings, gap, sink)

    def _max_length(self, given: int | None) -> int:
        if given is not None and given < 1:
            raise UserError(f"max_length={given} must be at least 1.")
        limit = getattr(self.base.config.get_text_config(), "max_position_embeddings", None) or 10**9
        return min(given or self.settings.max_length, limit)


def _choice(name: str, value: Any, options: tuple[str, ...]) -> Any:
    if value not in options:
        raise UserError(f"{name}={value!r} does not exist: choose one of {', '.join(options)}.")
    return value


def _read_settings(file: Path) -> Settings:
    try:
        return Settings.model_validate_json(file.read_text())
    except (OSError, ValueError, ValidationError) as error:
        raise UserError(f"{file} is not a readable ambilm settings file: save the model again.") from error
