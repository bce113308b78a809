"""``ambilm adapt``: from a base model and text to an adapted model directory."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ambilm.adaptation import AdapterSettings, add_adapter, trainable_parameters
from ambilm.errors import UserError
from ambilm.model.ambilm import AmbiLM
from ambilm.model.encoding import PromptedTokenizer
from ambilm.model.settings import Settings
from ambilm.recipes import Bidirectional, Magnet, PairSettings, Recipe, SpanSettings
from ambilm.training.draws import TextDraws, Texts, ends_sentence
from ambilm.training.losses import LossSettings, StepLosses, packed_losses, three_pass_losses
from ambilm.training.step_views import ControlViews, MagnetViews, PairViews
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
        text: files, folders or a hub data set; every entry gives an equal share of the texts of a step. Empty for a
            recipe that compares ``pairs`` only.
        pairs: paraphrase files, for recipes that compare sentences.
        resume: go on from the checkpoint in ``output``; the result equals the uninterrupted run's bit for bit.
        overwrite: throw an earlier run in ``output`` away.

    Returns:
        ``output``, which ``AmbiLM.from_pretrained`` loads.

    Raises:
        UserError: for text, pairs or settings that cannot work, before training starts.
    """
    _check_output(output, resume, overwrite)
    if not text and _needs_text(recipe, pairs):
        or_pairs = "" if isinstance(recipe, SpanSettings) or pairs else ", or --pairs FILE"
        raise UserError(f"Recipe {recipe.name} reads running text: give --text FILE{or_pairs}.")
    loaded = AmbiLM.from_pretrained(model, dtype=dtype)
    if loaded.is_adapted:
        raise UserError(f"{model} is adapted already: give the base model, or its merged export.")
    print(loaded.notice, file=sys.stderr)
    loaded.settings = _settings(recipe, loaded)
    # An earlier run is thrown away only now that the model, at least, is known to load.
    if overwrite and not resume and output.exists():
        shutil.rmtree(output)
    with _nothing_left_by_mistakes(output):
        trainer, start = _prepare(recipe, loaded, _sources(model, text, pairs), text, pairs, output, resume)
    facts = {"recipe": recipe.name, **trainer.sources, "model": model, "settings": recipe.model_dump(mode="json")}
    (output / "recipe.json").write_text(json.dumps(facts, indent=2))
    loaded.view.train()
    trainer.run(start)
    loaded.view.eval()
    loaded.save_pretrained(output)
    shutil.rmtree(output / "tokens", ignore_errors=True)
    return output


def _prepare(
    recipe: Recipe, loaded: AmbiLM, sources: dict[str, Any], text: Sequence[str], pairs: Sequence[str], output: Path,
    resume: bool,
) -> tuple[Trainer, int]:  # fmt: skip
    """Adapter, text and rehearsal: a trainer, and the step that it begins with."""
    adapter = AdapterSettings(**{name: getattr(recipe, name) for name in AdapterSettings.model_fields})
    torch.manual_seed(recipe.seed)  # the adapter's first values
    add_adapter(loaded.view, adapter)
    loaded.adapter = adapter
    parameters = trainable_parameters(loaded.view)
    stores = _text_stores(recipe, loaded, text, output)
    losses = _losses(recipe, loaded, stores, _pair_store(recipe, loaded, pairs, output))
    trainer = Trainer(recipe, parameters, losses, _stage(recipe), output, sources)
    start = trainer.resume() if resume else 0
    if start == 0:
        _rehearse(recipe, loaded, losses, trainer)
    return trainer, start


@contextmanager
def _nothing_left_by_mistakes(output: Path) -> Iterator[None]:
    """Makes ``output``; what a refused run began there goes again, so that the corrected command finds it as it was."""
    empty = not (output.exists() and any(output.iterdir()))
    existed = output.exists()
    output.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except UserError:
        if empty:
            shutil.rmtree(output)
            if existed:
                output.mkdir()
        raise


def _needs_text(recipe: Recipe, pairs: Sequence[str]) -> bool:
    """Whether the recipe reads running text; one that compares the pairs of a file does not."""
    only_pairs = isinstance(recipe, PairSettings) and bool(pairs) and recipe.views in (None, "pairs")
    return isinstance(recipe, SpanSettings) or not only_pairs


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
    if not isinstance(recipe, PairSettings):
        return settings
    settings.layout = "bidirectional"
    settings.sink = recipe.sink
    settings.pooling = recipe.pooling
    settings.prompt = recipe.prompt
    settings.append_end = recipe.pooling == "last"
    if isinstance(recipe, Magnet):
        settings.word_shift = 1
        if recipe.mask_token is not None:
            settings.mask_token_id = _mask_token(loaded, recipe.mask_token)
    return settings


def _mask_token(loaded: AmbiLM, token: str) -> int:
    identifier = loaded.tokenizer.get_vocab().get(token)
    if identifier is None:
        raise UserError(f"mask_token={token!r} is not one token of the vocabulary: leave it out or name another.")
    return int(identifier)


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
    if not isinstance(recipe, PairSettings) or (isinstance(recipe, Magnet) and recipe.stage2_steps == 0):
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
    prompted = _prompted(recipe, loaded)
    mark = fingerprint(pairs, loaded.tokenizer, recipe.pair_tokens_max, f"train {loaded.settings.model_dump_json()}")
    directory = output / "tokens" / "pairs"
    store = PairStore.open(directory, mark)
    if store is None:
        store = PairStore.build(
            read_pairs(pairs), lambda texts: [item.ids for item in prompted(texts)], len(loaded.tokenizer), directory,
            fingerprint=mark, progress=True,
        )  # fmt: skip
    if len(store) < recipe.pairs_per_step:
        raise UserError(
            f"--pairs holds {len(store)} pairs and a step takes {recipe.pairs_per_step}: lower pairs_per_step."
        )
    return store


def _prompted(recipe: PairSettings, loaded: AmbiLM) -> PromptedTokenizer:
    """Tokenises what is compared exactly as ``encode`` of the adapted model will."""
    settings = loaded.settings
    return PromptedTokenizer(
        loaded.tokenizer, recipe.prompt, recipe.pair_tokens_max, start=settings.start_token_id, sink=recipe.sink,
        end=settings.appended_end(recipe.pooling, recipe.prompt),
    )  # fmt: skip


def _stage(recipe: Recipe) -> Callable[[int], int]:
    first = recipe.stage1_steps if isinstance(recipe, Magnet) else recipe.total_steps
    return lambda step: 1 if step < first else 2


def _losses(recipe: Recipe, loaded: AmbiLM, stores: list[TokenStore], pair_store: PairStore | None) -> Losses:
    """From a step number to the losses of the recipe."""
    view, settings = loaded.view, loaded.settings
    if isinstance(recipe, Bidirectional):
        texts = Texts(stores, recipe.seed, needed=1) if stores else None
        pairs = PairViews(recipe, recipe.seed, _prompted(recipe, loaded), texts, pair_store, recipe.drawn_negatives)
        losses = LossSettings(
            temperature=recipe.temperature, pooling=recipe.pooling, dropout=pairs.dropout, sink=recipe.sink
        )
        return lambda step: packed_losses(view, pairs(step), losses)
    if not isinstance(recipe, SpanSettings):
        raise UserError(f"Recipe {recipe.name} has no losses of its own.")
    drawn = TextDraws(stores, recipe, recipe.seed, settings.start_token_id, ends_sentence(loaded.tokenizer))
    if drawn.short:
        print(f"{drawn.short:,} texts are shorter than a span and its context: skipped", file=sys.stderr)
    if not isinstance(recipe, Magnet):
        control = ControlViews(drawn)
        return lambda step: packed_losses(view, control(step), LossSettings())
    clean = PairViews(recipe, recipe.seed, _prompted(recipe, loaded), drawn, pair_store)
    make = MagnetViews(recipe, settings, len(loaded.tokenizer), drawn, clean)
    losses = LossSettings(
        recipe.lambda_mntp, recipe.lambda_msg, recipe.lambda_sscl, recipe.temperature, recipe.pooling, make.dropout,
        recipe.sink,
    )  # fmt: skip
    compute = packed_losses if recipe.packed else three_pass_losses
    return lambda step: compute(view, make(step), losses)


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
