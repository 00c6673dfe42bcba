"""Roots of a search. The first kernel is the task's SEED, one written from its reference, or torch.compile's."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.compiled.child import compiled, compiled_baseline
from evo_kernel.tasks.task import Task, TensorSpec, describe
from evo_kernel.types import CaseKind, Source

if TYPE_CHECKING:
    from evo_kernel.tasks.lowering.product import Form

Wanted = Literal["auto", "template", "gluon", "compiled"]
"""How a first kernel is chosen: by `first_of`'s order, or this one whatever else there is."""
Origin = Literal["seed", "lowered", "template", "gluon", "compiled"]
_CONVOLVES = re.compile(r"(?<!depthwise_)convolution\w*_kernel\[")


@dataclass(frozen=True)
class First:
    """A first kernel, and where it comes from."""

    source: Source
    origin: Origin
    lowered: Source | None = None
    """What lowering writes, where that is not the first: a root beside it."""
    lowers_later: bool = False
    """Whether `lowered_beside` is still to be asked for that: of a network it takes seconds."""


def first_kernel(task: Task, wanted: Wanted = "auto") -> Source:
    """The source of `first_of`."""
    return first_of(task, wanted).source


def first_of(task: Task, wanted: Wanted = "auto") -> First:
    """The task's seed if it names one, else what lowering writes.

    Where lowering gives nothing, or leaves operations to PyTorch, torch.compile's kernels are tried, and taken where
    they leave fewer; and where the reference convolves, or is a network, and may do so by PyTorch, several times as
    fast as lowering's plain kernels. Raises LoweringError when neither knows the reference's operations.
    """
    if wanted == "compiled":
        return First(_launching(compiled(task)), "compiled")
    if wanted in ("template", "gluon"):
        from evo_kernel.tasks.lowering.product import product_template

        return First(product_template(task, "gluon" if wanted == "gluon" else "triton"), wanted)
    if task.seed is not None:
        return First(task.seed, "seed")
    libraries = task.allow == "mixed" and compiles(task)
    if libraries and _is_network(task):
        with contextlib.suppress(LoweringError):
            return First(_launching(compiled_baseline(task)), "compiled", lowers_later=True)
    try:
        lowered = _lowered(task)
    except LoweringError as unknown:
        try:
            return First(_launching(compiled(task, templates=True)), "compiled")
        except LoweringError as error:
            raise LoweringError(f"{unknown} torch.compile has none either: {error}") from error
    if left_to_torch(lowered):
        try:
            other = _launching(compiled(task, templates=True))
        except LoweringError:
            return First(lowered, "lowered")
        if len(left_to_torch(other)) < len(left_to_torch(lowered)):
            return First(other, "compiled")
    elif libraries and _CONVOLVES.search(lowered.text):
        with contextlib.suppress(LoweringError):
            return First(_launching(compiled_baseline(task)), "compiled", lowered)
    return First(lowered, "lowered")


def _is_network(task: Task) -> bool:
    from evo_kernel.tasks.lowering.lower import NETWORK

    return sum(isinstance(spec, TensorSpec) for spec in task.input_specs(task.cases[0])) >= NETWORK


def lowered_beside(task: Task, first: First) -> Source | None:
    """What lowering writes, as a root beside another first kernel. None where there is none."""
    if not first.lowers_later:
        return first.lowered
    with contextlib.suppress(LoweringError):  # an addition: nobody needs it
        return _lowered(task)
    return None


def _lowered(task: Task) -> Source:
    """What `lower` writes. Raises LoweringError, for a fault of lowering's own too: torch.compile's kernels remain."""
    from evo_kernel.tasks.lowering.lower import lower  # only here: a task with a seed need not pay for tracing

    try:
        return lower(task)
    except LoweringError:
        raise
    except Exception as error:
        raise LoweringError(f"Lowering fails on the reference: {describe(error)}.") from error


def beside_first(task: Task, first: First) -> Source | None:
    """torch.compile's kernels, the root beside another first kernel. None where there are none.

    As `torch.compile` runs them where it leaves nothing to libraries, or ALLOW lets it: that is the baseline too.
    """
    if first.origin == "compiled" or not compiles(task):
        return None
    with contextlib.suppress(LoweringError):  # an addition: nobody needs it
        usual = compiled_baseline(task)
        return _launching(usual if task.allow == "mixed" or not left_to_torch(usual) else compiled(task))
    return None


def _launching(source: Source) -> Source:
    """torch.compile's kernels. Raises LoweringError where it has none, but calls PyTorch: a judge refuses that."""
    if left_to_torch(source) and "@triton.jit" not in source.text:
        raise LoweringError("torch.compile has no kernel of its own for the reference: it calls PyTorch.")
    return source


def template_of(task: Task, form: Form = "triton") -> Source | None:
    """A kernel for Hopper where the reference is one product or convolution of 16 bits and what follows it; in Gluon
    also where it has large products or convolutions of float32.

    None for other references, and for what follows that `form` lacks.
    """
    dtypes = {"float16", "bfloat16", *(["float32"] if form == "gluon" else [])}
    case = next(case for case in task.cases if case.kind is CaseKind.SEARCH)
    tensors = [spec for spec in task.input_specs(case) if isinstance(spec, TensorSpec)]
    if sum(spec.dtype in dtypes and len(spec.shape) >= 2 for spec in tensors) < 2:
        return None  # it need not be traced
    from evo_kernel.tasks.lowering.product import product_template

    try:
        return product_template(task, form)
    except LoweringError:
        return None


def compiles(task: Task) -> bool:
    """Whether torch.compile is to be asked: a reference may say `compiled_baseline = False`."""
    return bool(getattr(task.reference_function, "compiled_baseline", True))


def left_to_torch(source: Source) -> list[str]:
    """The calls of aten in a first kernel, in the order of its text."""
    words = (word.split("(")[0] for line in source.text.splitlines() for word in line.split())
    return [word.removeprefix("torch.ops.aten.") for word in words if word.startswith("torch.ops.aten.")]
