"""Where kernels are judged, as people write it: `local`, `spool:DIR`, `ray`, or `ray:ADDRESS`."""

from __future__ import annotations

import re
from pathlib import Path

LOCAL, SPOOL, RAY = "local", "spool:", "ray"


def judge_place(text: str) -> str:
    """With an absolute path, which a resume finds from any working folder. Raises ValueError, with what to write."""
    if text in (LOCAL, RAY) or ray_address(text):
        return text
    folder = text.removeprefix(SPOOL)
    if folder == text or not folder:
        raise ValueError(f"{text!r} is no place for a judge: write local, spool:DIR, ray, or ray:HOST:PORT")
    return f"{SPOOL}{Path(folder).expanduser().absolute()}"


def ray_address(place: str) -> str:
    """Of the cluster to join; empty where there is none to."""
    found = re.fullmatch(rf"{RAY}:(auto|[^\s/]+:\d+)", place)
    return found[1] if found else ""
