"""Converts compiled plans to an exported program: plain data in which only the addresses of buffers are open.

    {"target", "precision", "codes": [...], "cases": [{"name", "inputs", "buffers", "nodes", "outputs"}]}

`precision`: "ieee" or "tf32", what PyTorch's own operations on float32 may use.
`inputs`: the exact specifications of a case's inputs. A buffer is the number of an input, or [bytes, alignment]. A
launch names a code and holds its parameters: hex digits, [buffer, offset] for an address, or a tensor map with its
address. export/shipped/_launch.py runs the program; see docs/guides/export.md.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from evo_kernel.errors import PlanError
from evo_kernel.fitness.plan.launch_plan import Binary, CompiledPlan, Launch
from evo_kernel.fitness.record.recorder import RecordCase
from evo_kernel.fitness.runners.launch_limits import PlanFault, scratch_need
from evo_kernel.fitness.runners.parameters import GLOBAL_SCRATCH, Mapped, ParameterPlace, Slot, slots, tensor_map


def program(plans: Sequence[tuple[RecordCase, CompiledPlan]], precision: str) -> dict[str, Any]:
    """The program for plans of one source and one target, each with its case. Raises PlanError."""
    (target,) = {plan.plan.target for _, plan in plans}
    codes: dict[str, dict[str, Any]] = {}
    cases = [_case(case, plan, codes) for case, plan in plans]
    return {"target": target, "precision": precision, "codes": list(codes.values()), "cases": cases}


def _case(case: RecordCase, plan: CompiledPlan, codes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    buffers: list[Any] = [[buffer.bytes, 1] for buffer in plan.plan.buffers]
    for number, view in enumerate(plan.plan.inputs):
        if view is None:
            continue
        if view.offset or plan.plan.buffers[view.buffer].kind != "input" or not isinstance(buffers[view.buffer], list):
            raise PlanError(
                f"input {number} of the plan for {case.name} does not have its own buffer: it cannot be exported"
            )
        buffers[view.buffer] = number
    try:
        nodes = [
            _launch(node, plan, codes, buffers) if isinstance(node, Launch) else node.model_dump(mode="json")
            for node in plan.plan.nodes
        ]
    except PlanFault as fault:
        raise PlanError(f"the plan for {case.name} cannot be exported: {fault}") from fault
    return {
        "name": case.name,
        "inputs": [dict(spec) for spec in case.inputs],
        "buffers": buffers,
        "nodes": nodes,
        "outputs": [view.model_dump(mode="json") for view in plan.plan.outputs],
    }


def _launch(node: Launch, plan: CompiledPlan, codes: dict[str, dict[str, Any]], buffers: list[Any]) -> dict[str, Any]:
    kernel, binary = plan.plan.kernels[node.kernel], plan.binaries[node.kernel]
    codes.setdefault(binary.key, _code(binary, kernel.language))
    need = scratch_need(plan, node)
    scratch: list[str | list[int]] = []
    for size, align in ((need.global_bytes, need.global_align), (need.profile_bytes, need.profile_align)):
        if size:
            buffers.append([size, align])
        scratch.append([len(buffers) - 1, 0] if size else "00" * 8)
    return {
        "kind": "launch",
        "code": list(codes).index(binary.key),
        "grid": [node.grid[0] * binary.num_ctas, *node.grid[1:]],
        "block": list(node.block or (binary.threads, 1, 1)),
        "parameters": [_slot(slot, scratch) for slot in slots(kernel, binary, node)],
    }


def _slot(slot: Slot, scratch: Sequence[str | list[int]]) -> Any:
    if isinstance(slot, bytes):
        return slot.hex()
    if isinstance(slot, ParameterPlace):
        return scratch[GLOBAL_SCRATCH - slot.buffer] if slot.buffer < 0 else [slot.buffer, slot.offset]
    assert isinstance(slot, Mapped)
    descriptor = slot.descriptor
    mapped = tensor_map(descriptor, slot.meta, descriptor.offset)  # buffers are aligned more strictly than it needs
    return {"map": mapped._asdict(), "place": [descriptor.buffer, descriptor.offset]}


def _code(binary: Binary, language: str) -> dict[str, Any]:
    return {
        "symbol": binary.symbol,
        "language": language,
        "cubin": base64.b64encode(binary.cubin).decode(),
        "ir": binary.ir,
        "shared_bytes": binary.shared_bytes,
        "block_shared_bytes": binary.block_shared_bytes,
        "cluster": binary.num_ctas,
        "cooperative": binary.cooperative,
        "dependent": binary.dependent,
    }
