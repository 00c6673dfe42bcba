"""The texts of the built-in tasks: a folder each, or a template (`*.py.j2`) in the folder of a family.

A family's templates give each of its tasks a whole text of its own, which is what agents see and scores belong to.
Imports no torch: commands look names up before they load it.
"""

from __future__ import annotations

from pathlib import Path

HOME = Path(__file__).parent
FAMILIES = {
    "attention_long": ("attention_causal", "attention_full", "gqa"),
    "conv2d": ("conv2d", "conv2d_bf16", "conv2d_channels_last", "conv2d_tf32"),
    "norm": ("rmsnorm", "add_rmsnorm", "layernorm"),
    "norm_backward": ("layernorm_backward", "rmsnorm_backward"),
    "shared_prompt": ("shared_prompt", "shared_prompt_backward"),
}
"""Folder of a family → the names of its tasks."""


def builtin_names() -> tuple[str, ...]:
    """Of all built-in tasks, sorted."""
    alone = (path.parent.name for path in HOME.glob("*/task.py"))
    return tuple(sorted([*alone, *(name for members in FAMILIES.values() for name in members)]))


def path_of(name: str, file: str) -> Path:
    """Where a task's file is, such as `task.py` or `seed.py`, or the template that it comes from."""
    path = HOME / next((family for family, members in FAMILIES.items() if name in members), name) / file
    template = path.with_name(f"{file}.j2")
    return template if template.is_file() else path


def text_of(name: str, file: str) -> str:
    """The text of a built-in task's file. Raises OSError."""
    path = path_of(name, file)
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".j2":
        return text
    from jinja2 import Environment, StrictUndefined

    own = Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined)
    return own.from_string(text).render(name=name)
