"""How each recipe is trained: what it reads, which parameters learn, and the losses of a step. One function a recipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
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
from ambilm.objectives.views import Masking
from ambilm.recipes import (
    Ambi,
    Bidirectional,
    CausalControl,
    EmbeddingSettings,
    Grit,
    Instruction,
    Llm2vec,
    Magnet,
    MaskSettings,
    Mntp,
    Recipe,
    Simcse,
    Ubmoe,
)
from ambilm.training.draws import PairDraws, TextDraws, Texts, ends_sentence
from ambilm.training.losses import LossSettings, StepLosses, StepViews, gate_losses, packed_losses, three_pass_losses
from ambilm.training.sources import Sources, conversation_store, pair_store, pairs_or_dropout, prompted, text_stores
from ambilm.training.step_views import AnswerViews, ControlViews, MagnetViews, MntpViews, PairViews, compared
from ambilm.training.teacher import TaughtViews, Teacher

# What an adapter is; its dropout may change between the stages of LLM2Vec.
SAME_ADAPTER = [name for name in AdapterSettings.model_fields if name != "dropout"]


PREFIX_SHARE = {"causal": 0.0, "mixed": 0.5, "prefix": 1.0}  # of the conversations of recipe instruction


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


def magnet(recipe: Magnet, model: AmbiLM, sources: Sources, teacher: Teacher | None = None) -> Task:
    """MNTP + MSG, and in the second stage SSCL too; with a teacher, distillation beside SSCL."""
    _remember_embedding(recipe, model)
    masking = _masking(recipe, model)
    parameters = _adapter(recipe, model)
    texts = _texts_with_spans(recipe, model, sources)
    pairs = pairs_or_dropout(sources, model, recipe) if recipe.stage2_steps else None
    clean = PairViews(recipe, recipe.seed, prompted(model, recipe), texts, pairs)
    views = MagnetViews(recipe, model.settings, masking, texts, clean)
    weights = {"mntp": recipe.lambda_mntp, "msg": recipe.lambda_msg, "sscl": recipe.lambda_sscl}
    if isinstance(recipe, Ambi):
        weights["distillation"] = recipe.lambda_distillation
    settings = LossSettings(weights, recipe.temperature, recipe.pooling, views.dropout, recipe.sink)
    compute = packed_losses if recipe.packed else three_pass_losses
    seen = views if teacher is None else TaughtViews(views, teacher, prompted(model, recipe))
    return Task(model, parameters, lambda step: compute(model.view, seen(step), settings))


def ambi(recipe: Ambi, model: AmbiLM, sources: Sources) -> Task:
    """MAGNET, and a teacher for its clean views."""
    return magnet(recipe, model, sources, Teacher(recipe.teacher) if recipe.teacher else None)


def mntp(recipe: Mntp, model: AmbiLM, sources: Sources) -> Task:
    """Masked tokens, predicted from both sides. A word is then read one token earlier (LLM2Vec, its word probes)."""
    _remember_embedding(recipe, model)
    model.settings.word_shift = 1
    masking = replace(_masking(recipe, model), never_none=True)
    parameters = _adapter(recipe, model)
    texts = Texts(text_stores(sources, model, recipe.max_length), recipe.seed, needed=1)
    views = MntpViews(recipe, model.settings, masking, texts)
    settings = LossSettings({"mntp": 1.0}, sink=recipe.sink)
    return Task(model, parameters, lambda step: packed_losses(model.view, views(step), settings))


def bidirectional(recipe: Bidirectional, model: AmbiLM, sources: Sources) -> Task:
    """The contrastive objective alone; also SimCSE, which is this with other defaults."""
    _remember_embedding(recipe, model)
    return _contrastive(recipe, model, sources, _adapter(recipe, model))


def llm2vec(recipe: Llm2vec, model: AmbiLM, sources: Sources) -> Task:
    """SimCSE on the adapter of an MNTP run, which is made first where there is none."""
    if not model.is_adapted:
        same = {name: getattr(recipe, name) for name in SAME_ADAPTER}
        first = Mntp(steps=recipe.mntp_steps, seed=recipe.seed, sink=recipe.sink, **same)
        model = AmbiLM.from_pretrained(sources.run_before(first), dtype=model.base.dtype)
    parameters = _continued_adapter(recipe, model)
    _remember_embedding(recipe, model)
    return _contrastive(recipe, model, sources, parameters)


def _contrastive(recipe: Bidirectional, model: AmbiLM, sources: Sources, parameters: dict[str, nn.Parameter]) -> Task:
    wanted = recipe.reads_text(bool(sources.pairs))
    texts = Texts(text_stores(sources, model, recipe.max_length), recipe.seed, needed=1) if wanted else None
    pairs = pairs_or_dropout(sources, model, recipe)
    views = PairViews(recipe, recipe.seed, prompted(model, recipe), texts, pairs, recipe.drawn_negatives)
    settings = LossSettings({"sscl": 1.0}, recipe.temperature, recipe.pooling, views.dropout, recipe.sink)
    return Task(model, parameters, lambda step: packed_losses(model.view, views(step), settings))


def causal_control(recipe: CausalControl, model: AmbiLM, sources: Sources) -> Task:
    """The spans of MAGNET, left to right."""
    model.settings.recipe = recipe.name
    parameters = _adapter(recipe, model)
    views = ControlViews(_texts_with_spans(recipe, model, sources))
    return Task(model, parameters, lambda step: packed_losses(model.view, views(step), LossSettings()))


def instruction(recipe: Instruction, model: AmbiLM, sources: Sources) -> Task:
    """The answers of conversations, whose prompts are seen left to right or both ways."""
    model.settings.recipe, model.settings.sink = recipe.name, recipe.sink
    parameters = _adapter(recipe, model)
    conversations = conversation_store(sources, model, recipe.max_length, recipe.conversations_per_step)
    views = AnswerViews(conversations, recipe.seed, recipe.conversations_per_step, PREFIX_SHARE[recipe.mask])
    settings = LossSettings({"answer": 1.0}, sink=recipe.sink)
    return Task(model, parameters, lambda step: packed_losses(model.view, StepViews(views(step)), settings))


def grit(recipe: Grit, model: AmbiLM, sources: Sources) -> Task:
    """Pairs read both ways and answers left to right, in one pass."""
    _remember_embedding(recipe, model)
    parameters = _adapter(recipe, model)
    store = pair_store(sources, model, recipe)
    pairs = PairDraws(store, recipe.seed, recipe.pairs_per_step)
    conversations = conversation_store(sources, model, recipe.max_length, recipe.conversations_per_step)
    answers = AnswerViews(conversations, recipe.seed, recipe.conversations_per_step)
    weights = {"answer": recipe.lambda_answer, "sscl": recipe.lambda_contrastive}
    settings = LossSettings(weights, recipe.temperature, recipe.pooling, sink=recipe.sink)
    return Task(
        model,
        parameters,
        lambda step: packed_losses(model.view, compared(answers(step), pairs.step(step)), settings),
    )


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
    settings = _adapter_settings(recipe)
    assert isinstance(recipe, Recipe)
    torch.manual_seed(recipe.seed)  # the adapter's first values
    add_adapter(model.view, settings)
    model.adapter = settings
    return trainable_parameters(model.view)


def _continued_adapter(recipe: Llm2vec, model: AmbiLM) -> dict[str, nn.Parameter]:
    """Lets the adapter of an MNTP run learn on, with this recipe's dropout, and returns what is trained.

    Raises:
        UserError: for a model that is no such run, or whose adapter or mask is not what the recipe asks for.
    """
    if model.adapter is None or model.settings.recipe != Mntp.name:
        raise UserError(f"{model.name} is no run of recipe mntp: give llm2vec such a run, or a base model.")
    there = {**{name: getattr(model.adapter, name) for name in SAME_ADAPTER}, "sink": model.settings.sink}
    other = [f"{name}={json.dumps(value)}" for name, value in there.items() if getattr(recipe, name) != value]
    if other:
        raise UserError(f"llm2vec goes on with the adapter of {model.name}: add --set {' '.join(other)}, as there.")
    learned = dict(model.view.named_parameters())
    model.view, model.adapter = shared_view(model.base), _adapter_settings(recipe)
    add_adapter(model.view, model.adapter)
    parameters = trainable_parameters(model.view)
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(learned[name])
    return parameters


def _adapter_settings(recipe: AdapterSettings) -> AdapterSettings:
    return AdapterSettings(**{name: getattr(recipe, name) for name in AdapterSettings.model_fields})


def _remember_embedding(recipe: EmbeddingSettings, model: AmbiLM) -> None:
    """What the adapted model will use by default where it embeds."""
    assert isinstance(recipe, Recipe)
    settings = model.settings
    settings.recipe = recipe.name
    settings.layout = "bidirectional"
    settings.sink, settings.pooling, settings.prompt = recipe.sink, recipe.pooling, recipe.prompt
    settings.append_end = recipe.pooling == "last"


def _masking(recipe: MaskSettings, model: AmbiLM) -> Masking:
    """How tokens are masked; the adapted model remembers the mask token."""
    token, vocabulary = recipe.mask_token, model.tokenizer.get_vocab()
    if token is not None:
        if token not in vocabulary:
            raise UserError(f"mask_token={token!r} is not one token of the vocabulary: leave it out or name another.")
        model.settings.mask_token_id = int(vocabulary[token])
    return Masking(
        recipe.mask_probability, model.settings.mask_token_id, len(model.tokenizer), recipe.mask_replaced,
        recipe.mask_random,
    )  # fmt: skip


def _texts_with_spans(recipe: Magnet | CausalControl, model: AmbiLM, sources: Sources) -> TextDraws:
    stores = text_stores(sources, model, recipe.max_length)
    start = model.settings.start_token_id
    texts = TextDraws(stores, recipe, recipe.seed, start, ends_sentence(model.tokenizer))
    if texts.short:
        print(f"{texts.short:,} texts are shorter than a span and its context: skipped", file=sys.stderr)
    return texts


METHODS: dict[type[Recipe], Callable[[Any, AmbiLM, Sources], Task]] = {
    Ambi: ambi,
    Magnet: magnet,
    Mntp: mntp,
    Bidirectional: bidirectional,
    Simcse: bidirectional,
    Llm2vec: llm2vec,
    CausalControl: causal_control,
    Ubmoe: ubmoe,
    Instruction: instruction,
    Grit: grit,
}
