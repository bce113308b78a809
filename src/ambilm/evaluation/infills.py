"""Infills, written: what a model puts in a gap, beside the other ways to fill it with the same weights.

``rocstories:infills`` removes one middle sentence of a story, ``wikitext2:infills`` 8 to 32 tokens of a paragraph, the same
texts for every model. The rows (MAGNET, section 4.3):

- ``infill``: the model, which sees both sides and ends by itself;
- ``causal_adapted``: instead of it for a causal control, the tuned weights going on from the left side;
- ``left_to_right``: the base going on from the left side;
- ``zero_shot``, ``five_shot``: the base asked for what is missing, after no or five worked examples.

``main`` is ROUGE-L of the model's own row with what was removed; every text is kept, for ``ambilm sheet``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from ambilm.errors import UserError
from ambilm.evaluation.data import sample
from ambilm.evaluation.infilling import (
    FIXED_GAP,
    GENERATED,
    Removal,
    is_causal_control,
    paragraph_removals,
    story_removals,
)
from ambilm.evaluation.overlap import overlap, rouge_l
from ambilm.evaluation.statistics import mean_figures
from ambilm.evaluation.task import Run, Task
from ambilm.model.generation import chat_prompt
from ambilm.model.settings import BLANK
from ambilm.training.text import sentences_of

if TYPE_CHECKING:
    from ambilm import AmbiLM

SHOTS = 5
SHOT_WORDS = 32  # of each side of a worked example: five long paragraphs would fill a small context
QUESTION = f"What is missing at {BLANK}? Answer with the missing text alone.\n\n"


def prompt(model: AmbiLM, removal: Removal, shots: Sequence[Removal]) -> str:
    """The question for what is missing: a conversation for a model with a chat template, else running text."""
    turns = [(_cut(shot), shot.removed) for shot in shots]
    if not model.tokenizer.chat_template:
        told = "".join(f"{question}\nMissing: {answer}\n\n" for question, answer in turns)
        return f"{QUESTION}{told}{removal.blanked}\nMissing:"
    messages = [
        {"role": role, "content": content}
        for question, answer in turns
        for role, content in (("user", QUESTION + question), ("assistant", answer))
    ]
    return chat_prompt(model.tokenizer, [*messages, {"role": "user", "content": QUESTION + removal.blanked}])


def _cut(shot: Removal) -> str:
    left, right = shot.left.split()[-SHOT_WORDS:], shot.right.split()[:SHOT_WORDS]
    return replace(shot, left=" ".join(left), right=" ".join(right)).blanked


def first_line(text: str, sentence: bool) -> str:
    """The answer without what a model adds in further lines or, where a sentence is asked for, in further sentences."""
    line = next(iter(text.strip().splitlines()), "").strip()
    return next(iter(sentences_of(line)), "") if sentence else line


def writers(model: AmbiLM, shots: Sequence[Removal], sentence: bool) -> dict[str, Callable[[Removal], str]]:
    """How each row fills a gap, greedily.

    Args:
        shots: worked examples of ``five_shot``.
        sentence: whether a sentence is missing. Then what has no end of its own is cut after its first sentence; otherwise
            a continuation is told how many tokens are missing.
    """

    def both_sides(removal: Removal) -> str:
        return model.infill(removal.blanked, max_tokens=FIXED_GAP).spans[0].strip()

    def going_on(writer: AmbiLM, removal: Removal) -> str:
        least, most = (1, FIXED_GAP) if sentence else (removal.stop - removal.start,) * 2
        text = writer.generate(removal.left.rstrip(), min_new_tokens=least, max_new_tokens=most, do_sample=False)
        return first_line(text, sentence) if sentence else text.strip()

    def asked(examples: Sequence[Removal], removal: Removal) -> str:
        question = prompt(model, removal, examples)
        return first_line(model.generate(question, max_new_tokens=FIXED_GAP, do_sample=False), sentence)

    control = is_causal_control(model)
    return {
        **({"causal_adapted": partial(going_on, model.merged())} if control else {"infill": both_sides}),
        "left_to_right": partial(going_on, model),
        "zero_shot": partial(asked, []),
        "five_shot": partial(asked, shots),
    }


def figures(model: AmbiLM, written: Sequence[str], removed: Sequence[str]) -> dict[str, Any]:
    """How a row compares with what was removed.

    Returns:
        the figures of :func:`ambilm.evaluation.overlap.overlap`; ``similarity``, the cosine with what was removed, and
        ``similarity_elsewhere``, that with what was removed from the other texts. The vectors are the base's by the
        PromptEOL template (Jiang et al. 2023), so that every model over one base is measured alike.
    """
    encode = partial(
        model.encode, reading="prompt-eol", weights="base", normalize_embeddings=True, show_progress_bar=False
    )
    cosines = encode(list(written)) @ encode(list(removed)).T  # (texts, texts)
    own = cosines.diagonal()
    similarity = mean_figures(own.tolist())
    return {
        **overlap(written, removed),
        "similarity": similarity["main"],
        "similarity_error": similarity["standard_error"],
        "similarity_elsewhere": float((cosines.sum() - own.sum()) / (cosines.size - len(own))),
    }


def infills_entry(run: Run, removals: Sequence[Removal], sentence: bool) -> dict[str, Any]:
    """Every row's figures and texts.

    Args:
        removals: five of them, drawn with the seed, are the worked examples and are not filled.

    Raises:
        UserError: when fewer than two are left.
    """
    shots = sample(removals, SHOTS, run.seed)
    asked = [removal for removal in removals if removal not in shots]
    if len(asked) < 2:
        raise UserError(
            f"{run.path}: {len(removals)} texts of split 'valid' are long enough; {SHOTS} worked examples and 2 to fill "
            "are needed; give more text."
        )
    removed = [removal.removed for removal in asked]
    rows: dict[str, list[str]] = {}
    for row, fill in writers(run.model, shots, sentence).items():
        rows[row] = [fill(removal) for removal in tqdm(asked, desc=f"writing, {row}", disable=not run.progress)]
    own = next(iter(rows))
    return {
        **mean_figures(rouge_l(rows[own], removed)),
        "rows": {row: figures(run.model, texts, removed) for row, texts in rows.items()},
        "texts": [
            {
                "left": removal.left,
                "right": removal.right,
                "removed": removal.removed,
                **{row: texts[place] for row, texts in rows.items()},
            }
            for place, removal in enumerate(asked)
        ],
    }


def _run_stories(run: Run) -> dict[str, Any]:
    return infills_entry(run, story_removals(_with_shots(run)), sentence=True)


def _run_paragraphs(run: Run) -> dict[str, Any]:
    return infills_entry(run, paragraph_removals(_with_shots(run)), sentence=False)


def _with_shots(run: Run) -> Run:
    return replace(run, limit=(run.limit or GENERATED) + SHOTS)


TASKS = (
    Task("rocstories:infills", "rocstories", "ROUGE-L", _run_stories),
    Task("wikitext2:infills", "wikitext2", "ROUGE-L", _run_paragraphs),
)
GROUPS = {"infills": ("rocstories:infills", "wikitext2:infills")}
