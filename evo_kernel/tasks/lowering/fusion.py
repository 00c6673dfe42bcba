"""Which pointwise operations a template computes with the product or convolution that they follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from evo_kernel.tasks.lowering import activations, contraction, convolution, pointwise, views
from evo_kernel.tasks.lowering.module import LoweredModule
from evo_kernel.tasks.lowering.registry import AtenNode, Lowering, NotLowered, lowering_of

FUSING: dict[Lowering, str] = {
    convolution.convolution: "cut",
    contraction.mm: "product",
    contraction.addmm: "product",
}
"""What may be computed with what follows it, and by which of a module's templates."""
POINTWISE = (pointwise.__name__, activations.__name__)
SHOWN = (views.alias, views.view)


def is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor | tuple | list)


def regions(module: LoweredModule) -> dict[fx.Node, list[fx.Node]]:
    """Products and convolutions with what follows, by the last node of each: it alone is used elsewhere."""
    nodes = list(module.traced.graph.graph.nodes)
    found: dict[fx.Node, list[fx.Node]] = {}
    taken: set[fx.Node] = set()
    for place, node in enumerate(nodes):
        if FUSING.get(_lowering(node)) in module.products:  # type: ignore[arg-type]
            region = [one for one in _following(nodes[place:]) if one not in taken]
            region = next(_closed(region))
            found[region[-1]] = region
            taken.update(region)
    return found


def _lowering(node: fx.Node) -> Lowering | None:
    return lowering_of(node.target) if node.op == "call_function" else None


def _following(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """The first node and all that is computed from it point by point."""
    found, members = [nodes[0]], {nodes[0]}
    for node in nodes[1:]:
        lowering = _lowering(node)
        if lowering is None or not is_tensor(node) or members.isdisjoint(node.all_input_nodes):
            continue
        if lowering in SHOWN or lowering.__module__ in POINTWISE:
            found.append(node)
            members.add(node)
    return found


def _closed(region: Sequence[fx.Node]) -> Iterator[list[fx.Node]]:
    """Its beginnings of which only the last node, which is no view, is used elsewhere; the longest first."""
    for end in range(len(region), 0, -1):
        users = (user for node in region[: end - 1] for user in node.users if user.op == "output" or is_tensor(user))
        if (end == 1 or _lowering(region[end - 1]) not in SHOWN) and {*region[:end]}.issuperset(users):
            yield list(region[:end])


def unfused(module: LoweredModule, region: Sequence[fx.Node], values: dict[fx.Node, Any]) -> Sequence[fx.Node]:
    """Write the first node with as much of what follows as its template can compute; what is left of the region."""
    known = {*values, *region}
    if any(is_tensor(one) and one not in known for node in region for one in node.all_input_nodes):
        return region  # one is already known to be missing
    lowering = lowering_of(region[0].target)
    for fused in _closed(region):
        if lowering is None or len(fused) == 1:
            break
        mark, taken = len(module.lines), set(module.taken)
        module.following = fused[1:]
        try:
            node = AtenNode(region[0], values, module.fresh(fused[-1].name.strip("_")))
            values[fused[-1]] = lowering(module, node)
            return region[len(fused) :]
        except NotLowered:
            del module.lines[mark:]
            module.taken = taken
        finally:
            module.following = ()
    return region
