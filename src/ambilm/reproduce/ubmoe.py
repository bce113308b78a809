"""The experiments of Li et al. (ICML 2025) on any model: which trainings and measurements they are made of.

Module ablation (section 3): the same contrastive tuning of each module group; what it does to sentence similarity, to
generation with the tuned weights, and to attention dependence. UBMoE (section 4): gates over the base's FFN and the tuned
one; what the gated model knows, beside the base.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from ambilm.adaptation import module_groups
from ambilm.errors import UserError
from ambilm.evaluation.data import find
from ambilm.evaluation.sts import GROUP
from ambilm.recipes import Bidirectional, NamedSettings, Ubmoe
from ambilm.reproduce.published import MODULES
from ambilm.reproduce.steps import Dependence, Evaluation, Gates, Overhead, Step, Training

EXPERT = "ffn"  # the module group that becomes expert 1
REPEATED = ("ffn", "att")  # the paper's comparison; seeds tell what of it is chance
HELD_OUT = "valid"  # split of the conversations
PERPLEXITY, CLOZE = "perplexity", "lambada"


class UbmoeSettings(NamedSettings):
    """Settings of ``ambilm reproduce ubmoe``; the defaults make a night's work of a small model on a laptop."""

    name: ClassVar[str] = "ubmoe"
    summary: ClassVar[str] = "module ablation, attention dependence, gates (Li et al., ICML 2025)"

    modules: tuple[str, ...] = Field(MODULES[1:], description="module groups that are tuned, by comma; ffn among them")
    seeds: int = Field(3, ge=1, description="repetitions of ffn, of att and of the gates")
    expert_steps: int = Field(50, ge=1, description="steps of each tuning (the paper: 7,500)")
    pairs_per_step: int = Field(32, ge=2, description="triplets in each of them (the paper: 64)")
    gate_steps: int = Field(60, ge=1, description="steps of the gates (the paper: 1,000)")
    conversations_per_step: int = Field(16, ge=1, description="conversations in each of them (the paper: 32)")
    max_length: int = Field(256, ge=16, description="longest conversation of the gates' training, in tokens")
    limit: int = Field(500, ge=2, description="most examples of a task")
    dependence_limit: int = Field(16, ge=1, description="most texts of a length bin")
    shots: Literal[0, 5] = Field(0, description="worked examples before a question of MMLU")

    @field_validator("modules", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(item.strip() for item in value.split(",")) if isinstance(value, str) else value

    @field_validator("modules")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if EXPERT not in value:
            raise ValueError("ffn is missing, which becomes expert 1: add it")
        for modules in value:
            module_groups(modules)
        if len(set(value)) < len(value):
            raise ValueError("a module group stands there twice: name each once")
        return value

    def miniature(self) -> UbmoeSettings:
        """The same experiment, as small as it works: to find mistakes and to measure what a step costs."""
        small = {"expert_steps": 2, "gate_steps": 2, "limit": 8, "dependence_limit": 1, "seeds": 1}
        fewer = {name: min(value, getattr(self, name)) for name, value in small.items()}
        return self.model_copy(update={**fewer, "modules": (EXPERT,)})


@dataclass(frozen=True)
class Variant:
    """One tuning of a module group, and what is measured of it."""

    modules: str
    seed: int
    training: Training
    sts: Evaluation
    generation: tuple[Evaluation, ...]
    dependence: Dependence

    @property
    def name(self) -> str:
        return self.training.output.name

    def steps(self) -> list[Step]:
        return [self.training, self.sts, *self.generation, self.dependence]


@dataclass(frozen=True)
class Gated:
    """One training of the gates, and what the gated model is worth."""

    training: Training
    generation: tuple[Evaluation, ...]
    knowledge: Evaluation


class UbmoeExperiment:
    """All steps of the experiment.

    Args:
        model: packaged name, directory, .gguf file or hub id.
        data: folder with ``nli_triplets``, ``sft``, the STS sets, ``wikitext2``, ``lambada``, ``truthfulqa``, ``mmlu`` and
            ``mcq_commonsense``.
        output: directory of everything that is written.

    Raises:
        UserError: when a file is missing.
    """

    def __init__(self, settings: UbmoeSettings, model: str, data: Path, output: Path) -> None:
        self.settings, self.model, self.data, self.output = settings, model, data, output
        self.pairs, self.chat, self.text = (self._file(stem) for stem in ("nli_triplets", "sft", "wikitext2"))
        for stem in ("lambada", "truthfulqa", "mmlu", "mcq_commonsense"):
            self._file(stem)
        self.sts_tasks = tuple(task for task in GROUP if find(task, [data]))
        if not self.sts_tasks:
            raise UserError(f"--data {data} has none of {', '.join(GROUP)}: give the folder of the evaluation data.")

    def _file(self, stem: str) -> Path:
        found = find(stem, [self.data])
        if found is None:
            raise UserError(
                f"--data {self.data} has no {stem}.jsonl.gz or {stem}.jsonl: add it, or give another folder."
            )
        return found

    @property
    def knowledge_tasks(self) -> tuple[str, ...]:
        """MMLU, Winogrande and TruthfulQA."""
        mmlu = "mmlu" if self.settings.shots else "mmlu:0-shot"
        return mmlu, "mcq_commonsense:winogrande", "truthfulqa"

    def steps(self) -> list[Step]:
        """In the order in which they are done: the dearest comparison first."""
        variants = [step for variant in self.variants for step in variant.steps()]
        gated = [step for one in self.gated for step in (one.training, *one.generation, one.knowledge)]
        base = [*self.base_generation, self.base_knowledge, self.base_dependence, self.base_sts]
        return [*base, *variants, self.base_sts_read_alike, *gated, self.gated_sts, self.gates, self.overhead]

    @cached_property
    def variants(self) -> list[Variant]:
        groups = self.settings.modules
        repeated = {modules: self.settings.seeds if modules in REPEATED else 1 for modules in groups}
        return [self._variant(modules, seed) for modules in groups for seed in range(repeated[modules])]

    def _variant(self, modules: str, seed: int) -> Variant:
        own, name = self.settings, f"{modules}-{seed}"
        recipe = Bidirectional(
            modules=modules, seed=seed, steps=own.expert_steps, pairs_per_step=own.pairs_per_step
        )  # fmt: skip
        training = Training(
            output=self.output / "models" / name, kind="tuning", recipe=recipe, model=self.model, pairs=(str(self.pairs),)
        )  # fmt: skip
        tuned = str(training.output)
        return Variant(
            modules, seed, training, self._sts(tuned, "by_job", name), self._generation(tuned, "merged", name),
            self._dependence(tuned, name),
        )  # fmt: skip

    @property
    def expert(self) -> Variant:
        """The variant that becomes expert 1."""
        return next(variant for variant in self.variants if (variant.modules, variant.seed) == (EXPERT, 0))

    @cached_property
    def base_sts(self) -> Evaluation:
        """The base in its default reading."""
        return self._sts(self.model, "by_job", "base")

    @cached_property
    def base_sts_read_alike(self) -> Evaluation:
        """The base read as the tuned models are: both ways, the paper's prompt, mean pooling."""
        return self._sts(str(self.expert.training.output), "base", "base-read-alike")

    @cached_property
    def base_generation(self) -> tuple[Evaluation, ...]:
        return self._generation(self.model, "by_job", "base")

    @cached_property
    def base_knowledge(self) -> Evaluation:
        return self._knowledge(self.model, "by_job", "base")

    @cached_property
    def base_dependence(self) -> Dependence:
        return self._dependence(self.model, "base")

    @cached_property
    def gated(self) -> list[Gated]:
        return [self._gated(seed) for seed in range(self.settings.seeds)]

    def _gated(self, seed: int) -> Gated:
        own, name = self.settings, f"ubmoe-{seed}"
        recipe = Ubmoe(
            seed=seed, steps=own.gate_steps, conversations_per_step=own.conversations_per_step, max_length=own.max_length
        )  # fmt: skip
        training = Training(
            output=self.output / "models" / name, kind="gates", recipe=recipe, model=str(self.expert.training.output),
            text=(str(self.chat),),
        )  # fmt: skip
        gated = str(training.output)
        return Gated(
            training, self._generation(gated, "learned", name), self._knowledge(gated, "learned", name)
        )  # fmt: skip

    @cached_property
    def gated_sts(self) -> Evaluation:
        """Sentence similarity under the learned gates; expert 1 alone is the variant itself."""
        return self._sts(str(self.gated[0].training.output), "learned", "ubmoe-0")

    @cached_property
    def gates(self) -> Gates:
        return Gates(
            output=self.output / "gates.json", kind="gate shares", model=str(self.gated[0].training.output),
            data=self.chat, split=HELD_OUT, limit=self.settings.limit,
        )  # fmt: skip

    @cached_property
    def overhead(self) -> Overhead:
        return Overhead(
            output=self.output / "overhead.json", kind="overhead", model=str(self.gated[0].training.output)
        )  # fmt: skip

    def _sts(self, model: str, weights: Any, name: str) -> Evaluation:
        return self._evaluation(model, weights, name, "similarity", self.sts_tasks, self.data)

    def _generation(self, model: str, weights: Any, name: str) -> tuple[Evaluation, ...]:
        return (
            self._evaluation(model, weights, name, "generation", (PERPLEXITY,), self.text),
            self._evaluation(model, weights, name, "cloze", (CLOZE,), self.data),
        )

    def _knowledge(self, model: str, weights: Any, name: str) -> Evaluation:
        return self._evaluation(model, weights, name, "knowledge", self.knowledge_tasks, self.data)

    def _evaluation(
        self, model: str, weights: Any, name: str, kind: str, tasks: tuple[str, ...], data: Path
    ) -> Evaluation:  # fmt: skip
        return Evaluation(
            output=self.output / "results" / f"{name}-{kind}.json", kind=kind, model=model, weights=weights, tasks=tasks,
            data=data, limit=self.settings.limit,
        )  # fmt: skip

    def _dependence(self, model: str, name: str) -> Dependence:
        return Dependence(
            output=self.output / "dependence" / f"{name}.json", kind="dependence", model=model, data=self.chat,
            split=HELD_OUT, limit=self.settings.dependence_limit,
        )  # fmt: skip
