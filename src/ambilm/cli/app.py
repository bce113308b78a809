"""The typer application: which commands there are, and what a mistake, an interrupt or a closed pipe turns into."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import ambilm
from ambilm.cli import (
    adapt,
    chat,
    compare,
    demo,
    dependence,
    embed,
    evaluate,
    export,
    gates,
    generate,
    infill,
    reproduce,
    serve,
    sheet,
    tokens,
)
from ambilm.errors import UserError

INTERNAL_ERROR, USER_ERROR, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


class Commands(TyperGroup):
    """Runs a command and turns what it raises into one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here, so that a closed pipe is met inside this block
            return result
        except UserError as error:
            raise self.stop(str(error), USER_ERROR) from None
        except KeyboardInterrupt as interrupt:
            detail = str(interrupt)  # training says which step it saved
            raise self.stop(f"Interrupted: {detail}." if detail else "Interrupted.", INTERRUPTED) from None
        except BrokenPipeError:
            # The reader has what it wanted. The interpreter flushes stdout once more at exit: give it a sink.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except Exception as error:
            # Usage errors and exits are typer's to show. It moved their classes between releases: tell them by shape.
            if hasattr(error, "exit_code") or isinstance(error, typer.Abort):
                raise
            if os.environ.get("AMBILM_DEBUG"):
                traceback.print_exc()
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            message = f"internal error: {reason} (run with AMBILM_DEBUG=1 for the traceback)"
            raise self.stop(message, INTERNAL_ERROR) from None

    @staticmethod
    def stop(message: str, code: int) -> typer.Exit:
        typer.echo(message, err=True)
        return typer.Exit(code)


app = typer.Typer(
    name="ambilm",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ambilm {ambilm.__version__}")
        raise typer.Exit


@app.callback()
def ambilm_command(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """One decoder, both directions: sentence and token vectors, infilling and untouched generation from one model.

    M is a packaged model ([cyan]smollm2-135m[/cyan], [cyan]gemma3-270m[/cyan]), a directory, a .gguf file or a hub id.
    """


app.command("adapt", cls=adapt.AdaptCommand)(adapt.adapt)
app.command("embed")(embed.embed)
app.command("tokens")(tokens.tokens)
app.command("infill")(infill.infill)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("evaluate")(evaluate.evaluate)
app.command("compare")(compare.compare)
app.command("sheet")(sheet.sheet)
app.command("ratings")(sheet.ratings)
app.command("dependence")(dependence.dependence)
app.command("gates")(gates.gates)
app.command("reproduce", cls=reproduce.ReproduceCommand)(reproduce.reproduce)
app.command("export")(export.export)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)


def main() -> None:
    """Entry point of the console script ``ambilm``."""
    try:
        app(prog_name="ambilm")
    except SystemExit as end:
        if end.code in (INTERRUPTED, BROKEN_PIPE):
            # A generation may still run in its thread; tearing the interpreter down under it aborts the process.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise
