"""README of an exported package: how to use it, what was judged, how to check it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined


def readme(name: str, operator: str, manifest: Mapping[str, Any], provenance: Sequence[Mapping[str, Any]]) -> str:
    """Markdown."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined, keep_trailing_newline=True
    )  # no markup is escaped: this is Markdown
    return templates.get_template("readme.md.jinja").render(
        name=name,
        operator=operator,
        manifest=manifest,
        provenance=provenance,
        names=", ".join(manifest["names"]),
        gradients=", ".join(manifest["names"][place] for place in manifest["differentiable"]),
        groups=[*manifest["judged"], *(manifest["backward"]["judged"] if manifest["backward"] else [])],
    )
