"""Guides: how a strategy is carried out, with a worked example of our own, one .md file a strategy of the catalogue."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent
_CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@cache
def guides() -> dict[str, str]:
    """Strategy name → the text of its guide."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("*.md"))}


def examples(guide: str) -> list[str]:
    """The Python code blocks of a guide, in order."""
    return _CODE.findall(guide)
