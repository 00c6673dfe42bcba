"""What `run` would launch for a case, read off its text: sizes, grids and branches, without running anything.

An answer is a hint for what is worth offering, never a proof of correctness.

From the sizes also follows what a fusion saves by removing a buffer.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from evo_kernel.types import CaseCard, CaseKind, Evaluation, Source, Strategy, TaskCard
from operators.micro.host_values import Callee, Evaluator, HostTensor, Value
from operators.micro.kernels import SourceKernel, SourceLaunch
from operators.micro.module import KernelModule, SourceError


@dataclass(frozen=True)
class HostLaunch:
    """One launch of one case: parameter → value (None: unknown)."""

    launch: SourceLaunch
    case: CaseCard
    grid: tuple[Value, ...]
    values: dict[str, Value] = field(default_factory=dict)


def launches_for(module: KernelModule, task: TaskCard, kernel: SourceKernel | None = None) -> list[HostLaunch]:
    """Every launch (of one kernel, if given) of every case that the card shows, in order."""
    found = [one for launches, _ in _evaluated(module, task) for one in launches]
    return [one for one in found if kernel is None or one.launch.kernel == kernel.name]


@lru_cache(maxsize=64)
def _evaluated(module: KernelModule, task: TaskCard) -> list[tuple[list[HostLaunch], set[ast.AST]]]:
    """The launches of each case, and the functions that were walked. Kept: every rewrite asks for them."""
    return [_walked(module, case) for case in task.cases]


def _walked(module: KernelModule, case: CaseCard) -> tuple[list[HostLaunch], set[ast.AST]]:
    launches = {id(launch.statement): launch for launch in module.launches}
    found = list[HostLaunch]()

    def notice(statement: ast.stmt, host: Evaluator) -> None:
        launch = launches.get(id(statement))
        if launch is not None:
            grid = tuple(map(host.value, launch.grid))
            found.append(HostLaunch(launch, case, grid, {n: host.value(e) for n, e in launch.arguments.items()}))

    host = Evaluator(module.tree, notice)
    tensors = [HostTensor(*card) for card in case.inputs]
    spec = module.run.args
    fits = len(spec.args) == len(tensors) or spec.vararg is not None
    host.call(Callee(module.run, {}), tensors if fits else [], {})
    return found, host.entered


def live_kernels(module: KernelModule, task: TaskCard) -> list[SourceKernel]:
    """The kernels that some case launches, as far as can be told: rewriting another one changes no plan."""
    walked = _evaluated(module, task)
    seen = {one.launch.kernel for launches, _ in walked for one in launches}
    entered = {node for _, nodes in walked for node in nodes}
    open_ones = {one.kernel for one in module.reached if module.host_of(one.call).node not in entered}
    return [k for name, k in module.kernels.items() if name in seen | open_ones]


BYTES_PER_US = 4.2e6
"""Memory bandwidth of an H200 (measured copy). Other GPUs differ; the ranking of fusions hardly does."""
LAUNCH_US = 2.0
MOST = 0.8
"""A fusion is not expected to save a larger share of the time than this."""


def fused_through(strategy: Strategy) -> str:
    """The buffer that a fusion removes, or the tensor that it reads once for two; empty for other strategies."""
    parameters = dict(strategy.parameters)
    return str(parameters.get("buffer", parameters.get("shared", "")))


def fusion_gains(
    source: Source, task: TaskCard, parent: Evaluation | None, offered: Collection[Strategy]
) -> dict[str, float]:
    """Natural log of the expected gain by key, of each offered fusion whose buffer has a known size on a timed case.

    With t the parent's time on a case and b the buffer's bytes: log(t / (t - 2 b / bandwidth - launch)), averaged over
    the search cases; b, not 2 b, for a tensor that is only read once less. 0 where a contraction would compute what it
    loads again for every tile.
    """
    wanted = {s.key: through for s in offered if (through := fused_through(s))}
    times = {m.case: m.median_us for m in parent.measurements} if parent is not None else {}
    if not wanted or not times:
        return {}
    try:
        module = KernelModule.parse(source.text)
        found: dict[tuple[str, str], int] = {}
        for one in launches_for(module, task):
            if one.case.kind is not CaseKind.SEARCH:
                continue
            for parameter, argument in one.launch.arguments.items():
                tensor, root = one.values.get(parameter), module.root_of(argument)
                if root in wanted.values() and isinstance(tensor, HostTensor) and None not in tensor.shape:
                    kind = tensor.dtype.removeprefix("torch.").replace("bfloat16", "float16")
                    item = 1 if kind.startswith("float8") else np.dtype(kind).itemsize
                    size = math.prod(size for size in tensor.shape if size is not None) * item
                    found[one.case.name, str(root)] = max(size, found.get((one.case.name, str(root)), 0))
    except SourceError:
        return {}
    gains: dict[str, float] = {}
    for one in offered:
        if (tensor := wanted.get(one.key)) is None:
            continue
        kernel = module.kernels.get(one.region.split(" -> ")[-1])
        if one.name == "fuse-producer" and kernel is not None and kernel.calls("tl.dot"):
            gains[one.key] = 0.0
            continue
        moves = 2 if "buffer" in dict(one.parameters) else 1
        shares = [
            min(MOST, (moves * found[case, tensor] / BYTES_PER_US + LAUNCH_US) / us)
            for case, us in times.items()
            if (case, tensor) in found
        ]
        if shares:
            gains[one.key] = -sum(math.log1p(-share) for share in shares) / len(shares)
    return gains
