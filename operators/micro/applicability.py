"""Where a strategy may apply, by syntax alone: what a coder that writes code itself can be asked for."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from types import MappingProxyType

from evo_kernel.types import Source, Strategy, TaskCard
from operators.macro.catalogue import CATALOGUE
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule, SourceError
from operators.micro.rewrites.arithmetic import exact_dots
from operators.micro.rewrites.base import kernel_region
from operators.micro.syntax import called

Mask = Callable[[SourceKernel, KernelModule], bool]
REDUCTIONS = ("tl.sum", "tl.max", "tl.min", "tl.argmax", "tl.argmin", "tl.reduce")
DESCRIPTORS = ("tl.make_tensor_descriptor", "tl.make_block_ptr")


def applicable(source: Source, task: TaskCard) -> tuple[Strategy, ...]:
    """Every strategy of the catalogue at every kernel whose mask lets it through; nothing in what is no module.

    Sources with no Triton kernel to read (Gluon, CUDA) are offered each strategy once, for the whole source.
    """
    try:
        module = KernelModule.parse(source.text)
    except SourceError:
        return ()
    launched = [kernel for name, kernel in module.kernels.items() if module.launches_of(name)]
    if not launched or source.language != "triton":
        return tuple(Strategy(spec.name, spec.family) for spec in CATALOGUE.values() if spec.name != "stop")
    return tuple(
        strategy
        for name, mask in MASKS.items()
        for kernel in launched
        for strategy in _offers(name, mask, kernel, module, task)
    )


def _offers(name: str, mask: Mask, kernel: SourceKernel, module: KernelModule, task: TaskCard) -> list[Strategy]:
    family = CATALOGUE[name].family
    if name == "input-precision" and task.precision == "ieee" and _all_fp32(task) and not exact_dots(kernel):
        return []  # the contract leaves no cheaper precision
    if name in ("fuse-producer", "fuse-consumer"):
        pairs = _neighbours(kernel.name, module, before=name == "fuse-producer")
        return [Strategy(name, family, kernel_region(*pair)) for pair in pairs]
    return [Strategy(name, family, kernel_region(kernel.name))] if mask(kernel, module) else []


def _neighbours(name: str, module: KernelModule, before: bool) -> list[tuple[str, str]]:
    """(producer, consumer) of kernels that are launched one after the other, this one being the one that stays."""
    order = list(dict.fromkeys(launch.kernel for launch in module.launches))
    at = order.index(name)
    if before:
        return [(order[at - 1], name)] if at > 0 else []
    return [(name, order[at + 1])] if at + 1 < len(order) else []


def _all_fp32(task: TaskCard) -> bool:
    kinds = {dtype for case in task.cases for dtype, _shape, _strides in case.inputs if "float" in dtype}
    return kinds <= {"float32", "float64"}


def _dots(kernel: SourceKernel, module: KernelModule) -> bool:
    return bool(kernel.calls("tl.dot"))


def _loads_in_loop(kernel: SourceKernel, module: KernelModule) -> bool:
    return any(access.loops and access.kind == "load" for access in kernel.accesses) or (
        bool(kernel.loops) and bool(kernel.calls(*DESCRIPTORS))
    )


def _reduces(kernel: SourceKernel) -> bool:
    return bool(kernel.calls(*REDUCTIONS))


def _passes(kernel: SourceKernel) -> int:
    """The most loops that read one tensor."""
    loops: dict[str, set[int]] = {}
    for access in kernel.accesses:
        if access.kind == "load" and access.loops and access.base:
            loops.setdefault(access.base, set()).add(id(access.loops[-1]))
    return max((len(found) for found in loops.values()), default=0)


def _axes(kernel: SourceKernel) -> int:
    return len({ast.dump(call) for call in kernel.calls("tl.program_id")})


def _compares_in_loop(kernel: SourceKernel, module: KernelModule) -> bool:
    masks = [call for loop in kernel.loops for call in ast.walk(loop.node) if isinstance(call, ast.Call)]
    return _dots(kernel, module) and any(called(call) == "tl.where" for call in masks)


MASKS: Mapping[str, Mask] = MappingProxyType({
    "one-pass-row": lambda kernel, module: _reduces(kernel) and bool(kernel.loops) and not _dots(kernel, module),
    "multi-pass-row": lambda kernel, module: _reduces(kernel) and not kernel.loops,
    "online-row": lambda kernel, module: _reduces(kernel) and _passes(kernel) > 1,
    "rows-per-program": lambda kernel, module: _axes(kernel) >= 1 and not _dots(kernel, module),
    "tile-2d": lambda kernel, module: _axes(kernel) == 1,
    "split-k": lambda kernel, module: _dots(kernel, module) and bool(kernel.loops),
    "swizzle": lambda kernel, module: _dots(kernel, module) or _axes(kernel) > 1,
    "hoist": lambda kernel, module: bool(kernel.loops),
    "persistent": lambda kernel, module: _axes(kernel) >= 1 and not kernel.calls("tl.num_programs"),
    "drop-masks": lambda kernel, module: any(access.mask is not None for access in kernel.accesses),
    "cache-hints": lambda kernel, module: any(access.kind == "load" for access in kernel.accesses),
    "tensor-descriptor": lambda kernel, module: bool(kernel.accesses) and not kernel.calls("tl.make_tensor_descriptor"),
    "software-pipeline": _loads_in_loop,
    "causal-skip": _compares_in_loop,
    "exp2": lambda kernel, module: bool(kernel.calls("tl.exp", "tl.math.exp")),
    "accumulate-type": lambda kernel, module: _dots(kernel, module) or (_reduces(kernel) and bool(kernel.loops)),
    "input-precision": _dots,
    "fuse-producer": lambda kernel, module: True,
    "fuse-consumer": lambda kernel, module: True,
})  # fmt: skip
