"""What the experiments of UBMoE showed, table by table, each beside the paper's rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import pearsonr, spearmanr

from ambilm.evaluation import gates_report
from ambilm.reproduce import published
from ambilm.reproduce.report import Section
from ambilm.reproduce.steps import Dependence, Evaluation, Step
from ambilm.reproduce.ubmoe import CLOZE, PERPLEXITY, UbmoeExperiment, Variant

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MISSING = "–"


def sections(experiment: UbmoeExperiment) -> list[Section]:
    """All tables of the finished experiment."""
    return [
        _similarity(experiment),
        _generation(experiment),
        _dependence(experiment),
        _correlation(experiment),
        _knowledge(experiment),
        _routing(experiment),
        _gates(experiment),
        _overhead(experiment),
    ]


def spread(values: Iterable[float], digits: int) -> str:
    """The mean, and the standard deviation over seeds where there are several."""
    numbers = list(values)
    text = f"{np.mean(numbers):.{digits}f}"
    return text if len(numbers) < 2 else f"{text} ± {np.std(numbers, ddof=1):.{digits}f}"


def _name(experiment: UbmoeExperiment) -> str:
    return Path(experiment.model).name


def _mean_sts(evaluation: Evaluation) -> float:
    entries = evaluation.entries()
    return 100 * float(np.mean([entries[task]["main"] for task in evaluation.tasks]))


def _main(evaluations: Sequence[Evaluation], task: str) -> float:
    return float(next(e for e in evaluations if task in e.tasks).entries()[task]["main"])


def _groups(experiment: UbmoeExperiment) -> dict[str, list[Variant]]:
    """Variants by module group, one for each seed."""
    groups: dict[str, list[Variant]] = {}
    for variant in experiment.variants:
        groups.setdefault(variant.modules, []).append(variant)
    return groups


def _commands(*steps: Step) -> list[str]:
    return [step.command() for step in steps]


def _similarity(experiment: UbmoeExperiment) -> Section:
    groups = _groups(experiment)
    own = {modules: spread([_mean_sts(one.sts) for one in variants], 2) for modules, variants in groups.items()}
    own["base"] = f"{_mean_sts(experiment.base_sts_read_alike):.2f}"
    columns = [*published.MODULES, *(modules for modules in groups if modules not in published.MODULES)]
    rows = [["model", *columns], [_name(experiment), *(own.get(modules, MISSING) for modules in columns)]]
    for model, figures in published.STS.items():
        theirs = dict(zip(published.MODULES, figures, strict=True))
        rows.append([f"{model} (paper)", *(f"{theirs[m]:.2f}" if m in theirs else MISSING for m in columns)])
    notes = [
        f"Spearman × 100, mean over {', '.join(experiment.sts_tasks)}; the paper's over BIOSSES, SICK-R, STS12-17, STS22 and"
        " STS-B. All are read both ways, with the paper's prompt and mean pooling. ±: standard deviation over seeds.",
        f"The base in its default reading: {_mean_sts(experiment.base_sts):.2f}.",
    ]
    first = experiment.variants[0]
    return Section("Module ablation: sentence similarity", rows, notes, _commands(first.training, first.sts))


def _generation(experiment: UbmoeExperiment) -> Section:
    base = experiment.base_generation
    rows = [
        ["modules", "perplexity", "LAMBADA (%)"],
        ["base", f"{_main(base, PERPLEXITY):.2f}", f"{100 * _main(base, CLOZE):.1f}"],
    ]
    for modules, variants in _groups(experiment).items():
        perplexities = [_main(one.generation, PERPLEXITY) for one in variants]
        accuracies = [100 * _main(one.generation, CLOZE) for one in variants]
        rows.append([modules, spread(perplexities, 2), spread(accuracies, 1)])
    note = (
        "The tuned weights used for generation too (merged), as in the paper. AmbiLM itself generates with the base's"
        " weights (by job), where all of this is the base's, bit for bit."
    )
    commands = _commands(*experiment.variants[0].generation)
    return Section("Module ablation: generation with the tuned weights", rows, [note], commands)


def _after(step: Dependence) -> list[float | None]:
    return [row["after"] for row in step.found()["bins"]]


def _dependence(experiment: UbmoeExperiment) -> Section:
    bins = [row["tokens"] for row in experiment.base_dependence.found()["bins"]]
    rows = [["model", *bins], [f"{_name(experiment)}, base", *map(_percent, _after(experiment.base_dependence))]]
    for modules, variants in _groups(experiment).items():
        columns = zip(*(_after(one.dependence) for one in variants), strict=True)
        cells = [MISSING if None in column else spread(column, 2) for column in columns]
        rows.append([f"{_name(experiment)}, {modules}", *cells])
    rows += [[f"{name} (paper)", *map(_percent, figures)] for name, figures in published.DEPENDENCE_AFTER.items()]
    note = (
        "DP_after: percent of its attention that a token would give to later ones without the causal mask; by tokens of a"
        f" text, up to {experiment.settings.dependence_limit} conversations each. ±: standard deviation over seeds."
    )
    return Section("Attention dependence", rows, [note], _commands(experiment.variants[0].dependence))


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}"


def _mean_after(step: Dependence) -> float:
    return float(np.mean([value for value in _after(step) if value is not None]))


def _correlation(experiment: UbmoeExperiment) -> Section:
    names = ["base", *(variant.name for variant in experiment.variants)]
    dependence = [experiment.base_dependence, *(variant.dependence for variant in experiment.variants)]
    generation = [experiment.base_generation, *(variant.generation for variant in experiment.variants)]
    after = [_mean_after(step) for step in dependence]
    losses = [math.log(_main(evaluations, PERPLEXITY)) for evaluations in generation]
    rows = [["model", "DP_after (%)", "loss of generation (nats a token)"]]
    rows += [[name, f"{x:.3f}", f"{y:.3f}"] for name, x, y in zip(names, after, losses, strict=True)]
    notes = ["DP_after: mean over the length bins. The paper: the more it rises, the worse generation becomes."]
    if len(names) > 2:
        pearson, spearman = pearsonr(after, losses), spearmanr(after, losses)
        notes.append(
            f"Over {len(names)} models: Pearson {pearson.statistic:.2f} (p {pearson.pvalue:.2g}), Spearman"
            f" {spearman.statistic:.2f} (p {spearman.pvalue:.2g})."
        )
    figures = {"correlation.png": _scatter(names, after, losses)}
    return Section("Dependence against generation", rows, notes, figures=figures)


def _scatter(names: Sequence[str], after: Sequence[float], losses: Sequence[float]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axis = figure.subplots()
    axis.scatter(after, losses)
    for name, x, y in zip(names, after, losses, strict=True):
        axis.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axis.set_xlabel("DP_after (%)")
    axis.set_ylabel("loss of generation (nats a token)")
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def _knowledge(experiment: UbmoeExperiment) -> Section:
    tasks, name = experiment.knowledge_tasks, _name(experiment)
    base, gated = experiment.base_knowledge, experiment.gated
    rows = [["model", "MMLU", "Winogrande", "TruthfulQA mc2", "LAMBADA", "perplexity"]]
    rows.append([
        f"{name}, base", *(f"{100 * _main([base], task):.1f}" for task in tasks),
        f"{100 * _main(experiment.base_generation, CLOZE):.1f}", f"{_main(experiment.base_generation, PERPLEXITY):.2f}",
    ])  # fmt: skip
    rows.append([
        f"{name}, UBMoE", *(spread([100 * _main([one.knowledge], task) for one in gated], 1) for task in tasks),
        spread([100 * _main(one.generation, CLOZE) for one in gated], 1),
        spread([_main(one.generation, PERPLEXITY) for one in gated], 2),
    ])  # fmt: skip
    for model, (before, after) in published.KNOWLEDGE.items():
        for label, figures in (("base", before), ("UBMoE", after)):
            rows.append([f"{model}, {label} (paper)", *(f"{figure:.1f}" for figure in figures), MISSING, MISSING])
    note = (
        f"Accuracy in percent ({experiment.settings.shots} worked examples for MMLU); UBMoE under its learned gates, mean and"
        f" standard deviation over {len(gated)} trainings of the gates; at most {experiment.settings.limit} questions each:"
        f" one standard error of an accuracy near 40 % is {100 * math.sqrt(0.24 / experiment.settings.limit):.1f} points."
        " With routing by job all of it is the base's, bit for bit."
    )
    return Section("What the gated model knows", rows, [note], _commands(gated[0].training, gated[0].knowledge))


def _routing(experiment: UbmoeExperiment) -> Section:
    expert, gated = experiment.expert, experiment.gated[0]
    ways = (
        ("expert 0, the base's FFN", experiment.base_sts_read_alike, experiment.base_generation),
        ("learned gates", experiment.gated_sts, gated.generation),
        ("expert 1, the tuned FFN", expert.sts, expert.generation),
    )
    rows = [["tokens go to", "STS mean", "perplexity", "LAMBADA (%)"]]
    for name, sts, generation in ways:
        perplexity, cloze = _main(generation, PERPLEXITY), 100 * _main(generation, CLOZE)
        rows.append([name, f"{_mean_sts(sts):.2f}", f"{perplexity:.2f}", f"{cloze:.1f}"])
    note = (
        "What the gate is worth: one model, three ways to route. Routing by job takes expert 1 for sentence vectors and"
        " expert 0 for generation."
    )
    return Section("Gate ablation", rows, [note], _commands(experiment.gated_sts))


def _gates(experiment: UbmoeExperiment) -> Section:
    found: dict[str, Any] = experiment.gates.found()
    rows = [["tokens", "n", "on expert 1 (%)"]]
    rows += [[name, f"{entry['n']:,}", f"{entry['share']:.1f}"] for name, entry in found["classes"].items()]
    figures = {"gates.png": gates_report.figure(found)}
    return Section("What the gates decide", rows, [gates_report.LEGEND], _commands(experiment.gates), figures)


def _overhead(experiment: UbmoeExperiment) -> Section:
    found = experiment.overhead.found()
    rows = [["model", "parameters", "FLOPs of reading 8 × 128 tokens"]]
    rows.append([f"{_name(experiment)}, base", f"{found['base_parameters']:,}", f"{found['base_flops'] / 1e9:,.2f} G"])
    shares = [found[name] / found[f"base_{name}"] for name in ("parameters", "flops")]
    rows.append([
        f"{_name(experiment)}, UBMoE", f"{found['parameters']:,} ({shares[0]:.4f} ×)",
        f"{found['flops'] / 1e9:,.2f} G ({shares[1]:.4f} ×)",
    ])  # fmt: skip
    for model, (before, after) in published.GFLOPS.items():
        rows.append([f"{model}, UBMoE (paper)", MISSING, f"{after:,.2f} G of {before:,.2f} ({after / before:.5f} ×)"])
    note = "Counted. Expert 1 is the base's FFN and a low-rank difference; the paper stores a second FFN."
    return Section("Overhead", rows, [note], _commands(experiment.overhead))
