"""Stored cases against the executor: equal outputs, up to each output's bound, and no finding in a right program."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.fuzz.stored import Case
from benchmarks.fuzz.values import TYPES, decode
from evo_kernel.fitness.ir.engine import OutOfTime
from evo_kernel.fitness.ir.execute import launch
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.ir.types import IRError
from evo_kernel.fitness.plan.launch_plan import Pointer, Scalar

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Verdict:
    """What came of one case: 'same', 'differs', 'refused' (the executor names what it cannot), 'finding', 'missed' (an
    undefined program without a finding) or 'crash' (the executor raised what it must not)."""

    seed: int
    kind: str
    detail: str = ""


def executed(case: Case) -> tuple[list[bytes], str]:
    """Contents of the outputs by the executor, and its finding, empty if none. Raises IRError."""
    module = replace(parse(case.ir), fuses=False)  # programs that a GPU may fuse have bounds for it
    memory = DeviceMemory()
    for recipe in case.buffers:
        content = recipe.bytes()
        defined = recipe.kind != "unwritten"
        number = memory.add(len(content), defined=defined)
        if defined:
            memory.buffers[number].data.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    args = [
        Pointer(buffer=arg[0], offset=arg[1]) if isinstance(arg, tuple) else Scalar(type=kind, value=arg)
        for kind, arg in zip(case.kinds, case.args, strict=True)
    ]
    done = launch(module, case.grid, args, memory, deadline=time.monotonic() + DEADLINE_S)
    buffers = [memory.buffers[output.buffer] for output in case.outputs]
    finding = done.finding.sentence if done.finding else ""
    for output, buffer in zip(case.outputs, buffers, strict=True):
        defined = buffer.defined_bytes()
        if defined is not None and not bool(defined.all()):
            finding = finding or f"output {output.buffer} holds undefined values"
    return [buffer.data.numpy().tobytes() for buffer in buffers], finding


def judged(case: Case) -> Verdict:
    """One case. A fault of the executor is a verdict: the others are still looked at."""
    try:
        outputs, finding = executed(case)
    except IRError as error:
        return Verdict(case.seed, "refused", str(error))
    except OutOfTime:
        return Verdict(case.seed, "crash", "out of time")
    except Exception as error:  # noqa: BLE001
        return Verdict(case.seed, "crash", f"{type(error).__name__}: {error}")
    if case.undefined:
        return Verdict(case.seed, "same" if finding else "missed", finding or case.undefined)
    if finding:
        return Verdict(case.seed, "finding", finding)
    for output, mine, theirs in zip(case.outputs, outputs, case.results, strict=False):
        recipe = case.buffers[output.buffer]
        problem = difference(recipe.type, mine, theirs, output.relative, output.absolute)
        if problem:
            return Verdict(case.seed, "differs", f"output {output.buffer}: {problem}")
    return Verdict(case.seed, "same")


def difference(type: str, mine: bytes, theirs: bytes, relative: float, absolute: float) -> str:
    """The first element that differs beyond the bound, in words; empty if none does. NaN equals NaN, -0 equals 0."""
    if mine == theirs:
        return ""
    kind = TYPES[type]
    ours, right = decode(kind, mine), decode(kind, theirs)
    if kind.kind in "iub":
        wrong = ours != right
    else:
        with np.errstate(invalid="ignore", over="ignore"):
            near = np.abs(ours - right) <= absolute + relative * np.abs(right)
            top = kind.largest * (1 - max(relative, kind.eps))
            border = (relative > 0) & (np.minimum(np.abs(ours), np.abs(right)) >= top) & (ours * right > 0)
        wrong = ~((ours == right) | (np.isnan(ours) & np.isnan(right)) | near | border)
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong))
    bound = f" (bound {absolute:.3g} + {relative:.3g} |x|)" if relative or absolute else ""
    return f"{int(wrong.sum())} of {len(ours)} {type}, element {at}: {ours[at]!r}, on the GPU {right[at]!r}{bound}"
