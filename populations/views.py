"""The views of views.sql, by name."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path


@cache
def view_definitions() -> dict[str, str]:
    """What follows `CREATE VIEW name`."""
    text = Path(__file__).with_name("views.sql").read_text(encoding="utf-8")
    return dict(re.findall(r"^CREATE VIEW (\w+)([^;]*)", text, re.MULTILINE))
