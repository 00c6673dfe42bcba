"""Cases in a file: IR, launch, recipes of buffers, what a GPU computed. One JSON object a line, compressed by xz."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.fuzz.programs import VERSION, Argument, Compiled, Output, Program
from benchmarks.fuzz.values import Recipe


@dataclass(frozen=True)
class Case:
    """A program as compiled: what the executor and a GPU need. `results`: contents of the outputs on a GPU."""

    seed: int
    version: int
    triton: str
    ir: str
    kinds: tuple[str, ...]
    grid: tuple[int, int, int]
    buffers: tuple[Recipe, ...]
    args: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    operations: tuple[str, ...]
    undefined: str = ""
    results: tuple[bytes, ...] = ()
    code: Compiled | None = None  # not kept in files


def case_of(program: Program, code: Compiled, triton: str) -> Case:
    return Case(
        program.seed, VERSION, triton, code.ir, tuple(kind for _, kind in program.signature), program.grid,
        program.buffers, program.args, program.outputs, program.operations, program.undefined, (),
        replace(code, ir="") if code.cubin else None,
    )  # fmt: skip


def write(path: Path, cases: Iterable[Case], preset: int = 6) -> None:
    """A file of cases, whole or not at all."""
    part = path.with_name(path.name + ".part")
    with lzma.open(part, "wt", preset=preset) as file:
        for case in cases:
            file.write(json.dumps(_plain(case)) + "\n")
    part.rename(path)


def read(path: Path) -> Iterator[Case]:
    with lzma.open(path, "rt") as file:
        for line in file:
            yield _case(json.loads(line))


def _plain(case: Case) -> dict[str, Any]:
    plain = asdict(replace(case, code=None))
    plain["buffers"] = [list(asdict(recipe).values()) for recipe in case.buffers]
    plain["outputs"] = [list(asdict(output).values()) for output in case.outputs]
    plain["results"] = [base64.b64encode(result).decode() for result in case.results]
    return plain


def _case(plain: dict[str, Any]) -> Case:
    return Case(
        **{
            **plain,
            "kinds": tuple(plain["kinds"]),
            "grid": tuple(plain["grid"]),
            "buffers": tuple(Recipe(*values) for values in plain["buffers"]),
            "args": tuple(tuple(arg) if isinstance(arg, list) else arg for arg in plain["args"]),
            "outputs": tuple(Output(*values) for values in plain["outputs"]),
            "operations": tuple(plain["operations"]),
            "results": tuple(base64.b64decode(result) for result in plain["results"]),
        }
    )
