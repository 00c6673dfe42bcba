"""Runs a plan's nodes on the CPU in order: its memory, launches and torch operations."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from evo_kernel.fitness.ir.execute import ExecutionFinding, Launched, unsupported
from evo_kernel.fitness.ir.memory import PADDING, DeviceBuffer, DeviceMemory
from evo_kernel.fitness.ir.module import IRModule
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.marks import any_of
from evo_kernel.fitness.plan.launch_plan import Aten, Constant, Copy, Fill, Launch, Plan, View
from evo_kernel.fitness.plan.torch_operations import addresses_of, arguments_of, results_of, table_of
from evo_kernel.tasks.layout import shares_memory, write


class CannotExecute(Exception):
    """Only a GPU can execute this plan; the message tells the user why."""


class TorchFault(Exception):
    """A torch operation of the plan fails; the message names it."""


_FREE_MEMORY = 16 << 30
FP_FUSION = os.environ.get("TRITON_DEFAULT_FP_FUSION", "1") == "1"
"""Whether Triton makes one operation of a product and a sum, where a kernel does not say."""


def modules_of(plan: Plan, texts: Sequence[str], ahead: Sequence[int] = ()) -> list[IRModule]:
    """The kernels of a plan, from the compiled IR; `ahead`: see IRModule. Raises CannotExecute, IRError."""
    modules = []
    for kernel, text, rounds in zip(plan.kernels, texts, ahead or [0] * len(texts), strict=True):
        if kernel.language == "cuda":
            raise CannotExecute(
                f"kernel {kernel.name} is written in CUDA C++, which only a GPU executes; a judge "
                "with one decides it (--device cuda), and `evo-kernel compile` tells here what its code needs and does"
            )
        fuses = bool(dict(kernel.options).get("enable_fp_fusion", FP_FUSION))
        module = replace(parse(text), fuses=fuses, ahead=0 if kernel.language == "gluon" else rounds)
        if unknown := unsupported(module):
            raise CannotExecute(f"kernel {kernel.name} uses {unknown}, which only a GPU executes (--device cuda)")
        modules.append(module)
    return modules


def memory_of(
    plan: Plan, contents: Mapping[int, torch.Tensor], used: Mapping[int, DeviceBuffer] = MappingProxyType({})
) -> DeviceMemory:
    """Buffers of a plan: those in `contents` (uint8, by number), and poison for the others.

    Inputs without content are zeros; bytes between their elements are undefined. `used`: inputs of an earlier memory,
    of which those are reused that were not stored to.
    """
    if sum(buffer.bytes for buffer in plan.buffers) > _FREE_MEMORY:
        raise CannotExecute("the plan needs more memory than there is without a GPU")
    memory = DeviceMemory()
    inputs = [view for view in plan.inputs if view is not None]
    gapped: dict[int, View] = {}
    for view in inputs:
        axes = [(size, step) for size, step in zip(view.shape, view.strides, strict=True) if step]
        distinct = math.prod(size for size, _ in axes)
        has_windows = bool(axes) and shares_memory(*zip(*axes, strict=True))
        if has_windows or distinct * view.item_bytes < plan.buffers[view.buffer].bytes:
            gapped[view.buffer] = view
    for number, buffer in enumerate(plan.buffers):
        if number in used:
            used[number].begin_launch(False)
            if not used[number].changed:
                memory.buffers.append(used[number])
                continue
        memory.add(buffer.bytes, defined=buffer.kind == "input" and number not in gapped, name=plan.buffer_name(number))
        if number in contents:
            memory.buffers[number].data.copy_(contents[number])
        elif buffer.kind == "input":
            memory.buffers[number].data.zero_()
        if number in gapped:
            _mark_defined(memory.buffers[number], gapped[number])
    return memory


def view_of(buffer: DeviceBuffer, view: View) -> torch.Tensor:
    """A view of the plan as a tensor that shares the buffer."""
    item = view.item_bytes
    flat = buffer.storage[: buffer.storage.numel() // item * item].view(getattr(torch, view.dtype))
    return flat.as_strided(view.shape, view.strides, PADDING // item + view.offset)


def undefined_of(buffer: DeviceBuffer, view: View) -> torch.Tensor | None:
    """Elements of a view that were never written or are undefined; None if there are none."""
    if buffer.defined is None:
        return None
    buffer.unit(view.item_bytes)
    undefined = ~elements_of(buffer.defined, buffer, view)
    return undefined if bool(any_of(undefined)) else None


def elements_of(marks: torch.Tensor, buffer: DeviceBuffer, view: View) -> torch.Tensor:
    """The marks of a view's elements, in its shape, from marks of shadow elements."""
    elements = shadow_of(marks, buffer, view)
    return elements.squeeze(-1) if elements.shape[-1] == 1 else elements.all(-1)


def shadow_of(marks: torch.Tensor, buffer: DeviceBuffer, view: View) -> torch.Tensor:
    """The shadow elements of a view; those of one element are the last axis."""
    unit = buffer.unit(1 << 30)
    strides = [stride * view.item_bytes // unit for stride in view.strides]
    start = (PADDING + view.offset * view.item_bytes) // unit
    return marks.as_strided([*view.shape, max(1, view.item_bytes // unit)], [*strides, 1], start)


def run_nodes(
    plan: Plan,
    memory: DeviceMemory,
    modules: Sequence[IRModule],
    run: Callable[[int, IRModule, Launch], Launched],
    sees: Callable[[int, Aten, Sequence[torch.Tensor]], None] = lambda *told: None,
) -> ExecutionFinding | None:
    """Run all nodes in order; `run` gets the number of a launch, its kernel and the launch. Returns what ended it
    early.

    `sees` gets the position of a torch operation, the operation and its tensors before it. Raises TorchFault, and what
    `run` raises.
    """
    number = 0
    for place, node in enumerate(plan.nodes):
        if isinstance(node, Launch):
            if (launched := run(number, modules[node.kernel], node)).finding is not None:
                return launched.finding
            number += 1
        elif isinstance(node, Fill):
            view_of(memory.buffers[node.view.buffer], node.view).fill_(node.value)
            _define(memory, node.view)
        elif isinstance(node, Copy):
            view_of(memory.buffers[node.target.buffer], node.target).copy_(
                view_of(memory.buffers[node.source.buffer], node.source)
            )
            _define(memory, node.target)
            if (marks := undefined_of(memory.buffers[node.source.buffer], node.source)) is not None:
                _undefine(memory.buffers[node.target.buffer], node.target, marks)
        elif isinstance(node, Constant):
            table = table_of(node, lambda one: DeviceMemory.address(one.target, one.offset))
            view_of(memory.buffers[node.view.buffer], node.view).copy_(table)
            _define(memory, node.view)
        else:
            sees(place, node, [view_of(memory.buffers[view.buffer], view) for view in node.views])
            _replay(node, memory)
        if isinstance(node, (Fill, Constant)) and node.view.buffer in plan.addressed:
            mark_addresses(memory.buffers[node.view.buffer], node, plan.addressed[node.view.buffer])
    return None


def mark_addresses(buffer: DeviceBuffer, node: Fill | Constant, targets: frozenset[int]) -> None:
    """Record where the elements that a node writes are addresses, in the buffers `targets`."""
    if buffer.words is None:
        buffer.words = torch.zeros(buffer.storage.numel() // 8, dtype=torch.bool)
    marks = addresses_of(node) if isinstance(node, Constant) else torch.zeros((), dtype=torch.bool)
    buffer.words.as_strided(node.view.shape, node.view.strides, PADDING // 8 + node.view.offset).copy_(marks)
    buffer.targets = targets


def _define(memory: DeviceMemory, view: View) -> None:
    """Mark the elements of a view as written."""
    memory.buffers[view.buffer].changed = True
    _mark_defined(memory.buffers[view.buffer], view)


def _mark_defined(buffer: DeviceBuffer, view: View) -> None:
    if buffer.defined is None:
        return
    low, high = view.span()
    if view.elements * view.item_bytes == high - low and not shares_memory(view.shape, view.strides):
        buffer.define(low, high - low)
        return
    buffer.unit(view.item_bytes)
    write(shadow_of(buffer.defined, buffer, view), torch.ones((), dtype=torch.bool))


def _undefine(buffer: DeviceBuffer, view: View, marks: torch.Tensor) -> None:
    """Mark elements of a view as undefined."""
    unit = buffer.unit(view.item_bytes)
    if buffer.defined is None:
        buffer.defined = torch.ones(-(-buffer.storage.numel() // unit), dtype=torch.bool)
    shadow_of(buffer.defined, buffer, view).logical_and_(~marks.unsqueeze(-1))


def _replay(node: Aten, memory: DeviceMemory) -> None:
    """Run a torch operation, which the task allows, and copy its results to the plan's views.

    If it reads undefined elements it runs again, with zeros there and with random bits: what differs then of results,
    and of arguments that it changes, is undefined.
    """
    tensors = [view_of(memory.buffers[view.buffer], view) for view in node.views]
    marks = [undefined_of(memory.buffers[view.buffer], view) for view in node.views] if memory.strict else []
    again: list[tuple[Sequence[torch.Tensor], Sequence[Any]]] = []  # arguments, and results
    for view in node.views:
        memory.buffers[view.buffer].changed = True  # any operation may write to its arguments
    for other in (torch.zeros_like, _random) if any(mark is not None for mark in marks) else ():
        pairs = zip(tensors, marks, strict=True)
        changed = [t.clone() if mark is None else torch.where(mark, other(t), t) for t, mark in pairs]
        with contextlib.suppress(TorchFault):  # random numbers are no indices
            again.append((changed, _results(node, changed)))
    for number, (result_tensor, output_view) in enumerate(zip(_results(node, tensors), node.outputs, strict=True)):
        if output_view is None or not isinstance(result_tensor, torch.Tensor):
            continue
        place = view_of(memory.buffers[output_view.buffer], output_view)
        if result_tensor.shape != place.shape:  # embedding_bag's tables for the backward pass are smaller on a CPU
            _undefine(memory.buffers[output_view.buffer], output_view, torch.ones_like(place, dtype=torch.bool))
            continue
        if place.data_ptr() != result_tensor.data_ptr() or place.stride() != result_tensor.stride():
            place.copy_(result_tensor)
        _define(memory, output_view)
        if again:
            _, name, overload = node.op.split(".")
            compared = marks[: -1 if overload.endswith("out") else None] if name.rstrip("_") in _COMPARISONS else []
            differs = _differs(result_tensor, [results[number] for _, results in again])
            for mark in (one for one in compared if one is not None):
                differs = differs | mark.expand_as(differs)
            _undefine(memory.buffers[output_view.buffer], output_view, differs)
    if again and _changes_arguments(node):
        for number, (view, mark) in enumerate(zip(node.views, marks, strict=True)):
            if mark is not None:
                differs = _differs(tensors[number], [changed[number] for changed, _ in again])
                _define(memory, view)
                _undefine(memory.buffers[view.buffer], view, differs)


_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
"""Operations that may give the same for all numbers but one."""


def _random(tensor: torch.Tensor) -> torch.Tensor:
    """Random bits as values in the shape of a tensor."""
    generator = torch.Generator()
    generator.seed()
    count = tensor.numel() * tensor.element_size()
    drawn = torch.randint(256, (count,), dtype=torch.uint8, generator=generator)
    return (drawn & 1 if tensor.dtype is torch.bool else drawn).view(tensor.dtype).reshape(tensor.shape)


def _differs(values: torch.Tensor, others: Sequence[torch.Tensor]) -> torch.Tensor:
    """Where bits of one of the others differ."""
    found = [(_bytes(values) != _bytes(other)).any(-1).reshape(values.shape) for other in others]
    return torch.stack(found).any(0)


def _changes_arguments(node: Aten) -> bool:
    """Whether an operation changes arguments and returns none of them, as `_foreach_copy_` does."""
    _, name, overload = node.op.split(".")
    schema = getattr(getattr(torch.ops.aten, name), overload)._schema
    return schema.is_mutable and not schema.returns


def _bytes(values: torch.Tensor) -> torch.Tensor:
    """Elements as rows of their bytes."""
    return values.contiguous().reshape(-1).view(torch.uint8).reshape(-1, values.element_size())


def _results(node: Aten, tensors: Sequence[torch.Tensor]) -> Sequence[Any]:
    """The operation's results for these tensors in place of its views. Raises TorchFault."""
    if _reach_outside(node, tensors):
        raise TorchFault(f"{node.op} fails: its indices are outside its tensor")
    try:
        return results_of(node, tensors, "cpu")
    except RuntimeError as error:
        raise TorchFault(f"{node.op} fails: {str(error).splitlines()[0]}") from error


_POOLS = {
    "adaptive_max_pool2d_backward": 2, "adaptive_max_pool3d_backward": 3,
    "max_pool2d_with_indices_backward": 2, "max_pool3d_with_indices_backward": 3,
}  # fmt: skip
"""By operation, axes of a picture."""


def _reach_outside(node: Aten, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether an operation accesses memory outside its tensors: torch does not look at these indices."""
    _, name, overload = node.op.split(".")
    if name not in _POOLS and name != "segment_reduce":
        return False
    args, named = arguments_of(node, tensors, "cpu")
    schema = getattr(getattr(torch.ops.aten, name), overload)._schema
    given = {**dict(zip((one.name for one in schema.arguments), args, strict=False)), **named}
    if name in _POOLS:
        indices, most = given["indices"], math.prod(given["self"].shape[-_POOLS[name] :]) - 1
    elif (lengths := given.get("lengths")) is not None:
        indices, most = torch.cat([lengths, lengths.cumsum(-1)], -1), given["data"].shape[lengths.dim() - 1]
    else:
        indices = given["offsets"]
        most = given["data"].shape[indices.dim() - 1]
    return bool(((indices < 0) | (indices > most)).any())


def changed_input(
    plan: Plan, memory: DeviceMemory, contents: Mapping[int, torch.Tensor], among: Container[int]
) -> int | None:
    """The number of the first input `among` some that differs from its given content, or None."""
    for number, view in enumerate(plan.inputs):
        if number in among and view is not None and view.buffer in contents:
            buffer = memory.buffers[view.buffer]
            buffer.begin_launch(False)
            if buffer.changed and not torch.equal(buffer.data, contents[view.buffer]):
                return number
    return None
