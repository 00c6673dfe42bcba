"""Is what a task file states about its own computation right? Baselines, flops and bytes, held against its reference.

A baseline that computes something else makes every score meaningless, and flops or bytes that are off make shares of
the speed of light so. All is looked at on one check case, on the CPU; vendors' kernels are their CPU versions there.
"""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from evo_kernel.tasks.probe import Outputs, ProbeFinding
from evo_kernel.tasks.task import Input, Task, describe
from evo_kernel.types import CaseKind

DIFFERS = 0.05
"""A baseline whose relative Frobenius distance from the reference is above this computes something else: rounding in
bfloat16 along another path stays below a fifth of it."""
FLOPS_FACTOR = 8.0
"""How far stated flops may be from those of the products and convolutions that the reference runs: a causal mask halves
them, and a reference may compute what a kernel need not."""


def examine(task: Task) -> list[ProbeFinding]:
    """What is wrong with what the file states; empty when nothing is. Raises TaskError when its functions fail."""
    case = max(task.cases_of(CaseKind.CHECK), key=task.elements)
    inputs = task.inputs(case, torch.Generator("cpu").manual_seed(1), "cpu")
    with FlopCounterMode(display=False) as counter:
        outputs = task.outputs(*inputs)
    where = f"{task.path}: on case {case.name!r}, "
    return [
        *_baselines(task, inputs, outputs, where),
        *_flops(task.flops(case), counter.get_total_flops(), where),
        *_bytes(task.bytes(case), inputs, outputs, where),
    ]


def _baselines(task: Task, inputs: tuple[Input, ...], outputs: Outputs, where: str) -> list[ProbeFinding]:
    found = []
    for name, baseline in task.baselines.items():
        try:
            with torch.no_grad():  # as it is timed
                made = baseline(*inputs)
        except Exception as error:  # noqa: BLE001 (a user's function, or a library's without a CPU version)
            sentence = f"the baseline {name!r} failed on the CPU: {describe(error)}. On a GPU it may run; look there."
            found.append(ProbeFinding("baseline-fails", where + sentence))
            continue
        parts = (made,) if isinstance(made, torch.Tensor) else tuple(made)
        fault = _difference(parts, outputs)
        if fault:
            sentence = f"the baseline {name!r} computes something else: {fault}. Mend it, or take it out."
            found.append(ProbeFinding("baseline-differs", where + sentence))
    return found


def _difference(parts: Outputs, outputs: Outputs) -> str:
    """How a baseline's outputs differ from the reference's; an empty string where they do not."""
    if len(parts) != len(outputs):
        return f"{len(parts)} outputs, not {len(outputs)}"
    for position, (got, wanted) in enumerate(zip(parts, outputs, strict=True)):
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            return f"output {position} is {got.dtype} {tuple(got.shape)}, not {wanted.dtype} {tuple(wanted.shape)}"
        off = float((got.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))
        if not off <= DIFFERS:
            return f"output {position} is {off:.2g} of its norm away"
    return ""


def _flops(stated: float | None, counted: float, where: str) -> list[ProbeFinding]:
    """Only products and convolutions are counted: where there are none, nothing can be said."""
    if stated is None or not counted or 1 / FLOPS_FACTOR <= stated / counted <= FLOPS_FACTOR:
        return []
    sentence = f"flops says {stated:.4g}, but the reference's products and convolutions take {counted:.4g}. Mend flops."
    return [ProbeFinding("flops", where + sentence)]


def _bytes(stated: float | None, inputs: tuple[Input, ...], outputs: Outputs, where: str) -> list[ProbeFinding]:
    tensors = (*(value for value in inputs if isinstance(value, torch.Tensor)), *outputs)
    whole = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if stated is None or stated <= whole:
        return []
    sentence = (
        f"bytes says {stated:.4g}, more than all inputs and outputs have, {whole}. Count each of them once at most."
    )
    return [ProbeFinding("bytes", where + sentence)]
