"""Where kernels are judged, as people write it: `local`, or `spool:DIR`."""

from __future__ import annotations

from pathlib import Path

LOCAL, SPOOL = "local", "spool:"


def judge_place(text: str) -> str:
    """With an absolute path, which a resume finds from any working folder. Raises ValueError, with what to write."""
    if text == LOCAL:
        return text
    folder = text.removeprefix(SPOOL)
    if folder == text or not folder:
        raise ValueError(f"{text!r} is no place for a judge: write local, or spool:DIR")
    return f"{SPOOL}{Path(folder).expanduser().absolute()}"
