"""Whether the hub can be asked at all; its client would try five times, half a minute, before it says no."""

import socket
from urllib.parse import urlparse
from urllib.request import getproxies

from huggingface_hub import constants


def hub_resolves() -> bool:
    """True when the hub's name resolves, or a proxy does that for us."""
    if getproxies():
        return True
    try:
        socket.getaddrinfo(urlparse(constants.ENDPOINT).hostname, 443)
    except OSError:
        return False
    return True
