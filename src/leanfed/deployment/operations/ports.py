"""Which ports are free, and which answer."""

from __future__ import annotations

import socket

from leanfed.deployment.operations.keys import address
from leanfed.errors import InputError


def check_free(host: str, port: int, what: str) -> None:
    """Refuse a port that something listens on."""
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError as error:
        raise InputError(
            f"{what} cannot listen on {address(host, port)} ({error.strerror or error}). "
            "Stop what listens there, or choose other ports when making the fleet (leanfed deploy keys --port)."
        ) from error


def listens(host: str, port: int) -> bool:
    """Whether somebody takes connections there."""
    target = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    try:
        socket.create_connection((target, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
