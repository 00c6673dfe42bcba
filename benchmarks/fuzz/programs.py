"""What a generated program is: its text, its launch, and how exact its outputs are."""

from __future__ import annotations

from dataclasses import dataclass, field

from benchmarks.fuzz.values import Recipe

ENTRY = "kernel"
VERSION = 4  # of the generator: the same seed makes the same program for the same version
Argument = int | float | tuple[int, int]  # a number, or (buffer, byte offset)


@dataclass(frozen=True)
class Output:
    """A buffer that the program writes, and how far two right results may lie apart: `absolute + relative * |x|`."""

    buffer: int
    relative: float = 0.0
    absolute: float = 0.0


@dataclass(frozen=True)
class Program:
    """One kernel with one launch. `undefined` names what is undefined in it, and must be found."""

    seed: int
    source: str
    signature: tuple[tuple[str, str], ...]  # parameters and kinds, as Triton's signature
    options: dict[str, int | bool]
    grid: tuple[int, int, int]
    buffers: tuple[Recipe, ...]
    args: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    operations: tuple[str, ...] = field(default=())
    undefined: str = ""


@dataclass(frozen=True)
class Compiled:
    """A program's IR (without locations) and its code."""

    ir: str
    cubin: bytes
    symbol: str
    threads: int
    shared_bytes: int
    scratch_bytes: int  # global scratch of one program
