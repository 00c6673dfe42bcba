"""Secrets stay out of prompts, rows, errors and logs: the values of environment variables that look like one."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

SECRET_NAMES = re.compile(r"(API_?KEY|ACCESS_KEY|_KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)
SHORTEST = 8  # characters; a shorter value is a flag or a number, and replacing it would garble text

# Well-known shapes, in case an endpoint quotes a key that is in no variable of ours.
SHAPES = re.compile(
    r"\b(?:sk|pk|rk|gsk|xai|hf|ghp|gho|nvapi|AIza)[-_][A-Za-z0-9_\-*]{12,}|(?<=Bearer )[A-Za-z0-9._\-]{8,}"
)


def secrets(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Value → name of the variable, longest first, so that a secret within a secret leaves no remains."""
    found = {
        value: name
        for name, value in (os.environ if environ is None else environ).items()
        if len(value) >= SHORTEST and SECRET_NAMES.search(name) and not os.path.exists(value)
    }
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def redact(text: str, environ: Mapping[str, str] | None = None) -> str:
    """`text` with every secret replaced by the name of its variable in brackets."""
    for value, name in secrets(environ).items():
        text = text.replace(value, f"[{name}]")
    return SHAPES.sub("[key]", text)
