"""The interpreter's child: executes a plan on the CPU, or samples its memory traffic.

Request: {"command": "execute", "plan"} with `bufferN.bin` for every input, answered by {"buffers": {N: base64}}; or
{"command": "traffic", "plan"}, answered by {"traffic": [...]}; or {"command": "look", "plan", "seed"} with inputs,
answered by {"look": {...}}. A kernel's fault is {"fault": {status, reason}}.
"""

from __future__ import annotations

import base64
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from evo_kernel.fitness import interpret
from evo_kernel.fitness.emulation import KernelFault, NotInterpretable
from evo_kernel.fitness.plan import Plan

POISON = 0xFF


def warm_up() -> None:
    """In the zygote: one small launch, so that a child finds the interpreter's lazy parts loaded."""
    torch.zeros(4).sum()


def handle(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Serve one request. What the kernel does wrong is an answer."""
    plan = Plan.model_validate(request["plan"])
    try:
        if request["command"] == "traffic":
            from evo_kernel.fitness import traffic

            return {"traffic": [asdict(launch) for launch in traffic.sample_traffic(plan, Path(folder))]}
        if request["command"] == "look":
            from evo_kernel.fitness import looking

            named = {index: Path(folder) / f"buffer{index}.bin" for index in range(len(plan.buffers))}
            inputs = {index: path for index, path in named.items() if path.exists()}
            return {"look": looking.look(plan, inputs, Path(folder), request["seed"])}
        return {"buffers": _execute(plan, Path(folder))}
    except KernelFault as fault:
        return {"fault": {"status": "runtime_error", "reason": str(fault)}}
    except NotInterpretable as gap:
        reason = f"it cannot be checked without a GPU: {gap}"
        return {"fault": {"status": "rejected", "reason": reason}}


def _execute(plan: Plan, folder: Path) -> dict[int, str]:
    buffers = []
    for index, buffer in enumerate(plan.buffers):
        path = folder / f"buffer{index}.bin"
        if path.exists():
            buffers.append(torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8))
        else:
            buffers.append(torch.full((buffer.bytes,), POISON, dtype=torch.uint8))
    interpret.execute(plan, buffers, folder)
    wanted = {view.buffer for view in (*plan.outputs, *(v for v in plan.inputs if v is not None))}
    return {index: base64.b64encode(buffers[index].numpy().tobytes()).decode() for index in sorted(wanted)}
