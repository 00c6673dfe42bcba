"""The coder that is a language model: any strategy that can be put into words, edit by edit, each one probed.

It is offered what may apply by syntax alone. `guides/` holds how each strategy is carried out, with a worked example.
With `Prompts(hierarchy=False)` it offers one strategy, to do as it sees fit: the control without macro thinking.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Brief, Source, Strategy, TaskCard
from operators.llm.base import Model
from operators.macro import catalogue
from operators.macro.catalogue import CATALOGUE
from operators.micro.coder import Coded, Coder, Job
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule, SourceError
from operators.micro.rewrites.arithmetic import exact_dots
from operators.micro.rewrites.base import kernel_region, kernels_of
from operators.micro.session import CoderSession, Opening, SessionLimits
from operators.micro.syntax import called
from operators.prompts.parts import Part, first_lines
from operators.prompts.writer import Prompts, looked_up, shown, user


@cache
def guides() -> dict[str, str]:
    """Strategy name → how it is carried out, with a worked example of our own."""
    texts = sorted(Path(__file__).with_name("guides").glob("*.md"))
    return {path.stem: path.read_text(encoding="utf-8") for path in texts}


Mask = Callable[[SourceKernel], bool]
REDUCTIONS = ("tl.sum", "tl.max", "tl.min", "tl.argmax", "tl.argmin", "tl.reduce")
DESCRIPTORS = ("tl.make_tensor_descriptor", "tl.make_block_ptr")


def applicable(source: Source, task: TaskCard) -> tuple[Strategy, ...]:
    """Every strategy of the catalogue at every kernel whose mask lets it through; nothing in what is no module.

    Sources with no Triton kernel to read (Gluon, CUDA) are offered each strategy once, for the whole source.
    """
    try:
        module = KernelModule.parse(source.text)
    except SourceError:
        return ()
    launched = [kernel for name, kernel in module.kernels.items() if module.launches_of(name)]
    if not launched or source.language != "triton":
        return tuple(Strategy(spec.name, spec.family) for spec in CATALOGUE.values() if spec.name != "stop")
    floats = {dtype for case in task.cases for dtype, _shape, _strides in case.inputs if "float" in dtype}
    exact = task.precision == "ieee" and floats <= {"float32", "float64"}  # the contract leaves no cheaper precision
    order = list(dict.fromkeys(launch.kernel for launch in module.launches))
    follows = dict(pairwise(order))
    precedes = {after: kernel for kernel, after in follows.items()}
    found: list[Strategy] = []
    for name, mask in MASKS.items():
        for kernel in launched:
            region: tuple[str, ...] = (kernel.name,)
            if name == "fuse-producer":  # kernels that are launched one after the other; this one stays
                region = (precedes[kernel.name], kernel.name) if kernel.name in precedes else ()
            elif name == "fuse-consumer":
                region = (kernel.name, follows[kernel.name]) if kernel.name in follows else ()
            elif not mask(kernel) or (name == "input-precision" and exact and not exact_dots(kernel)):
                region = ()
            found += [Strategy(name, CATALOGUE[name].family, kernel_region(*region))] if region else []
    return tuple(found)


def _dots(kernel: SourceKernel) -> bool:
    return bool(kernel.calls("tl.dot"))


def _reduces(kernel: SourceKernel) -> bool:
    return bool(kernel.calls(*REDUCTIONS))


def _passes(kernel: SourceKernel) -> int:
    """The most loops that read one tensor."""
    loops: dict[str, set[int]] = {}
    for access in kernel.accesses:
        if access.kind == "load" and access.loops and access.base:
            loops.setdefault(access.base, set()).add(id(access.loops[-1]))
    return max((len(found) for found in loops.values()), default=0)


def _axes(kernel: SourceKernel) -> int:
    return len({ast.dump(call) for call in kernel.calls("tl.program_id")})


MASKS: Mapping[str, Mask] = MappingProxyType({
    "one-pass-row": lambda kernel: _reduces(kernel) and bool(kernel.loops) and not _dots(kernel),
    "multi-pass-row": lambda kernel: _reduces(kernel) and not kernel.loops,
    "online-row": lambda kernel: _reduces(kernel) and _passes(kernel) > 1,
    "rows-per-program": lambda kernel: _axes(kernel) >= 1 and not _dots(kernel),
    "tile-2d": lambda kernel: _axes(kernel) == 1,
    "split-k": lambda kernel: _dots(kernel) and bool(kernel.loops),
    "swizzle": lambda kernel: _dots(kernel) or _axes(kernel) > 1,
    "hoist": lambda kernel: bool(kernel.loops),
    "persistent": lambda kernel: _axes(kernel) >= 1 and not kernel.calls("tl.num_programs"),
    "launch-options": lambda kernel: True,
    "drop-masks": lambda kernel: any(access.mask is not None for access in kernel.accesses),
    "cache-hints": lambda kernel: any(access.kind == "load" for access in kernel.accesses),
    "tensor-descriptor": lambda kernel: bool(kernel.accesses) and not kernel.calls("tl.make_tensor_descriptor"),
    "software-pipeline": lambda kernel: any(access.loops and access.kind == "load" for access in kernel.accesses)
    or (bool(kernel.loops) and bool(kernel.calls(*DESCRIPTORS))),
    "causal-skip": lambda kernel: _dots(kernel)
    and any(called(part) == "tl.where" for loop in kernel.loops for part in ast.walk(loop.node)),
    "exp2": lambda kernel: bool(kernel.calls("tl.exp", "tl.math.exp")),
    "accumulate-type": lambda kernel: _dots(kernel) or (_reduces(kernel) and bool(kernel.loops)),
    "input-precision": _dots,
    "fuse-producer": lambda kernel: True,
    "fuse-consumer": lambda kernel: True,
})  # fmt: skip


CODER, ALONE = ("answer", "coder"), ("answer", "alone")
"""The documents that tell a model what a coder does: with a strategy, and with none."""

TRIES = 2  # of one strategy on one parent
AGAIN = 1 << 30  # tries where the only offer is to do as one sees fit: no reason to do so once only


class LlmCoder:
    """Offers what the masks let through, and carries out whatever is asked, free strategies too. Thread-safe."""

    def __init__(self, model: Model, prompts: Prompts | None = None, limits: SessionLimits | None = None) -> None:
        self._model, self._prompts, self._limits = model, prompts or Prompts(), limits or SessionLimits()
        self.free = self._prompts.hierarchy
        self.tries = TRIES if self.free else AGAIN

    def offer(self, source: Source, task: TaskCard) -> tuple[Strategy, ...]:
        return applicable(source, task) if self._prompts.hierarchy else (catalogue.UNGUIDED,)

    def carry_out(self, job: Job) -> Coded:
        def opening(source: Source) -> Opening:
            return self.opening(job.brief, source, job.strategy)

        known = job.brief.known_sources
        return CoderSession(self._model, opening, job.source, job.probe, self._limits, known).work()

    def opening(self, brief: Brief, source: Source, strategy: Strategy) -> Opening:
        prompts, keep = self._prompts, kernels_of(strategy)
        if not prompts.hierarchy:
            parts = [*prompts.remembered(), *prompts.situation(brief, source, query=looked_up(brief))]
            messages = (prompts.system(brief.task, brief.environment, *ALONE), user(parts))
            return Opening(messages, shown(source.text, prompts.budgets.source)[1])
        described, guide = catalogue.description(strategy), guides().get(strategy.name, "")
        parts = [
            Part("Guide to the strategy", first_lines(guide, prompts.budgets.guide)),
            *prompts.situation(brief, source, keep, f"{strategy.name} {described} {brief.task.name}"),
            Part("The strategy to carry out", strategy_text(strategy, described)),
        ]
        messages = (prompts.system(brief.task, brief.environment, *CODER), user(parts))
        return Opening(messages, shown(source.text, prompts.budgets.source, keep)[1])


class CombinedCoder:
    """The first coder carries out what it offers; what it cannot, or has tried before, goes to the second. Thread-safe.

    Made for the rewriter before a language model: exact and free where it applies.
    """

    def __init__(self, first: Coder, second: Coder) -> None:
        self._first, self._second = first, second
        self.free, self.tries = second.free, max(first.tries, second.tries)

    def offer(self, source: Source, task: TaskCard) -> tuple[Strategy, ...]:
        """The first one's offers, then the second's for which the first has none at that kernel."""
        first = self._first.offer(source, task)
        places = {_place(strategy) for strategy in first}
        return (*first, *(s for s in self._second.offer(source, task) if _place(s) not in places))

    def carry_out(self, job: Job) -> Coded:
        again = sum(entry.strategy.key == job.strategy.key for entry in job.brief.tried) >= self._first.tries
        if not again and job.strategy in self._first.offer(job.source, job.brief.task):
            try:
                return self._first.carry_out(job)
            except OperatorFailed:
                pass  # it says what did not fit; the second may see a way
        return self._second.carry_out(job)


def strategy_text(strategy: Strategy, described: str) -> str:
    lines = [f"**{strategy.name}** ({strategy.family}): {described.rstrip('.')}."]
    lines += [f"Where: {strategy.region}."] if strategy.region else []
    lines += [f"{name}: {value}" for name, value in strategy.parameters if name != catalogue.DESCRIPTION]
    spec = catalogue.CATALOGUE.get(strategy.name)
    lines += [f"Sign in the compiled plan: {spec.sign}."] if spec else []
    return "\n".join(lines)


def _place(strategy: Strategy) -> tuple[str, tuple[str, ...]]:
    return strategy.name, kernels_of(strategy)
