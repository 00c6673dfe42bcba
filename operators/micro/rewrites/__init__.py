"""Every rewrite that the offline coder knows, by strategy name. Adding one: a file here, and a line in `_ALL`."""

from __future__ import annotations

from operators.micro.rewrites.base import Rewrite, RewriteFailed

_ALL: tuple[Rewrite, ...] = ()

REWRITES: dict[str, Rewrite] = {rewrite.name: rewrite for rewrite in _ALL}

__all__ = ["REWRITES", "Rewrite", "RewriteFailed"]
