"""How each recipe is trained: what it reads, which parameters learn, and the losses of a step. One function a recipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ambilm.adaptation import (
    AdapterSettings,
    MixtureChoices,
    MixtureSettings,
    add_adapter,
    add_mixture,
    gate_parameters,
    set_route,
    shared_view,
    take_experts_from,
    trainable_parameters,
)
from ambilm.errors import UserError
from ambilm.model.ambilm import AmbiLM
from ambilm.recipes import Bidirectional, CausalControl, Magnet, PairSettings, Recipe, Ubmoe
from ambilm.training.draws import TextDraws, Texts, ends_sentence
from ambilm.training.losses import LossSettings, StepLosses, gate_losses, packed_losses, three_pass_losses
from ambilm.training.sources import Sources, conversation_store, pair_store, prompted, text_stores
from ambilm.training.step_views import AnswerViews, ControlViews, MagnetViews, PairViews


@dataclass(frozen=True)
class Task:
    """What the trainer needs.

    Attributes:
        model: the model whose view learns; its settings are those of the adapted model.
        parameters: name to what is trained.
        losses: from a step number to the losses of the step.
    """

    model: AmbiLM
    parameters: dict[str, nn.Parameter]
    losses: Callable[[int], StepLosses]


def magnet(recipe: Magnet, model: AmbiLM, sources: Sources) -> Task:
    """MNTP + MSG, and in the second stage SSCL too."""
    _remember_embedding(recipe, model)
    model.settings.word_shift = 1
    if recipe.mask_token is not None:
        model.settings.mask_token_id = _mask_token(model, recipe.mask_token)
    parameters = _adapter(recipe, model)
    texts = _texts_with_spans(recipe, model, sources)
    pairs = pair_store(sources, model, recipe) if recipe.stage2_steps else None
    clean = PairViews(recipe, recipe.seed, prompted(model, recipe), texts, pairs)
    views = MagnetViews(recipe, model.settings, len(model.tokenizer), texts, clean)
    settings = LossSettings(
        recipe.lambda_mntp, recipe.lambda_msg, recipe.lambda_sscl, recipe.temperature, recipe.pooling, views.dropout,
        recipe.sink,
    )  # fmt: skip
    compute = packed_losses if recipe.packed else three_pass_losses
    return Task(model, parameters, lambda step: compute(model.view, views(step), settings))


def bidirectional(recipe: Bidirectional, model: AmbiLM, sources: Sources) -> Task:
    """The contrastive objective alone."""
    _remember_embedding(recipe, model)
    parameters = _adapter(recipe, model)
    stores = text_stores(sources, model, recipe.max_length)
    pairs = pair_store(sources, model, recipe)
    texts = Texts(stores, recipe.seed, needed=1) if stores else None
    views = PairViews(recipe, recipe.seed, prompted(model, recipe), texts, pairs, recipe.drawn_negatives)
    settings = LossSettings(
        temperature=recipe.temperature, pooling=recipe.pooling, dropout=views.dropout, sink=recipe.sink
    )
    return Task(model, parameters, lambda step: packed_losses(model.view, views(step), settings))


def causal_control(recipe: CausalControl, model: AmbiLM, sources: Sources) -> Task:
    """The spans of MAGNET, left to right."""
    model.settings.recipe = recipe.name
    parameters = _adapter(recipe, model)
    views = ControlViews(_texts_with_spans(recipe, model, sources))
    return Task(model, parameters, lambda step: packed_losses(model.view, views(step), LossSettings()))


def ubmoe(recipe: Ubmoe, model: AmbiLM, sources: Sources) -> Task:
    """Gates between the base's FFN and the one of a bidirectional run, which is made first where there is none."""
    conversations = conversation_store(sources, model, recipe.max_length, recipe.conversations_per_step)
    if not model.is_adapted:
        if not sources.pairs:
            raise UserError(
                "Recipe ubmoe needs expert 1: give --model a run of recipe bidirectional with modules=ffn,"
                " or --pairs FILE to make one first."
            )
        expert = sources.run_before(Bidirectional(steps=recipe.expert_steps, seed=recipe.seed))
        model = AmbiLM.from_pretrained(expert, dtype=model.base.dtype)
    if model.adapter is None:
        raise UserError(
            f"{model.name} holds a mixture already: give the run of recipe bidirectional that it came from."
        )
    _exchange_adapter_for_mixture(recipe, model)
    model.settings.recipe = recipe.name
    views = AnswerViews(conversations, recipe.seed, recipe.conversations_per_step)
    parameters = gate_parameters(model.view)
    return Task(model, parameters, lambda step: gate_losses(model.view, views(step), recipe.balance))


def _exchange_adapter_for_mixture(recipe: Ubmoe, model: AmbiLM) -> None:
    """A fresh view of the same base, whose experts 1 are the adapted FFNs."""
    assert model.adapter is not None  # ubmoe() asks
    choices = {name: getattr(recipe, name) for name in MixtureChoices.model_fields}
    settings = MixtureSettings(rank=model.adapter.rank, alpha=model.adapter.alpha, **choices)
    view = shared_view(model.base)
    torch.manual_seed(recipe.seed)  # the gates' first values
    add_mixture(view, settings)
    take_experts_from(model.view, view)
    set_route(view, "all_tuned")
    model.view, model.adapter, model.mixture = view, None, settings


def _adapter(recipe: AdapterSettings, model: AmbiLM) -> dict[str, nn.Parameter]:
    """Gives the view of a base model a fresh adapter, and returns what is trained.

    Raises:
        UserError: when the model has an adaptation already.
    """
    if model.is_adapted:
        raise UserError(f"{model.name} is adapted already: give the base model, or its merged export.")
    settings = AdapterSettings(**{name: getattr(recipe, name) for name in AdapterSettings.model_fields})
    assert isinstance(recipe, Recipe)
    torch.manual_seed(recipe.seed)  # the adapter's first values
    add_adapter(model.view, settings)
    model.adapter = settings
    return trainable_parameters(model.view)


def _remember_embedding(recipe: PairSettings, model: AmbiLM) -> None:
    """What the adapted model will use by default where it embeds."""
    assert isinstance(recipe, Recipe)
    settings = model.settings
    settings.recipe = recipe.name
    settings.layout = "bidirectional"
    settings.sink, settings.pooling, settings.prompt = recipe.sink, recipe.pooling, recipe.prompt
    settings.append_end = recipe.pooling == "last"


def _mask_token(model: AmbiLM, token: str) -> int:
    identifier = model.tokenizer.get_vocab().get(token)
    if identifier is None:
        raise UserError(f"mask_token={token!r} is not one token of the vocabulary: leave it out or name another.")
    return int(identifier)


def _texts_with_spans(recipe: Magnet | CausalControl, model: AmbiLM, sources: Sources) -> TextDraws:
    stores = text_stores(sources, model, recipe.max_length)
    start = model.settings.start_token_id
    texts = TextDraws(stores, recipe, recipe.seed, start, ends_sentence(model.tokenizer))
    if texts.short:
        print(f"{texts.short:,} texts are shorter than a span and its context: skipped", file=sys.stderr)
    return texts


METHODS: dict[type[Recipe], Callable[[Any, AmbiLM, Sources], Task]] = {
    Magnet: magnet,
    Bidirectional: bidirectional,
    CausalControl: causal_control,
    Ubmoe: ubmoe,
}
