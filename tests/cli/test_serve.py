"""``ambilm serve``: what is wrong is said before the model is loaded."""

import socket
from collections.abc import Callable


def test_an_address_that_is_taken(refused: Callable[..., str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        message = refused("serve", "smollm2-135m", "--port", taken.getsockname()[1])
    assert "--port" in message


def test_a_host_that_is_not(refused: Callable[..., str]) -> None:
    assert "--host 256.0.0.1" in refused("serve", "smollm2-135m", "--host", "256.0.0.1")


def test_an_empty_key(refused: Callable[..., str]) -> None:
    assert "--api-key" in refused("serve", "smollm2-135m", "--api-key", " ")
