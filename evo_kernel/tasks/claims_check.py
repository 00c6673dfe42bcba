"""What a task file states about itself (baselines, flops, bytes), held against its reference on the CPU."""

from __future__ import annotations

import torch
from torch.utils.flop_counter import FlopCounterMode

from evo_kernel.tasks.probe import Outputs, ProbeFinding
from evo_kernel.tasks.task import Task, describe
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
    found: list[ProbeFinding] = []

    def note(name: str, sentence: str) -> None:
        found.append(ProbeFinding(name, f"{task.path}: on case {case.name!r}, {sentence}"))

    inputs = task.inputs(case, torch.Generator("cpu").manual_seed(1), "cpu")
    with FlopCounterMode(display=False) as counter:
        outputs = task.outputs(*inputs)
    for name, baseline in task.baselines.items():
        try:
            with torch.no_grad():  # as it is timed
                made = baseline(*inputs)
        except Exception as error:  # noqa: BLE001 (a user's function, or a library's without a CPU version)
            why = f"the baseline {name!r} failed on the CPU: {describe(error)}. On a GPU it may run; look there."
            note("baseline-fails", why)
            continue
        if fault := _difference((made,) if isinstance(made, torch.Tensor) else tuple(made), outputs):
            note(
                "baseline-differs", f"the baseline {name!r} computes something else: {fault}. Mend it, or take it out."
            )
    # Only products and convolutions are counted: where there are none, nothing can be said.
    flops, counted = task.flops(case), counter.get_total_flops()
    if flops is not None and counted and not 1 / FLOPS_FACTOR <= flops / counted <= FLOPS_FACTOR:
        takes = f"the reference's products and convolutions take {counted:.4g}. Mend flops."
        note("flops", f"flops says {flops:.4g}, but {takes}")
    moved, whole = task.bytes(case), sum(v.nbytes for v in (*inputs, *outputs) if isinstance(v, torch.Tensor))
    if moved is not None and moved > whole:
        note(
            "bytes", f"bytes says {moved:.4g}, more than all inputs and outputs have, {whole}. Count each once at most."
        )
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
