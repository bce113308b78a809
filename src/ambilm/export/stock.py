"""Plain transformers directories: the base model, or the base with the adaptation folded in (the papers' way)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ambilm.errors import UserError
from ambilm.loading.quiet import quiet_transformers
from ambilm.model.ambilm import AmbiLM


@contextmanager
def fresh_directory(output: Path) -> Iterator[Path]:
    """A directory to write to that becomes ``output`` when the block ends well and goes when it does not.

    Raises:
        UserError: when ``output`` is there and not empty.
    """
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"--output {output} is not empty: choose another directory.")
    output.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=output.parent, prefix=f".{output.name}."))
    try:
        yield scratch
        scratch.chmod(0o755)  # mkdtemp makes it private
        if output.exists():
            output.rmdir()
        scratch.rename(output)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def export_hf(model: AmbiLM, output: Path) -> None:
    """The untouched base model, as transformers saves it.

    Raises:
        UserError: when ``output`` is not empty.
    """
    with fresh_directory(output) as directory, quiet_transformers():
        model.base.save_pretrained(directory)
        model.tokenizer.save_pretrained(directory)


def export_merged(model: AmbiLM, output: Path) -> None:
    """The adapted weights as a stock model; its causal text is no longer the base's.

    Raises:
        UserError: when the model has no adapter, or ``output`` is not empty.
    """
    if not model.is_adapted:
        raise UserError(f"{model.name} is not adapted, so there is nothing to merge: export it with --to hf.")
    export_hf(model.merged(), output)
