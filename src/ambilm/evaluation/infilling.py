"""Infilling: how well does a model know a missing piece when it is given both sides?

``rocstories`` removes one middle sentence of a story, ``wikitext2`` a span of 8 to 32 tokens of a paragraph (MAGNET,
section 4.3). ``main`` is the perplexity of the removed tokens given both sides, under the hybrid mask. The same tokens
are scored in the other readings, because most of the drop that a paper would show is the domain:

- ``left_to_right``: the base weights, which see the left side only;
- ``untrained_hybrid``: the base weights under the hybrid mask, the start token a sink;
- ``untrained_paper_mask``: the same without the sink, which is the mask of MAGNET as published;
- ``causal_adapted``: for a causal control (recipe ``causal_control``), the tuned weights left to right; its ``main``.

``generated`` compares infills that the model wrote (it does not know the length) with the removed text, beside a greedy
continuation of the left side by the base, which is told the length. ``wikitext2`` reports the base's causal
perplexity too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from tqdm.auto import tqdm

from ambilm.errors import UserError
from ambilm.evaluation.data import Passage, Story, read_rows, sample
from ambilm.evaluation.overlap import overlap
from ambilm.evaluation.perplexity import causal_log_probs, causal_perplexity, in_batches
from ambilm.evaluation.statistics import perplexity, perplexity_error
from ambilm.evaluation.task import Run, Task
from ambilm.model.scoring import InfillExample
from ambilm.model.settings import BLANK

if TYPE_CHECKING:
    from ambilm import AmbiLM

SHORTEST_SPAN, LONGEST_SPAN = 8, 32  # tokens (MAGNET, section 4.3)
SIDE = 8  # least context tokens on each side of a span
PIECE = 256  # tokens; a longer paragraph is cut
FIXED_GAP = 32  # places that inference reserves when it does not know the length; also the longest infill written
DEFAULT_PARAGRAPHS = 500
GENERATED = 40  # infills that are written and compared with the removed text
SAMPLES = 5  # of these, how many the results file shows


@dataclass(frozen=True)
class Removal:
    """A text with one piece removed: token ids of the whole, the token range removed, and the three strings."""

    ids: list[int]
    start: int
    stop: int
    left: str
    removed: str
    right: str

    @property
    def blanked(self) -> str:
        """The text with ``[BLANK]`` for the piece."""
        return f"{self.left.rstrip()} {BLANK} {self.right.lstrip()}".strip()


def remove_sentence(model: AmbiLM, sentences: Sequence[str], index: int) -> Removal | None:
    """Removes one sentence of several; None when no token belongs to it alone."""
    left = " ".join(sentences[:index])
    text = " ".join(sentences)
    begin, end = len(left), len(left) + 1 + len(sentences[index])
    ids, offsets = _tokens(model, text)
    inside = [place for place, (first, last) in enumerate(offsets) if first >= begin and last <= end and last > first]
    if not inside or inside[0] == 0:
        return None
    return Removal(ids, inside[0], inside[-1] + 1, left, sentences[index], text[end:])


def remove_span(model: AmbiLM, text: str, generator: random.Random) -> Removal | None:
    """Removes 8 to 32 tokens with at least 8 tokens left on each side; None for a text shorter than that."""
    ids, offsets = _tokens(model, text)
    ids, offsets = ids[:PIECE], offsets[:PIECE]
    longest = min(LONGEST_SPAN, len(ids) - 2 * SIDE)
    if longest < SHORTEST_SPAN:
        return None
    length = generator.randint(SHORTEST_SPAN, longest)
    start = generator.randint(SIDE, len(ids) - SIDE - length)
    stop = start + length
    begin, end = offsets[start][0], offsets[stop - 1][1]
    return Removal(ids, start, stop, text[:begin], text[begin:end].strip(), text[end : offsets[-1][1]])


def _tokens(model: AmbiLM, text: str) -> tuple[list[int], list[tuple[int, int]]]:
    encoded = model.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return list(encoded["input_ids"]), list(encoded["offset_mapping"])


def hybrid_log_probs(
    model: AmbiLM,
    removals: Sequence[Removal],
    weights: Literal["base", "adapted"] | None = None,
    gap: int | None = None,
    progress: bool = False,
    label: str = "both sides",
    sink: bool | None = None,
) -> list[np.ndarray]:
    """Log-probabilities of the removed tokens given both sides, (span tokens,) for each text.

    Args:
        weights: None for the model as it is.
        gap: places reserved for the span; None for as many as it has tokens.
        sink: False for the papers' mask; None for the model's own choice.
    """

    def score(batch: list[Removal]) -> list[np.ndarray]:
        examples = [InfillExample(removal.ids, [(removal.start, removal.stop)]) for removal in batch]
        return model.infill_log_probs(examples, weights=weights, gap=gap, sink=sink)

    return in_batches(removals, [len(removal.ids) for removal in removals], score, progress, label)


def left_to_right_log_probs(
    model: AmbiLM,
    removals: Sequence[Removal],
    weights: Literal["base", "adapted"] = "base",
    progress: bool = False,
    label: str = "left to right",
) -> list[np.ndarray]:
    """Log-probabilities of the removed tokens given the left side only, (span tokens,) for each text."""
    scored = causal_log_probs(model, [removal.ids[: removal.stop] for removal in removals], weights, progress, label)
    return [log_probs[removal.start :] for log_probs, removal in zip(scored, removals, strict=True)]


def is_causal_control(model: AmbiLM) -> bool:
    """Whether the model was tuned left to right, as the control that a bidirectional model is compared with."""
    return model.settings.recipe == "causal_control"


def infill_perplexity(
    model: AmbiLM, removals: Sequence[Removal], seed: int = 0, progress: bool = False
) -> dict[str, Any]:
    """Perplexity of the removed tokens in every reading (see the top of this file).

    Returns:
        ``main``, ``n``, ``tokens``, ``standard_error``, ``left_to_right`` with its error, ``untrained_hybrid``,
        ``untrained_paper_mask``,
        ``reduction_percent`` of ``main`` under ``left_to_right``, and ``fixed_gap`` or, for a control,
        ``causal_adapted``.
    """
    base = left_to_right_log_probs(model, removals, progress=progress)
    untrained = hybrid_log_probs(model, removals, "base", progress=progress, label="both sides, untrained")
    paper = hybrid_log_probs(model, removals, "base", progress=progress, label="untrained, paper's mask", sink=False)
    extra: dict[str, Any]
    if is_causal_control(model):
        own = left_to_right_log_probs(model, removals, "adapted", progress, "left to right, adapted")
        extra = {"causal_adapted": perplexity(own)}
    else:
        own = hybrid_log_probs(model, removals, progress=progress) if model.is_adapted else untrained
        fixed = hybrid_log_probs(model, removals, gap=FIXED_GAP, progress=progress, label="both sides, fixed gap")
        extra = {"fixed_gap": perplexity(fixed)}
    main, left_to_right = perplexity(own), perplexity(base)
    return {
        "main": main,
        "n": len(removals),
        "tokens": sum(len(item) for item in own),
        "standard_error": perplexity_error(own, seed),
        "left_to_right": left_to_right,
        "left_to_right_error": perplexity_error(base, seed),
        "untrained_hybrid": perplexity(untrained),
        "untrained_paper_mask": perplexity(paper),
        "reduction_percent": 100 * (1 - main / left_to_right),
        **extra,
    }


def generated_infills(model: AmbiLM, removals: Sequence[Removal], seed: int, progress: bool = False) -> dict[str, Any]:
    """Infills written greedily by the model, and the base's continuations of the same left sides.

    Returns:
        ``generated``: figures of :func:`ambilm.evaluation.overlap.overlap` for ``infill`` and ``left_to_right``;
        ``samples``: a few of the texts.
    """
    chosen = sample(removals, GENERATED, seed)
    infills, continuations = [], []
    for removal in tqdm(chosen, desc="writing infills", disable=not progress, leave=False):
        infills.append(model.infill(removal.blanked, max_tokens=FIXED_GAP).spans[0].strip())
        length = removal.stop - removal.start
        # The same number of tokens as were removed, no fewer: left to right a model has no reason to stop here.
        text = model.generate(removal.left.rstrip(), max_new_tokens=length, min_new_tokens=length, do_sample=False)
        continuations.append(str(text).strip())
    removed = [removal.removed for removal in chosen]
    return {
        "generated": {
            "n": len(chosen),
            "infill": overlap(infills, removed),
            "left_to_right": overlap(continuations, removed),
        },
        "samples": [
            {
                "left": removal.left,
                "right": removal.right,
                "removed": removal.removed,
                "infill": infill,
                "left_to_right": continuation,
            }
            for removal, infill, continuation in zip(chosen[:SAMPLES], infills, continuations, strict=False)
        ],
    }


def infill_entry(run: Run, removals: Sequence[Removal]) -> dict[str, Any]:
    """The entry of an infilling task; a causal control writes no infills, since it cannot see the right side."""
    entry = infill_perplexity(run.model, removals, run.seed, run.progress)
    if not is_causal_control(run.model):
        entry |= generated_infills(run.model, removals, run.seed, run.progress)
    return entry


def removals_of(
    run: Run, items: Iterable[Any], remove: Callable[[Any, random.Random], Removal | None], default: int | None
) -> list[Removal]:
    """One removal from each item that is long enough; what is removed depends on the item's place and the seed only.

    Raises:
        UserError: when no item is long enough.
    """

    def every() -> Iterator[Removal]:
        for place, item in enumerate(items):
            removal = remove(item, random.Random(f"removal {run.seed} {place}"))
            if removal is not None:
                yield removal

    removals = sample(every(), run.limit or default, run.seed)
    if len(removals) < 2:
        raise UserError(
            f"{', '.join(map(str, run.paths))}: fewer than 2 texts are long enough to remove {SHORTEST_SPAN} tokens "
            f"between {SIDE} others on each side; give longer text."
        )
    return removals


def story_removals(run: Run) -> list[Removal]:
    """One of the three middle sentences removed from each story of the part ``valid``."""

    def remove(story: Story, generator: random.Random) -> Removal | None:
        return remove_sentence(run.model, story.sentences, generator.randint(1, 3))

    return removals_of(run, read_rows(run.path, Story, "valid"), remove, None)


def paragraph_removals(run: Run) -> list[Removal]:
    """A span removed from each paragraph of the part ``valid``."""

    def remove(passage: Passage, generator: random.Random) -> Removal | None:
        return remove_span(run.model, passage.text, generator)

    return removals_of(run, read_rows(run.path, Passage, "valid"), remove, DEFAULT_PARAGRAPHS)


def _run_stories(run: Run) -> dict[str, Any]:
    return infill_entry(run, story_removals(run))


def _run_paragraphs(run: Run) -> dict[str, Any]:
    entry = infill_entry(run, paragraph_removals(run))
    passages = sample(read_rows(run.path, Passage, "valid"), run.limit or DEFAULT_PARAGRAPHS, run.seed)
    causal = causal_perplexity(run.model, (passage.text for passage in passages), run.seed, run.progress)
    return {**entry, "causal_perplexity": causal["main"], "causal_perplexity_error": causal["standard_error"]}


TASKS = (
    Task("rocstories", "rocstories", "infill perplexity", _run_stories),
    Task("wikitext2", "wikitext2", "infill perplexity", _run_paragraphs),
)
GROUPS = {"infill": ("rocstories", "wikitext2")}
