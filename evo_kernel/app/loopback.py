"""Listening on this machine alone: what `mcp` and `serve` have in common."""

from __future__ import annotations

import socket

from evo_kernel.errors import UserError


def listen(port: int) -> socket.socket:
    """Loopback only: there is no option for more. Port 0 takes a free one. Raises UserError."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise UserError(
            f"port {port} cannot be used ({error.strerror}): name another one, or 0 for a free one"
        ) from error
    listening.listen(64)
    return listening
