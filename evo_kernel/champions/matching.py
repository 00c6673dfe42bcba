"""Which champion computes what a task asks for, and its source with the task's order of inputs.

Two references are the same function if they agree on a drawn check case: a traced graph would tell spellings apart
(a mask by `tril`, `where` or `is_causal`) that compute the same. It is a proposal: the judge decides on the kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from evo_kernel.champions import Champion, champions
from evo_kernel.errors import TaskError
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.packaged import packaged_source
from evo_kernel.tasks.probe import difference
from evo_kernel.tasks.task import Task, TensorSpec
from evo_kernel.types import CaseKind, Source

MOST_ELEMENTS = 1 << 18
"""Of the check case on which references are compared: the largest with at most so many, because small ones say little
(with one key, attention is its values)."""


ANY = "_"
"""A size that no case names."""


@dataclass(frozen=True)
class _Number:
    """An argument of a champion that the task leaves open."""

    value: float


@dataclass(frozen=True)
class Match:
    """A champion that computes what a task asks for."""

    champion: Champion
    arguments: tuple[int | _Number, ...]  # for each parameter the position of the task's input
    beyond: tuple[str, ...]  # sizes of the task's cases outside of what it was verified for, such as "s 65536"

    @property
    def source(self) -> Source:
        """The champion as a kernel of the task."""
        if self.arguments == tuple(range(len(self.arguments))):
            return (
                Source(self.champion.text) if self.champion.function == "run" else packaged_source(self.champion.spec)
            )
        given = ", ".join(f"inputs[{a}]" if isinstance(a, int) else f"{a.value!r}" for a in self.arguments)
        call = f"champion = {self.champion.function}\n\n\ndef run(*inputs):\n    return champion({given})\n"
        return Source(f"{self.champion.text}\n\n{call}")

    @property
    def text(self) -> str:
        """What it is, in a sentence."""
        beyond = f"; cases here go beyond that: {', '.join(self.beyond)}" if self.beyond else ""
        champion = self.champion
        return f"{champion.name}, {champion.score_text}, verified for {champion.ranges_text}{beyond}"


def matching(task: Task) -> Match | None:
    """A champion that computes what the task's reference does and takes the sizes of all its cases: the task's own, or
    one that was verified for these sizes, if there is one. None where none does."""
    found: list[Match] = []
    for champion in sorted(champions(), key=lambda one: one.name != task.name):
        match = _matched(champion, task) if not task.mutates else None
        found += [match] if match is not None else []
        if match is not None and (champion.name == task.name or not match.beyond):
            return match
    return found[0] if found else None


def _matched(champion: Champion, task: Task) -> Match | None:
    fitting: dict[tuple[int | _Number, ...], list[dict[str, int]]] = {}
    for order in _orders(champion, task.input_specs(task.cases[0])):
        bound = (_sizes(champion, order, task.input_specs(case)) for case in task.cases)
        sizes = list(itertools.takewhile(bool, bound))
        if len(sizes) == len(task.cases):
            fitting[order] = sizes
    if not fitting:
        return None
    own = load(champion.name)
    if own.tolerance.precision == "tf32" != task.tolerance.precision:
        return None
    checks = sorted(task.cases_of(CaseKind.CHECK), key=task.elements)
    case = next((one for one in reversed(checks) if task.elements(one) <= MOST_ELEMENTS), checks[0])
    inputs = task.inputs(case, torch.Generator("cpu").manual_seed(1), "cpu")
    wanted = task.outputs(*inputs)
    for order, sizes in fitting.items():
        try:
            outputs = own.outputs(*(inputs[a] if isinstance(a, int) else a.value for a in order))
        except TaskError:
            continue
        if not difference(outputs, wanted):
            far = {
                f"{name} {size}": None for one in sizes for name, size in one.items()
                if not champion.ranges[name][0] <= size <= champion.ranges[name][1]
            }  # fmt: skip
            return Match(champion, order, tuple(far))
    return None


def _orders(champion: Champion, specs: Sequence[object]) -> Iterator[tuple[int | _Number, ...]]:
    """Ways to call the champion with a task's inputs, each of which is used once; the order of the inputs first."""
    tensors = [n for n, spec in enumerate(specs) if isinstance(spec, TensorSpec)]
    numbers = [n for n, spec in enumerate(specs) if not isinstance(spec, TensorSpec)]
    names = [name for name, takes in champion.takes.items() if isinstance(takes, str)]
    choices = [takes for takes in champion.takes.values() if not isinstance(takes, str)]
    if len(tensors) != len(names) or (numbers and len(numbers) != len(choices)):
        return
    chosen = [numbers] if numbers else [[_Number(v) for v in values] for values in itertools.product(*choices)]
    for places, plain in itertools.product(itertools.permutations(tensors), chosen):
        at, left = dict(zip(names, places, strict=True)), iter(plain)
        yield tuple(at[name] if name in at else next(left) for name in champion.takes)


def _sizes(champion: Champion, order: Sequence[int | _Number], specs: Sequence[object]) -> dict[str, int]:
    """The sizes of a case by the champion's names; empty where it does not take such inputs: dense, of its dtype, with
    one value of each size."""
    sizes: dict[str, int] = {}
    for takes, argument in zip(champion.takes.values(), order, strict=True):
        spec = specs[argument] if isinstance(argument, int) else argument.value
        if not isinstance(spec, TensorSpec):
            if isinstance(takes, str) or spec not in takes:
                return {}
            continue
        names = takes.split() if isinstance(takes, str) else []
        dtype = names.pop(0) if isinstance(getattr(torch, (names or [""])[0], None), torch.dtype) else champion.dtype
        dense = torch.empty(spec.shape, device="meta").stride()
        if (spec.dtype, spec.strides, len(spec.shape)) != (dtype, dense, len(names)):
            return {}
        known = [(name, size) for name, size in zip(names, spec.shape, strict=True) if name != ANY]
        if any(sizes.setdefault(name, size) != size for name, size in known):
            return {}
    return sizes if all(sizes[name] in allowed for name, allowed in champion.only.items()) else {}
