"""Running commands in this process, over a model that is loaded once."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from ambilm.cli import app, models

if TYPE_CHECKING:
    from ambilm import AmbiLM

Run = Callable[..., Any]


@pytest.fixture
def run() -> Run:
    """``run("embed", "m", ..., input=...)``: exit code, stdout and stderr of a command run in this process."""

    def call(*arguments: object, input: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=input)

    return call


@pytest.fixture
def refused(run: Run) -> Callable[..., str]:
    """Runs a command that must be refused: exit code 2, one line on stderr, nothing on stdout, no model loaded."""

    def call(*arguments: object, input: str | bytes | None = None) -> str:
        def load(*_: object) -> None:
            raise AssertionError("the model was loaded before the mistake was found")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(models, "load", load)
            result = run(*arguments, input=input)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1, result.stderr
        return str(result.stderr)

    return call


@pytest.fixture
def loaded(smollm2: "AmbiLM", monkeypatch: pytest.MonkeyPatch) -> "AmbiLM":
    """The session's SmolLM2 in place of whatever model a command names."""
    monkeypatch.setattr(models, "load", lambda *_: smollm2)
    return smollm2
