"""``ambilm adapt``: from a base model and text to an adapted model directory."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ambilm.adaptation import AdapterSettings, add_adapter, trainable_parameters
from ambilm.errors import UserError
from ambilm.memory import keep_freed_memory
from ambilm.model.ambilm import AmbiLM
from ambilm.model.encoding import PromptedTokenizer
from ambilm.model.settings import Settings
from ambilm.objectives import View, causal_span_view, infill_view, plain_view
from ambilm.objectives.views import Masking
from ambilm.recipes import CausalControl, Magnet, Recipe
from ambilm.training.draws import MASKS, PAIRS, DrawnText, PairDraws, TextDraws, ends_sentence, stream
from ambilm.training.losses import LossSettings, StepLosses, StepViews, packed_losses, three_pass_losses
from ambilm.training.text import read_pairs, read_texts
from ambilm.training.tokens import PairStore, TokenStore, fingerprint
from ambilm.training.trainer import Trainer

Losses = Callable[[int], StepLosses]


def adapt(
    recipe: Recipe,
    model: str,
    text: Sequence[str],
    output: Path,
    pairs: Sequence[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    dtype: str = "auto",
) -> Path:
    """Adapts ``model`` with ``recipe`` on the texts and writes a model directory.

    Args:
        text: files, folders or a hub data set; every entry gives an equal share of the texts of a step.
        pairs: paraphrase files, for recipes that compare sentences.
        resume: go on from the checkpoint in ``output``; the result equals the uninterrupted run's bit for bit.
        overwrite: throw an earlier run in ``output`` away.

    Returns:
        ``output``, which ``AmbiLM.from_pretrained`` loads.

    Raises:
        UserError: for text, pairs or settings that cannot work, before training starts.
    """
    keep_freed_memory()
    _check_output(output, resume, overwrite)
    loaded = AmbiLM.from_pretrained(model, dtype=dtype)
    if loaded.is_adapted:
        raise UserError(f"{model} is adapted already: give the base model, or its merged export.")
    print(loaded.notice, file=sys.stderr)
    loaded.settings = _settings(recipe, loaded)
    # An earlier run is thrown away only now that the model, at least, is known to load.
    if overwrite and not resume and output.exists():
        shutil.rmtree(output)
    output.mkdir(parents=True, exist_ok=True)
    stores = _text_stores(recipe, loaded, text, output)
    losses = _losses(recipe, loaded, stores, _pair_store(recipe, loaded, pairs, output))
    adapter = AdapterSettings(**{name: getattr(recipe, name) for name in AdapterSettings.model_fields})
    torch.manual_seed(recipe.seed)  # the adapter's first values
    add_adapter(loaded.view, adapter)
    loaded.adapter = adapter
    parameters = trainable_parameters(loaded.view)
    sources = _sources(model, text, pairs)
    trainer = Trainer(recipe, parameters, losses, _stage(recipe), output, sources)
    start = trainer.resume() if resume else 0
    if start == 0:
        _rehearse(recipe, loaded, losses, trainer)
    facts = {"recipe": recipe.name, **sources, "model": model, "settings": recipe.model_dump(mode="json")}
    (output / "recipe.json").write_text(json.dumps(facts, indent=2))
    loaded.view.train()
    trainer.run(start)
    loaded.view.eval()
    loaded.save_pretrained(output)
    shutil.rmtree(output / "tokens", ignore_errors=True)
    return output


def _check_output(output: Path, resume: bool, overwrite: bool) -> None:
    if output.exists() and not output.is_dir():
        raise UserError(f"--output {output} is a file: give a directory.")
    used = output.exists() and any(output.iterdir())
    if used and not resume and not overwrite:
        raise UserError(
            f"--output {output} is not empty: use --resume to go on, --overwrite to start afresh, or another one."
        )
    is_run = (output / "recipe.json").exists() or (output / "ambilm.json").exists()
    if used and overwrite and not resume and not is_run:
        raise UserError(f"--overwrite: {output} holds no run of ambilm, so it is left alone: choose another --output.")


def _sources(model: str, text: Sequence[str], pairs: Sequence[str]) -> dict[str, Any]:
    """Names without folders: they name no machine, and a moved run can go on."""
    return {
        "model": Path(model).name,
        "text": [Path(item).name for item in text],
        "pairs": [Path(item).name for item in pairs],
    }


def _settings(recipe: Recipe, loaded: AmbiLM) -> Settings:
    """What the adapted model will use by default."""
    settings = loaded.settings.model_copy(update={"recipe": recipe.name})
    if not isinstance(recipe, Magnet):
        return settings
    if recipe.mask_token is not None:
        identifier = loaded.tokenizer.get_vocab().get(recipe.mask_token)
        if identifier is None:
            raise UserError(
                f"mask_token={recipe.mask_token!r} is not one token of the vocabulary: leave it out or name another."
            )
        settings.mask_token_id = identifier
    settings.layout = "bidirectional"
    settings.sink = recipe.sink
    settings.pooling = recipe.pooling
    settings.prompt = recipe.prompt
    settings.append_end = recipe.pooling == "last"
    settings.word_shift = 1
    return settings


def _text_stores(recipe: Recipe, loaded: AmbiLM, text: Sequence[str], output: Path) -> list[TokenStore]:
    """One token store for each source, made once and memory-mapped."""
    stores = []
    for number, source in enumerate(text):
        mark = fingerprint([source], loaded.tokenizer, recipe.max_length - 1, "train")
        directory = output / "tokens" / f"text{number}"
        store = TokenStore.open(directory, mark)
        if store is None:
            store = TokenStore.build(
                read_texts([source]), loaded.tokenizer, directory, max_length=recipe.max_length - 1, fingerprint=mark,
                progress=True,
            )  # fmt: skip
        if len(store) == 0:
            raise UserError(
                f"--text {source} holds no text to train on: check its 'split' fields or give another file."
            )
        stores.append(store)
    return stores


def _pair_store(recipe: Recipe, loaded: AmbiLM, pairs: Sequence[str], output: Path) -> PairStore | None:
    if not isinstance(recipe, Magnet) or recipe.stage2_steps == 0:
        return None
    wanted = recipe.views or ("pairs" if pairs else "dropout")
    if wanted == "dropout":
        if recipe.attention_dropout == 0 and recipe.dropout == 0:
            raise UserError(
                "Two views of one text differ by dropout alone: set attention_dropout or dropout above 0, or give --pairs."
            )
        return None
    if not pairs:
        raise UserError(f"views={wanted} needs --pairs FILE with rows of anchor and positive.")
    # The prompt is part of every text that is embedded, so it is tokenised with it.
    prompted = PromptedTokenizer(
        loaded.tokenizer,
        recipe.prompt,
        recipe.pair_tokens_max,
        start=loaded.settings.start_token_id,
        sink=False,
        end=None,
    )
    rows = (
        (_wrap(prompted, anchor), _wrap(prompted, positive), None if negative is None else _wrap(prompted, negative))
        for anchor, positive, negative in read_pairs(pairs)
    )
    mark = fingerprint(pairs, loaded.tokenizer, recipe.pair_tokens_max, f"train {recipe.prompt}")
    directory = output / "tokens" / "pairs"
    store = PairStore.open(directory, mark)
    if store is None:
        store = PairStore.build(
            rows, loaded.tokenizer, directory, max_length=recipe.pair_tokens_max, fingerprint=mark, progress=True
        )
    if len(store) < recipe.pairs_per_step:
        raise UserError(
            f"--pairs holds {len(store)} pairs and a step takes {recipe.pairs_per_step}: lower pairs_per_step."
        )
    return store


def _wrap(prompted: PromptedTokenizer, text: str) -> str:
    return prompted.before + text + prompted.after


def _stage(recipe: Recipe) -> Callable[[int], int]:
    first = recipe.stage1_steps if isinstance(recipe, Magnet) else recipe.total_steps
    return lambda step: 1 if step < first else 2


def _losses(recipe: Recipe, loaded: AmbiLM, stores: list[TokenStore], pair_store: PairStore | None) -> Losses:
    texts = TextDraws(stores, recipe, loaded.settings.start_token_id, ends_sentence(loaded.tokenizer))
    if texts.short:
        print(f"{texts.short:,} texts are shorter than a span and its context: skipped", file=sys.stderr)
    view = loaded.view
    if isinstance(recipe, CausalControl):
        return lambda step: packed_losses(view, StepViews(_control_views(texts.step(step))), LossSettings())
    if not isinstance(recipe, Magnet):
        raise UserError(f"Recipe {recipe.name} has no losses of its own.")
    make = _MagnetViews(recipe, loaded.settings, len(loaded.tokenizer), texts, pair_store)
    dropout = recipe.attention_dropout if make.uses_dropout else 0.0
    settings = LossSettings(
        recipe.lambda_mntp, recipe.lambda_msg, recipe.lambda_sscl, recipe.temperature, recipe.pooling, dropout,
        recipe.sink,
    )  # fmt: skip
    compute = packed_losses if recipe.packed else three_pass_losses
    return lambda step: compute(view, make(step), settings)


def _control_views(drawn: list[DrawnText]) -> list[View]:
    return [causal_span_view(text.ids, text.spans) for text in drawn]


class _MagnetViews:
    """From a step number to the views of MAGNET's three objectives."""

    def __init__(
        self, recipe: Magnet, settings: Settings, vocabulary: int, texts: TextDraws, pair_store: PairStore | None
    ) -> None:
        self.recipe, self.settings, self.texts = recipe, settings, texts
        self.masking = Masking(
            recipe.mask_probability, settings.mask_token_id, vocabulary, recipe.mask_replaced, recipe.mask_random
        )
        self.kind = recipe.views or ("dropout" if pair_store is None else "pairs")
        from_file = recipe.pairs_per_step // 2 if self.kind == "both" else recipe.pairs_per_step
        self.pairs = PairDraws(pair_store, recipe.seed, from_file) if pair_store is not None else None

    @property
    def uses_dropout(self) -> bool:
        return self.kind != "pairs" and self.recipe.stage2_steps > 0

    def __call__(self, step: int) -> StepViews:
        random = stream(self.recipe.seed, step, MASKS)
        hybrid = [self._hybrid(text, random) for text in self.texts.step(step)]
        second = step - self.recipe.stage1_steps
        if second < 0:
            return StepViews(hybrid)
        rows = self.pairs.step(second) if self.pairs is not None else []
        rows += self._same_texts(second, self.recipe.pairs_per_step - len(rows))
        return StepViews(
            hybrid,
            [self._clean(anchor) for anchor, _, _ in rows],
            [self._clean(positive) for _, positive, _ in rows],
            [self._clean(negative) for _, _, negative in rows if negative is not None],
        )

    def _hybrid(self, text: DrawnText, random: np.random.Generator) -> View:
        recipe = self.recipe
        natural = random.random() < recipe.natural_gap
        gaps = [
            stop - start + (0 if natural else int(random.integers(0, recipe.gap_jitter + 1)))
            for start, stop in text.spans
        ]
        clean = random.random() < recipe.clean_share
        masking = None if clean else self.masking
        return infill_view(text.ids, text.spans, gaps, self.settings.end_of_span_token_id, masking, random)

    def _clean(self, ids: np.ndarray) -> View:
        settings = self.settings
        start = [settings.start_token_id] if settings.sink else []
        end = [settings.end_token_id] if settings.append_end and "{text}" not in settings.prompt else []
        return plain_view(np.concatenate([start, ids, end]).astype(np.int64))

    def _same_texts(self, step: int, count: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
        """Texts that are compared with themselves under other dropout masks."""
        start = int(stream(self.recipe.seed, step, PAIRS).integers(2**40))
        texts = [self.texts.text(start + number)[: self.recipe.pair_tokens_max] for number in range(count)]
        return [(ids, ids, None) for ids in texts]


def _rehearse(recipe: Recipe, loaded: AmbiLM, losses: Losses, trainer: Trainer) -> None:
    """The whole path on the last step's batch before an hour is spent: loss, gradients, checkpoint, saved model."""
    outcome = losses(recipe.total_steps - 1)
    if not bool(torch.isfinite(outcome.total)):
        raise UserError(f"The loss is {outcome.total.item()} before any training: try --dtype float32 or other text.")
    outcome.total.backward()
    if not any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in trainer.parameters.values()):
        raise UserError("No trained parameter gets a gradient: choose other modules=.")
    trainer.optimizer.zero_grad(set_to_none=True)
    with tempfile.TemporaryDirectory(dir=trainer.output) as scratch:
        loaded.save_pretrained(Path(scratch) / "model")
