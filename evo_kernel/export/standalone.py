"""One Python file with `run(*inputs)` that needs PyTorch alone: a program's launches, and what runs them."""

from __future__ import annotations

import base64
import json
import lzma
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).parent / "shipped"
TENSOR_MAPS = Path(__file__).parents[1] / "fitness" / "runners" / "tensor_map_bytes.py"
"""How the judge makes tensor maps: read as text, so that exported code makes them the same way."""

_HEAD = '''"""Launches that were recorded, as machine code with its parameters: written by evo-kernel.

`run` takes the inputs that it was recorded with, by dtype, sizes and strides, and raises CannotLaunch for any others.
"""

from __future__ import annotations

import json
import lzma
'''
_RUN = '''

@functools.cache
def _program():
    return Program(json.loads(lzma.decompress(base64.b32decode(_data()))))


def run(*inputs):
    made = _program()(*inputs)
    return made[0] if len(made) == 1 else made


def _data():
    """The program, compressed, in base 32: no word of any language can be in it."""
    return "".join("""
{data}
""".split())
'''
_SOURCE = "\n\n# The source that was recorded, for people: nothing here imports it.\n"


def standalone(program: Mapping[str, Any], source: str) -> str:
    """The module's text. `program`: see evo_kernel/fitness/plan/program.py; `source`: what it was recorded from."""
    packed = base64.b32encode(lzma.compress(json.dumps(program).encode(), preset=9)).decode()
    data = "\n".join(textwrap.wrap(packed, 116))
    comment = "".join(f"# {line}".rstrip() + "\n" for line in source.splitlines())
    return _HEAD + _body(TENSOR_MAPS) + _body(SHIPPED / "_launch.py") + _RUN.format(data=data) + _SOURCE + comment


def _body(path: Path) -> str:
    """A module's text without its docstring, and without what is written above or stands in the same file."""
    text = re.sub(r'\A""".*?"""\n', "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.sub(r"^from (__future__|\._tensor_map_bytes) import .*\n", "", text, flags=re.MULTILINE)
