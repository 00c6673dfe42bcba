"""What kind of fault an edit has: the category that a repair prompt names, from the judge's status and reason."""

from __future__ import annotations

import enum

from evo_kernel.types import Evaluation, Status


class EditFault(enum.StrEnum):
    """Why an edit did not stand."""

    FORMAT = "format"  # the answer is in no form that can be applied, or a block does not fit
    COMPILE = "compile"
    LOAD_STORE = "load-store"  # reads or writes the wrong memory, or leaves some unwritten
    CALCULATION = "calculation"  # computes something else
    LAUNCH = "launch"  # too much shared memory or registers, a wrong grid, a kernel that does not start
    RULE = "rule"  # breaks a rule of the task
    TIMEOUT = "timeout"
    MACHINE = "machine"  # not the kernel's: nothing to repair


_LAUNCH = (
    "out of resource", "out of shared memory", "shared memory", "too many resources", "out of memory", "more memory",
    "out of gpu memory",
    "grid", "num_warps", "registers per", "launch", "cooperative", "cluster",
)  # fmt: skip
_MEMORY = (
    "never written", "writes outside", "changes its input", "out of bounds", "out-of-bounds", "illegal address",
    "illegal memory", "misaligned", "segmentation", "outside a buffer", "reads outside", "nothing wrote",
)  # fmt: skip
_PYTHON = ("attributeerror", "typeerror", "nameerror", "unboundlocalerror")
"""What Python raises where text says something that has no meaning."""

ADVICE = {
    EditFault.FORMAT: "Mend the answer's form; the idea was not judged.",
    EditFault.COMPILE: "The module does not build. Look at types, shapes and names at the place that the message "
    "gives; block shapes are powers of two, and both branches of a value must have one type.",
    EditFault.LOAD_STORE: "An address or a mask is wrong. Check the bounds of every axis, strides against the argument "
    "they belong to, `other=` of masked loads, and that the grid covers all of the output.",
    EditFault.CALCULATION: "The result is wrong where memory seems right. Check the order of operations, initial "
    "values of accumulators and maxima, what masked lanes contribute, and the type in which sums are kept.",
    EditFault.LAUNCH: "The kernel compiles and does not start. Check grid, block sizes, stages and warps against "
    "shared memory and registers.",
    EditFault.RULE: "The task forbids this. Do it inside a kernel, without reading tensor values on the host.",
    EditFault.TIMEOUT: "It does not end in time. Check that every loop ends, and how much work one program does.",
    EditFault.MACHINE: "",
}


def fault_of(evaluation: Evaluation) -> EditFault | None:
    """The category of an evaluation that did not pass; None for one that did."""
    said = evaluation.reason.lower()
    match evaluation.status:
        case Status.PASSED | Status.REFUTED:
            return None
        case Status.BUILD_ERROR:
            return EditFault.LAUNCH if any(word in said for word in _LAUNCH[:4]) else EditFault.COMPILE
        case Status.WRONG:
            return EditFault.LOAD_STORE if any(word in said for word in _MEMORY) else EditFault.CALCULATION
        case Status.RUNTIME_ERROR:
            if any(f"{word}:" in said for word in _PYTHON):
                return EditFault.COMPILE
            if any(word in said for word in _MEMORY):
                return EditFault.LOAD_STORE
            return EditFault.LAUNCH if any(word in said for word in _LAUNCH) else EditFault.LOAD_STORE
        case Status.REJECTED:
            return EditFault.RULE
        case Status.TIMEOUT:
            return EditFault.TIMEOUT
        case _:
            return EditFault.MACHINE
