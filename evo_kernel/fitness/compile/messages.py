"""Shortens error messages of Triton's compiler."""

from __future__ import annotations

_LIMIT = 1200


def explain(error: BaseException) -> str:
    """Triton's message, cut to its end: the last lines name the kernel's line and the error."""
    text = str(error).strip() or type(error).__name__
    cause = error.__cause__ or error.__context__
    if cause is not None and str(cause).strip() and str(cause).strip() not in text:
        text += f"\n{type(cause).__name__}: {cause}"
    return f"{type(error).__name__}: {text}"[-_LIMIT:] if len(text) > _LIMIT else f"{type(error).__name__}: {text}"
