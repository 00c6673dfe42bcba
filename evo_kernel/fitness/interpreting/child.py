"""The interpreter's child: executes a plan on the CPU, or samples its memory traffic.

Request {"command": "execute", "plan", "rounds": N, "deadline_s"} with `roundR.bufferB.bin` for every input buffer of
every round; answered by {"rounds": [{"outputs": {B: base64}, "inputs": {B: sha256}} | {"fault"}, ...]}, which ends with
the first fault. Every round has memory of its own, poisoned anew, and loads the kernels' text again.
Request {"command": "traffic", "plan"} with `bufferB.bin` for inputs whose values decide addresses; answered by
{"traffic": [...]}, or {"fault"}. Request {"command": "look", "plan", "seed"} with `bufferB.bin` for every input,
answered by {"look": {...}}, or {"fault"}. A kernel's fault is {"status", "reason", "of_text"?}.
"""

from __future__ import annotations

import base64
import gc
import hashlib
import os
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evo_kernel.fitness.interpreting import TOO_LATE, interpret, looking, sampling
from evo_kernel.fitness.interpreting.emulation import KernelFault, NotInterpretable
from evo_kernel.fitness.plan import Plan

POISON = 0xFF


def warm_up() -> None:
    """In the zygote: nothing but imports."""
    gc.collect()
    gc.freeze()  # a collection in the child would touch, and so copy, every page of the zygote


def handle(request: dict[str, Any], folder: str) -> dict[str, Any]:
    """Serve one request. What the kernel does wrong is an answer."""
    plan, place = Plan.model_validate(request["plan"]), Path(folder)
    if request["command"] == "execute":
        return {"rounds": _rounds(plan, place, int(request["rounds"]), float(request["deadline_s"]))}
    if request["command"] == "look":
        return _looked(plan, place, int(request["seed"]))
    contents = {index: data for index in range(len(plan.buffers)) if (data := _read(place / f"buffer{index}.bin"))}
    try:
        return {"traffic": [asdict(launch) for launch in sampling.sample_traffic(plan, place, _tensors(contents))]}
    except (KernelFault, NotInterpretable) as fault:
        return {"fault": _said(fault)}


def _looked(plan: Plan, folder: Path, seed: int) -> dict[str, Any]:
    named = {index: folder / f"buffer{index}.bin" for index in range(len(plan.buffers))}
    try:
        return {"look": looking.look(plan, {i: path for i, path in named.items() if path.exists()}, folder, seed)}
    except (KernelFault, NotInterpretable) as fault:
        return {"fault": _said(fault)}


def _rounds(plan: Plan, folder: Path, count: int, deadline_s: float) -> list[dict[str, Any]]:
    signal.signal(signal.SIGALRM, lambda *_: os._exit(TOO_LATE))
    answers: list[dict[str, Any]] = []
    for number in range(count):
        signal.setitimer(signal.ITIMER_REAL, deadline_s)
        inputs = {view.buffer: _read(folder / f"round{number}.buffer{view.buffer}.bin") for view in plan.inputs if view}
        try:
            answers.append(_run(plan, inputs, folder))
        except (KernelFault, NotInterpretable) as fault:
            return [*answers, {"fault": _said(fault)}]
    signal.setitimer(signal.ITIMER_REAL, 0)
    return answers


def _run(plan: Plan, inputs: dict[int, bytes], folder: Path) -> dict[str, Any]:
    """One execution over fresh memory."""
    buffers = [torch.full((buffer.bytes,), POISON, dtype=torch.uint8) for buffer in plan.buffers]
    for index, data in _tensors(inputs).items():
        buffers[index][: data.numel()].copy_(data)
    interpret.execute(plan, buffers, folder)
    outputs = {view.buffer: base64.b64encode(_bytes(buffers[view.buffer])).decode() for view in plan.outputs}
    return {
        "outputs": outputs,
        "inputs": {index: hashlib.sha256(_bytes(buffers[index])).hexdigest() for index in inputs},
    }


def _said(fault: KernelFault | NotInterpretable) -> dict[str, Any]:
    if isinstance(fault, KernelFault):
        return {"status": "runtime_error", "reason": str(fault), "of_text": fault.of_text}
    return {"status": "rejected", "reason": f"it cannot be checked without a GPU: {fault}"}


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _tensors(contents: dict[int, bytes]) -> dict[int, torch.Tensor]:
    return {index: torch.from_numpy(np.frombuffer(bytearray(data), dtype=np.uint8)) for index, data in contents.items()}


def _bytes(buffer: torch.Tensor) -> bytes:
    return buffer.numpy().tobytes()
