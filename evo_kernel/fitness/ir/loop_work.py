"""What an iteration of each loop of a kernel's IR takes, read off its text: what never runs counts as what does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping

from evo_kernel.fitness.ir.counting import FREE, product_of
from evo_kernel.fitness.ir.loops import loops_of
from evo_kernel.fitness.ir.module import IRBlock, IRModule, Operation
from evo_kernel.fitness.ir.types import Type

_LOADS = {"tt.load", "tt.descriptor_load", "tt.descriptor_gather"}
_STORES = {"tt.store", "tt.descriptor_store"}
_DOTS = {"tt.dot", "tt.dot_scaled"}
_KINDS = {"load": _LOADS, "store": _STORES, "tensor": _DOTS}
_PURE = frozenset(
    FREE | {f"tt.{name}" for name in (
        "addptr", "cat", "clampf", "fp_to_fp", "int_to_ptr", "join", "mulhiui", "precise_divf", "precise_sqrt",
        "ptr_to_int", "reduce", "reduce.return", "return", "scan", "scan.return", "split", "unsplat",
    )}
) - _LOADS - {"tt.call"}  # fmt: skip
_COMBINING = {"tt.reduce", "tt.scan"}
_UNCOUNTED = {"arith.select", "arith.negf", "math.absf"}  # by modifiers of operands, or moves
_INTEGERS = {"arith.fptosi": 1, "arith.fptoui": 1} | dict.fromkeys(
    ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.ceildivsi", "arith.floordivsi"), 4
)
"""Floating-point operations of what gives integers: a division makes a quotient of floats first."""
_TAKES = {
    "math.fma": 2, "tt.clampf": 2, "arith.divf": 5, "tt.precise_divf": 11, "arith.remf": 30, "tt.precise_sqrt": 7,
    "math.exp": 4, "math.log": 28, "math.log2": 30, "math.sin": 30, "math.cos": 30, "math.erf": 26,
    "tt.extern_elementwise": 70,
}  # fmt: skip
"""Of what takes more than one, the most seen in code for sm_90, a fused multiplication and addition as two."""
_OF_DOUBLES = 4  # times as many, where it takes more than one


def loop_work(module: IRModule, threads: int) -> dict[str, dict[str, float]]:
    """By the loops' names, of a thread and one iteration: `load_bytes`, `arithmetic` operations, and `all` results.

    Each thread holds an element of a tensor that has fewer than `threads`, and every scalar. Raises IRError.
    """
    around = loops_of(module).around
    combined = {
        inner.ordinal
        for operation in module.operations() if operation.name in _COMBINING
        for region in operation.regions for block in region.blocks for inner in block.operations
    }  # fmt: skip
    found: dict[str, Counter[str]] = {}
    for operation in module.operations():
        if operation.ordinal in around and operation.ordinal not in combined:
            found.setdefault(around[operation.ordinal], Counter()).update(_work(operation, threads))
    return {name: dict(work) for name, work in found.items()}


def loop_kinds(module: IRModule) -> dict[str, tuple[str, ...]]:
    """By the loops' names: "load", "store" and "tensor", if the code of a loop and of loops in it may hold any.

    Only of loops that share no code with others. The compiler may make one loop of nested ones that are flattened, of
    those in branches that exclude each other, and of those in functions: these are missing.
    """
    begins = loops_of(module).begins
    found: dict[str, tuple[str, ...]] = {}

    def walk(block: IRBlock) -> None:
        for operation in block.operations:
            if operation.name in ("scf.for", "scf.while"):
                found[begins[operation.ordinal]] = tuple(sorted(_kinds(operation)))
                for region in operation.regions:
                    walk(region.blocks[0])

    if len(module.entry.body.blocks) == 1 and not any("tt.flatten" in o.attributes for o in module.operations()):
        walk(module.entry.body.blocks[0])
    return found


def _kinds(loop: Operation) -> frozenset[str]:
    """What is not known to have no effect may become anything."""
    names = {inner.name for region in loop.regions for inner in region.walk()} - _PURE
    names = {name for name in names if not name.startswith(("arith.", "math.", "scf.", "cf."))}
    if names - _LOADS - _STORES - _DOTS:
        return frozenset(_KINDS)
    return frozenset(kind for kind, made in _KINDS.items() if names & made)


def _work(operation: Operation, threads: int) -> Mapping[str, float]:
    name = operation.name
    if not operation.results:
        return {}
    result = operation.results[0].type
    each = max(1.0, result.elements / threads)
    if name in _LOADS:
        return {"load_bytes": each * result.item_bytes}
    if name in _DOTS:
        return {"arithmetic": product_of(operation)[1] / threads}
    if name in _COMBINING:
        return _combined(operation, each, threads)
    if name in FREE:
        return {}
    shifted = name == "arith.extf" and operation.types and operation.types[0].element == "bf16"
    return {"all": each, "arithmetic": 0.0 if shifted else each * _takes(name, result)}


def _combined(operation: Operation, each: float, threads: int) -> Mapping[str, float]:
    """A reduction in threads, warps and blocks; a scan goes through all of them for every few elements."""
    inner = [one for region in operation.regions for block in region.blocks for one in block.operations if one.results]
    takes = sum(_takes(one.name, one.results[0].type) for one in inner)
    elements = max(1.0, max((kind.elements for kind in operation.types), default=1) / threads)
    times = 10 * (elements + 1) if operation.name == "tt.scan" else elements + each * math.log2(max(2, threads))
    return {"all": elements, "arithmetic": takes * times}


def _takes(name: str, result: Type) -> float:
    if name in _INTEGERS or not result.is_float or name in _UNCOUNTED:
        return _INTEGERS.get(name, 0)
    takes = _TAKES.get(name, 1)
    return takes * (_OF_DOUBLES if result.element == "f64" and takes > 1 else 1)
