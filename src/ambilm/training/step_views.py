"""From a step number to what the step looks at: the views of each recipe's objectives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ambilm.model.encoding import PromptedTokenizer
from ambilm.model.settings import Settings
from ambilm.objectives import View, answers_view, causal_span_view, infill_view, plain_view
from ambilm.objectives.views import Masking
from ambilm.recipes import Magnet, Mntp, PairSettings
from ambilm.training.conversations import ConversationStore, Spans
from ambilm.training.draws import MASKS, NEGATIVES, PAIRS, DrawnText, PairDraws, Shuffled, TextDraws, Texts, stream
from ambilm.training.losses import StepViews
from ambilm.training.tokens import PairStore

DRAWS = 20  # for one negative, before a text that differs is given up

Row = tuple[np.ndarray, np.ndarray, np.ndarray | None]


class ControlViews:
    """The spans of the control, left to right."""

    def __init__(self, texts: TextDraws) -> None:
        self.texts = texts

    def __call__(self, step: int) -> StepViews:
        return StepViews([causal_span_view(text.ids, text.spans) for text in self.texts.step(step)])


class AnswerViews:
    """Conversations whose answers are predicted.

    Args:
        prefix_share: share of conversations of which one answer is predicted, its prompt seen both ways; the others are
            read left to right and have all their answers predicted.
    """

    def __init__(self, store: ConversationStore, seed: int, per_step: int, prefix_share: float = 0.0) -> None:
        self.store, self.seed, self.per_step, self.prefix_share = store, seed, per_step, prefix_share
        self.walk = Shuffled(len(store), seed)

    def __call__(self, step: int) -> list[View]:
        random = stream(self.seed, step, MASKS)
        drawn = (self.store[self.walk[step * self.per_step + number]] for number in range(self.per_step))
        return [self._view(ids, answers, random) for ids, answers in drawn]

    def _view(self, ids: np.ndarray, answers: Spans, random: np.random.Generator) -> View:
        if random.random() >= self.prefix_share:
            return answers_view(ids, answers)
        start, stop = answers[random.integers(len(answers))]
        return answers_view(ids[:stop], [(start, stop)], prefix=start)


def compared(hybrid: list[View], rows: Sequence[Row]) -> StepViews:
    """Views with something to predict, beside the clean views of (anchor, positive, negative or None)."""
    return StepViews(
        hybrid,
        [plain_view(anchor) for anchor, _, _ in rows],
        [plain_view(positive) for _, positive, _ in rows],
        [plain_view(negative) for _, _, negative in rows if negative is not None],
    )


class PairViews:
    """The clean views of a contrastive objective.

    Args:
        recipe: how many pairs, and whether they come from a file, from dropout, or both.
        prompted: makes token ids of a text, as ``encode`` will.
        texts: what dropout views are made of; None where no text was given.
        store: the pairs of ``--pairs``; None without.
        drawn_negatives: give a pair without a hard negative another text as one.
    """

    def __init__(
        self,
        recipe: PairSettings,
        seed: int,
        prompted: PromptedTokenizer,
        texts: Texts | None,
        store: PairStore | None,
        drawn_negatives: bool = False,
    ) -> None:
        self.recipe, self.seed, self.prompted, self.texts, self.store = recipe, seed, prompted, texts, store
        self.drawn_negatives = drawn_negatives
        self.kind = recipe.views or ("dropout" if store is None else "pairs")
        from_file = recipe.pairs_per_step // 2 if self.kind == "both" else recipe.pairs_per_step
        self.pairs = PairDraws(store, seed, from_file) if store is not None else None

    @property
    def dropout(self) -> float:
        """Attention dropout that the views need."""
        return 0.0 if self.kind == "pairs" else self.recipe.attention_dropout

    def __call__(self, step: int) -> StepViews:
        rows = self.pairs.step(step) if self.pairs is not None else []
        rows += self._same_texts(step, self.recipe.pairs_per_step - len(rows))
        if self.drawn_negatives:
            rows = self._with_negatives(step, rows)
        return compared([], rows)

    def _same_texts(self, step: int, count: int) -> list[Row]:
        """Texts that are compared with themselves under other dropout masks."""
        if not count:
            return []
        start = int(stream(self.seed, step, PAIRS).integers(2**40))
        texts = [self._text(start + number) for number in range(count)]
        return [(ids, ids, None) for ids in texts]

    def _text(self, draw: int) -> np.ndarray:
        """A text of ``--text`` with the prompt."""
        assert self.texts is not None  # adapt() asks for --text where dropout views are wanted
        text = str(self.prompted.tokenizer.decode(self.texts.text(draw)))
        return np.array(self.prompted([text])[0].ids)

    def _with_negatives(self, step: int, rows: list[Row]) -> list[Row]:
        """Where a row has no hard negative, a text from anywhere that is neither its anchor nor its positive."""
        random = stream(self.seed, step, NEGATIVES)
        filled = []
        for anchor, positive, negative in rows:
            drawn = (self._any_text(random) for _ in range(DRAWS))
            others = (ids for ids in drawn if not np.array_equal(ids, anchor) and not np.array_equal(ids, positive))
            filled.append((anchor, positive, next(others, None) if negative is None else negative))
        return filled

    def _any_text(self, random: np.random.Generator) -> np.ndarray:
        if self.store is not None:
            return self.store[int(random.integers(len(self.store)))][1]
        return self._text(int(random.integers(2**40)))


class MntpViews:
    """Texts with masked tokens, all context."""

    def __init__(self, recipe: Mntp, settings: Settings, masking: Masking, texts: Texts) -> None:
        self.recipe, self.settings, self.masking, self.texts = recipe, settings, masking, texts

    def __call__(self, step: int) -> StepViews:
        random = stream(self.recipe.seed, step, MASKS)
        first = step * self.recipe.texts_per_step
        start, end = self.settings.start_token_id, self.settings.end_of_span_token_id
        draws = range(first, first + self.recipe.texts_per_step)
        texts = [self.texts.started(draw, start) for draw in draws]
        return StepViews([infill_view(ids, [], [], end, self.masking, random) for ids in texts])


class MagnetViews:
    """The masked-and-spanned views of every step, and in the second stage the clean pairs."""

    def __init__(
        self, recipe: Magnet, settings: Settings, masking: Masking, texts: TextDraws, pairs: PairViews
    ) -> None:
        self.recipe, self.settings, self.masking, self.texts, self.pairs = recipe, settings, masking, texts, pairs

    @property
    def dropout(self) -> float:
        return self.pairs.dropout if self.recipe.stage2_steps else 0.0

    def __call__(self, step: int) -> StepViews:
        random = stream(self.recipe.seed, step, MASKS)
        hybrid = [self._hybrid(text, random) for text in self.texts.step(step)]
        second = step - self.recipe.stage1_steps
        if second < 0:
            return StepViews(hybrid)
        clean = self.pairs(second)
        return StepViews(hybrid, clean.anchors, clean.positives, clean.negatives)

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
