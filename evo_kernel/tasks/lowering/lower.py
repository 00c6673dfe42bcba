"""`lower(task)`: the way from a task to the text of its first kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.lowering import (  # noqa: F401  imported for what they register
    activations,
    contraction,
    convolution,
    indexing,
    pointwise,
    pooling,
    recurrent,
    reduction,
    views,
)
from evo_kernel.tasks.lowering.frames import covers_storage
from evo_kernel.tasks.lowering.fusion import is_tensor, regions, unfused
from evo_kernel.tasks.lowering.layout import LoweredValue
from evo_kernel.tasks.lowering.module import LoweredModule, Maker, render
from evo_kernel.tasks.lowering.pointwise import PointwiseJob, write
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowering_of
from evo_kernel.tasks.lowering.trace import TooLarge, Traced, trace
from evo_kernel.tasks.task import Task, functional, without_data
from evo_kernel.types import Source

MOST_S = 10.0
"""Of processor time to write kernels for one reference."""
MOST_CHARACTERS = 400_000
"""Of what is written."""
_OWN = 'Give the task a first kernel: SEED = "kernel.py".'
NETWORK = 40
"""Tensors among the inputs from which on a reference is a network, whose many sizes take minutes as symbols."""


def lower(task: Task, products: Mapping[str, Maker] = {}) -> Source:
    """A first kernel for `task`, written from its reference.

    One naive Triton kernel per operation; the same module serves all cases (sizes are read from the inputs).
    `products`: how functions are made that multiply large matrices of float32, and that convolve, in place of such
    kernels.

    Raises LoweringError where nothing calls them, and, naming every operation that has no lowering, unless the task
    allows aten calls (`ALLOW = "mixed"`).
    """
    cases = [[without_data(spec) for spec in task.input_specs(case)] for case in task.cases]
    text = lower_function(
        functional(task.reference_function, task.mutates),
        cases,
        name=task.name,
        allow_aten=task.allow == "mixed",
        precision=task.tolerance.precision,
        products=products,
        exact=task.is_imported and _tensors(cases[0]) >= NETWORK,
    )
    return Source(text)


def lower_function(
    reference: Callable[..., Any],
    cases: Sequence[Sequence[Any]],
    *,
    name: str = "",
    allow_aten: bool = False,
    precision: str = "ieee",
    products: Mapping[str, Maker] = {},
    exact: bool = False,
) -> str:
    """The text of a module that computes `reference` for inputs like each of `cases` (tensors, meta ones welcome).

    `exact`: sizes are numbers, and every case has a branch; it takes a fraction of the time.
    """
    modules, functions, templates = [], dict[str, str](), dict[tuple[Any, ...], str]()
    began = time.thread_time()

    def check() -> None:
        if time.thread_time() - began > MOST_S:
            raise TooLarge(f"Writing kernels for the reference takes more than {MOST_S:g} s. {_OWN}")

    def traced_for(first: Sequence[Any], fixed: frozenset[tuple[int, int]]) -> tuple[Traced]:
        fixed = all_sizes(first) if exact else fixed
        return (trace(reference, first, fixed, check=check, simplify=True),)

    for (traced,), served in branches(sorted(cases, key=ones), traced_for):
        module = LoweredModule(traced, served, precision, products)
        module.functions, module.templates = functions, templates
        _write_graph(module, allow_aten, check)
        modules.append((module, served))
    if products and not templates:
        raise LoweringError("The reference has no large product or convolution of float32.")
    label = name or getattr(reference, "__name__", "reference")
    title = f"First kernels of {label}, one an operation, written from its reference."
    text = render(title, modules, list(functions.values()))
    if len(text) > MOST_CHARACTERS:
        raise TooLarge(f"Kernels for the reference have {len(text):,} characters, over {MOST_CHARACTERS:,}. {_OWN}")
    return text


def branches(
    cases: Sequence[Sequence[Any]], make: Callable[[Sequence[Any], frozenset[tuple[int, int]]], tuple[Any, ...]]
) -> Iterator[tuple[tuple[Any, ...], list[Sequence[Any]]]]:
    """As few traces as cover all cases, most often one, each with the cases that it serves.

    `make`: a trace and what comes with it, from inputs and their `fixed_sizes`. Begin with the most general shapes.
    """
    waiting = list(cases)
    while waiting:
        made = make(waiting[0], fixed_sizes(waiting[0], cases))
        served = [waiting[0], *(case for case in waiting[1:] if made[0].covers(case))]
        waiting = [case for case in waiting if not any(case is other for other in served)]
        yield made, served


def fixed_sizes(first: Sequence[Any], cases: Sequence[Sequence[Any]]) -> frozenset[tuple[int, int]]:
    """Sizes (argument, dimension) of a network's tensors that all cases like the first share.

    As numbers they cost no algebra, and kernels read strides that are one for what they are.
    """

    def ranks_of(case: Sequence[Any]) -> list[int]:
        return [value.dim() if isinstance(value, torch.Tensor) else -1 for value in case]

    ranks = ranks_of(first)
    if _tensors(first) < NETWORK:
        return frozenset()
    alike = [case for case in cases if ranks_of(case) == ranks]
    return frozenset(
        (index, dim)
        for index, rank in enumerate(ranks)
        for dim in range(rank)
        if all(case[index].shape[dim] == first[index].shape[dim] for case in alike)
    )


def _tensors(case: Sequence[Any]) -> int:
    return sum(isinstance(value, torch.Tensor) for value in case)


def all_sizes(case: Sequence[Any]) -> frozenset[tuple[int, int]]:
    """Every size (argument, dimension) of a case's tensors."""
    tensors = [(index, value) for index, value in enumerate(case) if isinstance(value, torch.Tensor)]
    return frozenset((index, dim) for index, value in tensors for dim in range(value.dim()))


def ones(case: Sequence[Any]) -> int:
    """How many sizes of one (or none) a case has: those hide what a dimension means."""
    return sum(size <= 1 for value in case if isinstance(value, torch.Tensor) for size in value.shape)


def _write_graph(module: LoweredModule, allow_aten: bool, check: Callable[[], None]) -> None:
    values: dict[fx.Node, Any] = {}
    arguments = iter(module.traced.tensors.items())
    failures: dict[str, str] = {}
    fused = regions(module)
    inside = {node for region in fused.values() for node in region[:-1]}
    for node in module.traced.graph.graph.nodes:
        check()
        if node in inside:
            continue
        if node.op == "placeholder":
            name, fake = next(arguments)
            values[node] = LoweredValue.of(name, fake)
        elif node.op == "get_attr":
            values[node] = indexing.constant(module, node, getattr(module.traced.graph, node.target))
        elif node.op == "output":
            if not failures:
                _write_outputs(module, [(item, values.get(item)) for item in node.args[0]])
        elif is_tensor(node) or (node.args and isinstance(values.get(node.args[0]), tuple)):  # or an item of several
            for one in unfused(module, fused.get(node, [node]), values):
                _write_node(module, one, values, failures, allow_aten)
    if failures:
        raise LoweringError(_sentence(failures))


def _write_node(
    module: LoweredModule, node: fx.Node, values: dict[fx.Node, Any], failures: dict[str, str], allow_aten: bool
) -> None:
    """Lower one node, note why it cannot be, or leave it as a call of aten where that is allowed."""
    parents = [parent for parent in node.all_input_nodes if is_tensor(parent)]
    if any(parent not in values for parent in parents):
        if lowering_of(node.target) is None and isinstance(node.target, torch._ops.OpOverload):
            failures.setdefault(str(node.target), "")
        return  # an operand is already known to be missing
    if not isinstance(node.target, torch._ops.OpOverload):  # getitem
        source, item = cast(tuple[fx.Node, int], node.args[:2])
        values[node] = values[source][item]
        return
    lowering = lowering_of(node.target)
    mark = len(module.lines)
    try:
        if lowering is None:
            raise NotLowered("")
        values[node] = lowering(module, AtenNode(node, values, module.fresh(node.name.strip("_"))))
    except NotLowered as reason:
        del module.lines[mark:]
        if allow_aten:
            values[node] = indexing.aten_call(module, AtenNode(node, values, module.fresh(node.name.strip("_"))))
        else:
            failures.setdefault(str(node.target), str(reason))


def _sentence(failures: dict[str, str]) -> str:
    named = [f"{name} ({reason})" if reason else name for name, reason in failures.items()]
    has = "has" if len(named) == 1 else "have"
    return (
        f"The reference uses {', '.join(named)}, which {has} no lowering yet. Give the task a first kernel of your own "
        '(SEED = "kernel.py", a Triton module with run(*inputs)), or set ALLOW = "mixed" to keep such operations as '
        "PyTorch calls."
    )


def _write_outputs(module: LoweredModule, outputs: Sequence[tuple[Any, Any]]) -> None:
    """Return fresh, fully written tensors: what is an input, a part of a buffer or a constant is copied."""
    names: list[str] = []
    inputs = _aliases(module)
    for node, found in outputs:
        if not isinstance(found, LoweredValue):
            raise LoweringError(
                "The reference returns something that is no tensor. Return one tensor or a tuple of them."
            )
        value = views.materialise(module, found)
        if found.fill is None and (node in inputs or value.name in names or not covers_storage(value)):
            wrapper = AtenNode(node, {}, module.fresh(f"{value.name}_copy"))
            value = write(module, wrapper, PointwiseJob("copy", (value,), (value.dtype,), ("{0}",)))
        names.append(value.name)
    cut = len(names) - len(module.traced.changed)
    for argument, name in zip(module.traced.changed, names[cut:], strict=True):
        module.line(f"{argument}.copy_({name})")
    module.line(f"return {', '.join(names[:cut])}".rstrip())


def _aliases(module: LoweredModule) -> set[fx.Node]:
    """Nodes whose memory is not their own to give away: inputs, views of inputs, parts of buffers."""
    found: set[fx.Node] = set()
    for node in module.traced.graph.graph.nodes:
        lowering = lowering_of(node.target) if node.op == "call_function" else None
        if lowering is not None:
            view = lowering.__module__ == views.__name__
        else:
            view = node.op == "call_function" and not isinstance(node.target, torch._ops.OpOverload)  # getitem
        if node.op == "placeholder" or (view and any(parent in found for parent in node.all_input_nodes)):
            found.add(node)
    return found
