"""Preflight of configured model servers: whether they take connections. Imports nothing slow."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from evo_kernel.config import Config, ModelConfig

PORTS = {"http": 80, "https": 443}
CONNECT_S = 3.0
"""Seconds within which a server takes a connection."""


def nobody_at(config: Config) -> str:
    """Which configured server takes no connection, and what to do; empty where all do. Providers are not asked."""
    return next(filter(None, map(silence, config.models.values())), "")


def silence(one: ModelConfig) -> str:
    """That a model's own server takes no connection, and what to do; empty where it does, or is a provider's."""
    if one.base_url is None:
        return ""
    parts = urlsplit(one.base_url)
    try:
        socket.create_connection((str(parts.hostname), parts.port or PORTS[parts.scheme]), CONNECT_S).close()
    except OSError as error:
        reason = error.strerror or str(error)
        return f"nobody answers at {one.base_url} ({reason}): start the server of {one.name}, or name another one."
    return ""
