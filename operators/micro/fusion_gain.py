"""What a fusion saves by removing a buffer: a launch, and the time to write the buffer and read it again."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from evo_kernel.types import CaseKind, Evaluation, Source, Strategy, TaskCard
from operators.micro.host_code import HostTensor, launches_for
from operators.micro.module import KernelModule, SourceError

BYTES_PER_US = 4.2e6
"""Memory bandwidth of an H200 (measured copy). Other GPUs differ; the ranking of fusions hardly does."""
LAUNCH_US = 2.0
MOST = 0.8
"""A fusion is not expected to save a larger share of the time than this."""


def fusion_gains(
    source: Source, task: TaskCard, parent: Evaluation | None, offered: Iterable[Strategy]
) -> dict[str, float]:
    """Natural log of the expected gain by key, of each offered fusion whose buffer has a known size on a timed case.

    With t the parent's time on a case and b the buffer's bytes: log(t / (t - 2 b / bandwidth - launch)), averaged over
    the search cases.
    """
    wanted = {s.key: str(dict(s.parameters)["buffer"]) for s in offered if "buffer" in dict(s.parameters)}
    times = {m.case: m.median_us for m in parent.measurements} if parent is not None else {}
    if not wanted or not times:
        return {}
    try:
        sizes = _buffer_bytes(KernelModule.parse(source.text), task)
    except SourceError:
        return {}
    gains: dict[str, float] = {}
    for key, buffer in wanted.items():
        shares = [
            min(MOST, (2 * sizes[case, buffer] / BYTES_PER_US + LAUNCH_US) / us)
            for case, us in times.items()
            if (case, buffer) in sizes
        ]
        if shares:
            gains[key] = -sum(math.log1p(-share) for share in shares) / len(shares)
    return gains


def _buffer_bytes(module: KernelModule, task: TaskCard) -> dict[tuple[str, str], int]:
    """(search case, buffer) → bytes, where all sizes are known."""
    found: dict[tuple[str, str], int] = {}
    for one in launches_for(module, task):
        if one.case.kind is not CaseKind.SEARCH:
            continue
        for parameter, argument in one.launch.arguments.items():
            tensor, root = one.values.get(parameter), module.root_of(argument)
            if root in module.buffers and isinstance(tensor, HostTensor) and None not in tensor.shape:
                size = math.prod(size for size in tensor.shape if size is not None) * _item_bytes(tensor.dtype)
                found[one.case.name, str(root)] = max(size, found.get((one.case.name, str(root)), 0))
    return found


def _item_bytes(dtype: str) -> int:
    name = dtype.removeprefix("torch.").replace("bfloat16", "float16")
    return 1 if name.startswith("float8") else np.dtype(name).itemsize
