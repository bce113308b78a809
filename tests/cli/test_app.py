"""The application as a whole: help, exit codes, what exceptions, interrupts and closed pipes turn into."""

import subprocess
import sys
from typing import Any

import pytest

import ambilm
from ambilm.cli import models
from ambilm.errors import UserError

# A process in which every model is this stand-in: these tests are about the command line around it.
STAND_IN = """
import os, signal, sys
from ambilm.cli import main, models
# A shell starts what it runs in the background with Ctrl-C ignored; without this the text below would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)
class Model:
    def with_weights(self, weights):
        return self
    def generate(self, prompt, **options):
        if prompt == "interrupt":
            yield "half a "
            os.kill(os.getpid(), signal.SIGINT)
        while True:
            yield "word " * 1000
models.load = lambda *_: Model()
main()
"""


def test_help_names_every_command_without_importing_torch() -> None:
    script = "import sys; from ambilm.cli import app\ntry: app(['--help'])\nfinally: assert 'torch' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0, shown.stderr
    for command in (
        "adapt",
        "embed",
        "tokens",
        "infill",
        "generate",
        "chat",
        "evaluate",
        "compare",
        "dependence",
        "export",
        "demo",
    ):
        assert f" {command} " in shown.stdout


def test_version(run: Any) -> None:
    assert run("--version").stdout.strip() == f"ambilm {ambilm.__version__}"


@pytest.mark.parametrize(
    "arguments", [["embad"], ["infill"], ["embed", "m", "--pooling", "max"], ["infill", "m", "x", "--top-p", "2"]]
)
def test_usage_errors_exit_2(run: Any, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def raising(error: BaseException) -> Any:
    def load(*_: object) -> None:
        raise error

    return load


def test_user_error_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load", raising(UserError("There is no such model.")))
    result = run("generate", "m", "Hello")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "There is no such model.\n")


def test_unexpected_exception_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMBILM_DEBUG", raising=False)
    monkeypatch.setattr(models, "load", raising(ZeroDivisionError("by zero\nand more")))
    result = run("generate", "m", "Hello")
    assert result.exit_code == 1
    assert result.stderr == "internal error: ZeroDivisionError: by zero (run with AMBILM_DEBUG=1 for the traceback)\n"
    monkeypatch.setenv("AMBILM_DEBUG", "1")
    assert "Traceback" in run("generate", "m", "Hello").stderr


def test_ctrl_c_exits_130_and_keeps_what_was_printed() -> None:
    stopped = subprocess.run(
        [sys.executable, "-c", STAND_IN, "generate", "m", "interrupt"], capture_output=True, timeout=60
    )
    assert (stopped.returncode, stopped.stdout) == (130, b"half a ")
    assert stopped.stderr == b"Interrupted.\n"


def test_interrupt_says_what_was_saved(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "load", raising(KeyboardInterrupt("stopped after step 3 of 9")))
    result = run("generate", "m", "Hello")
    assert (result.exit_code, result.stderr) == (130, "Interrupted: stopped after step 3 of 9.\n")


def test_closed_pipe_is_quiet() -> None:
    command = [sys.executable, "-c", STAND_IN, "generate", "m", "go on"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdout is not None and writer.stderr is not None
        writer.stdout.read(10)
        writer.stdout.close()
        assert writer.wait(timeout=60) == 141
        assert writer.stderr.read() == b""
