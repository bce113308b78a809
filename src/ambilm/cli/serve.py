"""``ambilm serve M``: embeddings, generation and infilling over HTTP, in OpenAI's API."""

from __future__ import annotations

import signal
import socket
from typing import Annotated

import typer

from ambilm.cli import models
from ambilm.cli.options import DeviceOption, Dtype, DtypeOption, ModelArgument
from ambilm.errors import UserError


def serve(
    model: ModelArgument,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            envvar="AMBILM_API_KEY", help="Asked for under /v1; may be given several times.", show_default=False
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What requests call the model; M if not given.", show_default=False)
    ] = None,
    rows: Annotated[int, typer.Option(min=1, help="Most texts written in one pass.")] = 16,
    request_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a request, to read and to write.")] = 2**17,
    open_requests: Annotated[int, typer.Option(min=1, help="Most requests taken on and not yet answered.")] = 256,
    open_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of all these; beyond, 429.")] = 2**18,
    seconds: Annotated[int, typer.Option(min=1, help="Longest time of a request, its waiting included.")] = 600,
    dtype: DtypeOption = Dtype.auto,
    device: DeviceOption = "auto",
) -> None:
    """Serve one model over HTTP: what clients of OpenAI speak, from one copy of the weights."""
    if any(not key.strip() for key in api_key or []):
        raise UserError("--api-key is empty: give a key, or leave it out to ask for none.")
    try:
        import uvicorn

        from ambilm.serving.app import create_app
        from ambilm.serving.limits import Limits
    except ModuleNotFoundError as error:
        raise UserError(f"serve needs {error.name}: pip install 'ambilm[serve]'.") from error
    with listening(host, port) as listener:  # before the model is loaded: an address that is taken is told at once
        limits = Limits(
            rows=rows, request_tokens=request_tokens, open_requests=open_requests, open_tokens=open_tokens, seconds=seconds
        )  # fmt: skip
        app = create_app(models.load(model, dtype, device), name or model, api_key or (), limits)
        config = uvicorn.Config(app, access_log=False, timeout_graceful_shutdown=seconds)
        address = f"[{host}]" if ":" in host else host
        typer.echo(f"{name or model} at http://{address}:{listener.getsockname()[1]}/v1", err=True)
        # uvicorn answers what it has taken on, then raises the signal again: an orderly end is no failure.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        uvicorn.Server(config).run(sockets=[listener])


def listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise UserError(f"--host {host} --port {port} cannot be listened on: {error.strerror or error}.") from error
