"""Secrets stay out of prompts, rows, errors and logs: the values of environment variables that look like one."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache

SECRET_NAMES = re.compile(r"(API_?KEY|ACCESS_KEY|SECRET_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
SHORTEST = 8  # characters; a shorter value is a flag or a number, and replacing it would garble text

# Well-known shapes, in case an endpoint quotes a key that is in no variable of ours. None is a name in Python.
SHAPES = re.compile(
    r"\bsk-[A-Za-z0-9_\-*]{12,}|\b(?:gsk_|ghp_|gho_|hf_|xai-|nvapi-|AIza)[A-Za-z0-9_\-]{30,}"
    r"|(?<=Bearer )[A-Za-z0-9._\-]{8,}"
)
SIGNS = ("sk-", "gsk_", "ghp_", "gho_", "hf_", "xai-", "nvapi-", "AIza", "Bearer ")
# Each match holds one: looking for these first is a thousand times faster in a long prompt.


def secrets(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Value → name of the variable, longest first, so that a secret within a secret leaves no remains."""
    given = os.environ if environ is None else environ
    named = {given.get(name, ""): name for name in given if _secret(name)}
    found = {value: name for value, name in named.items() if len(value) >= SHORTEST and not os.path.exists(value)}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


@lru_cache(maxsize=4096)  # asked of every variable, several times a call
def _secret(name: str) -> bool:
    return SECRET_NAMES.search(name) is not None


def redactor(environ: Mapping[str, str] | None = None) -> Callable[[str], str]:
    """What replaces every secret by the name of its variable in brackets, as the variables are now.

    A text without any comes back as the same object.
    """
    known = secrets(environ)

    def clean(text: str) -> str:
        for value, name in known.items():
            text = text.replace(value, f"[{name}]")
        for sign in SIGNS:
            if sign in text:
                return SHAPES.sub("[key]", text)
        return text

    return clean


def redact(text: str, environ: Mapping[str, str] | None = None) -> str:
    """One text, see `redactor`."""
    return redactor(environ)(text)
