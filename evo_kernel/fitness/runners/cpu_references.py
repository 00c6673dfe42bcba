"""References for the CPU runner: drawn inputs, expected outputs, and slices of large references."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch

from evo_kernel.errors import BadDraw, InfraError, TaskError
from evo_kernel.fitness.correctness import check, regimes
from evo_kernel.fitness.correctness.check import poisoned, unbound
from evo_kernel.fitness.correctness.conversions import conversions, converts
from evo_kernel.fitness.correctness.error_bounds import Change, Expected, expect_by
from evo_kernel.fitness.correctness.references import References
from evo_kernel.fitness.correctness.slicing.reference import SlicedReference
from evo_kernel.fitness.correctness.slicing.tracing import NotSliceable
from evo_kernel.fitness.ir.partial import MOST_TOLD
from evo_kernel.fitness.ir.program_sampling import crossings, positions
from evo_kernel.fitness.plan.launch_plan import View
from evo_kernel.fitness.runners.base import Checked, Draw
from evo_kernel.fitness.runners.executor import Blobs, LargeExecution, unwritten_reason
from evo_kernel.lru_cache import Recent
from evo_kernel.tasks.blank import Blank, is_integer, keep_dynamo_out
from evo_kernel.tasks.task import Case, Input, Task, TensorSpec
from evo_kernel.types import CaseKind, CheckResult, Compared, Status

_SLACK = 2.0
"""Factor for single elements, whose error may exceed their share of the honest error."""
_REFERENCE_BYTES = 2 << 30
_KEPT_DRAWS = 3  # sets of inputs of large cases


@dataclass(frozen=True)
class LookLimits:
    """Seconds that a look at a plan of real size may take."""

    whole_s: float = 2.0  # up to which a plan is executed whole, and its reference had whole
    part_s: float = 1.25  # for programs of a plan that is not executed whole
    slices_s: float = 1.5  # for slices of a reference
    instead_s: float = 12.0  # up to which a reference is had whole if few slices can be had in time


class CpuReferences:
    """Inputs and expected outputs of one task by (case, seed, regime). Thread-safe."""

    def __init__(self, task: Task, deadline_s: float, limits: LookLimits) -> None:
        keep_dynamo_out()
        self._task, self._deadline_s, self._limits = task, deadline_s, limits
        self._drawing = threading.Lock()
        self._references = References(_REFERENCE_BYTES)
        self._draws: Recent[tuple[str, int, str], tuple[Input, ...]] = Recent(_KEPT_DRAWS)
        self._sliced: Recent[tuple[str, int, str], SlicedReference] = Recent(_KEPT_DRAWS)
        self._binding = threading.Lock()
        self._unbound: Recent[tuple[str, int, str], str] = Recent(_KEPT_DRAWS)  # of whole references
        self.closed = False

    def inputs(self, draw: Draw) -> tuple[Input, ...]:
        """Inputs of a draw. Those of large cases are drawn one at a time; the last few are cached."""
        case, seed, regime = draw
        if case.kind is CaseKind.CHECK:
            return regimes.drawn(self._task, case, seed, regime, "cpu")
        with self._drawing:
            return self._draws.find(
                (case.name, seed, regime), lambda: regimes.drawn(self._task, case, seed, regime, "cpu")
            )

    def prepare(self, draw: Draw) -> None:
        """Compute what a comparison will need."""
        inputs = self.inputs(draw)
        if draw[0].kind is not CaseKind.CHECK:
            sliced = self._slices(draw, inputs)
            if not sliced.fault and sliced.whole_seconds > self._limits.whole_s:
                return
        self._expected(draw, inputs)

    def applies(self, draw: Draw) -> bool:
        """Whether the reference takes inputs of the draw's regime: one that solves equations does not take zeros, one
        that makes bytes of pixels no large ones.

        It must take nominal ones, so those are not tried here.
        """
        if not self.is_defined(draw):
            return False
        if draw[2] == "nominal":
            return True
        try:
            self.prepare(draw)
        except BadDraw:
            return False
        return True

    def is_defined(self, draw: Draw) -> bool:
        """Whether the reference converts no float of the draw's regime to an integer that does not hold it."""
        if draw[2] == "nominal" or not self._converts:
            return True
        return not conversions(lambda: self._task.outputs(*self.inputs(draw))).undefined

    def compare(self, draw: Draw, inputs: Sequence[Input], outputs: Sequence[torch.Tensor]) -> CheckResult:
        """Compare all outputs with the whole reference."""
        return self._compared(draw, outputs, self._expected(draw, inputs))

    def compare_large(self, draw: Draw, inputs: Sequence[Input], outputs: Sequence[torch.Tensor]) -> Checked:
        """Compare outputs of real size: with the whole reference if it is cheap, else random elements."""
        sliced = self._slices(draw, inputs)
        if not sliced.fault and sliced.whole_seconds > self._limits.whole_s:
            found = self._compare_drawn(draw, sliced, outputs)
            if found is not None:
                return found
        whole = self._expected(draw, inputs)
        verdict = self._verdict(draw, self._compared(draw, outputs, whole), whole, is_whole=True)
        count = sum(out.numel() for out in outputs)
        return _told(verdict, Compared(verdict.error, count, count, whole=True))

    def _compare_drawn(self, draw: Draw, sliced: SlicedReference, outputs: Sequence[torch.Tensor]) -> Checked | None:
        """Compare elements at random positions with slices, and check that no element is unwritten; None as in
        `_compare_slices`."""
        case, seed, _ = draw
        generator = torch.Generator().manual_seed(seed)
        drawn = [
            crossings(positions(out.shape, MOST_TOLD, generator), out.contiguous().stride())
            if out.numel()
            else torch.zeros(0, dtype=torch.int64)
            for out in outputs
        ]
        for number, out in enumerate(outputs):
            if bool((marks := poisoned(out)).any()) and out.is_floating_point():
                reason = unwritten_reason(number, int(marks.sum()), out.numel())
                return Checked(Status.WRONG, f"on {case.name}: {reason}")
        values = [out.reshape(-1)[n] for out, n in zip(outputs, drawn, strict=True)]
        return self._compare_slices(draw, sliced, drawn, values, sum(out.numel() for out in outputs), whole=True)

    def compare_part(
        self, draw: Draw, inputs: Sequence[Input], views: Sequence[View], execution: LargeExecution, blobs: Blobs
    ) -> Checked:
        """Compare the output elements that some of the programs wrote. Raises ValueError for a malformed answer."""
        elements, values = [], []
        for number, ((places, data), view, lacking) in enumerate(
            zip(execution.parts, views, execution.unwritten, strict=True)
        ):
            if lacking:
                reason = unwritten_reason(number, lacking, view.elements)
                return Checked(Status.WRONG, f"on {draw[0].name}: {reason}")
            numbers = blobs.take(places).view(torch.int64)
            elements.append(numbers)
            values.append(blobs.take(data).view(getattr(torch, view.dtype)))
            if numbers.numel() != values[-1].numel() or bool(((numbers < 0) | (numbers >= view.elements)).any()):
                raise ValueError("elements that the output does not have")
        of = sum(view.elements for view in views)
        checked = self._compare_slices(draw, self._slices(draw, inputs), elements, values, of, whole=False)
        if checked is not None:
            return checked
        whole = self._expected(draw, inputs)
        expected = [_chosen(full, numbers) for full, numbers in zip(whole, elements, strict=True)]
        verdict = self._verdict(draw, self._compared(draw, values, expected), whole, is_whole=True)
        return _told(verdict, Compared(verdict.error, sum(value.numel() for value in values), of, whole=False))

    def _compare_slices(
        self,
        draw: Draw,
        sliced: SlicedReference,
        elements: Sequence[torch.Tensor],
        values: Sequence[torch.Tensor],
        of: int,
        whole: bool,
    ) -> Checked | None:
        """Elements against slices of the reference: those that can be had in time, of each output some. None where they
        cost as much as the whole reference does, are few though that costs little (one row of eight, say), or fail, or
        equal values may decide. `of`, `whole`: see `Compared`."""
        seconds = self._limits.slices_s
        try:
            while True:
                sample = sliced.sample(elements, seconds, np.random.default_rng())
                if sample.few and sliced.whole_seconds <= self._limits.instead_s:
                    return None
                parts = zip(elements, sample.elements, strict=True)
                if not any(asked.numel() and not had.numel() for asked, had in parts):
                    break
                if seconds >= min(sliced.whole_seconds, self._deadline_s):
                    return None
                seconds *= 4
            expected = sliced.expect(sample, draw[2] == "nominal")
        except (NotSliceable, TaskError):  # a faulty reference also fails as a whole
            return None
        kept = []
        for numbers, asked, found in zip(sample.elements, elements, values, strict=True):
            order = torch.argsort(asked)
            kept.append(found[order[torch.searchsorted(asked[order], numbers)]])
        result = self._compared(draw, kept, expected)
        if not result.passed and sliced.may_tie:
            return None
        verdict = self._verdict(draw, result, expected)
        return _told(verdict, Compared(verdict.error, sum(part.numel() for part in kept), of, whole))

    def _compared(self, draw: Draw, outputs: Sequence[torch.Tensor], expected: Sequence[Expected]) -> CheckResult:
        return check.compare(draw[0].name, outputs, expected, self._task.tolerance, draw[2])

    def _verdict(
        self, draw: Draw, result: CheckResult, expected: Sequence[Expected], is_whole: bool = False
    ) -> Checked:
        """`is_whole`: `expected` is the draw's whole reference, of which is told once whether it binds anything."""
        case, seed, regime = draw
        if not result.passed:
            return Checked(Status.WRONG, f"wrong on {case.name}: {result.reason}", math.inf)
        if regime != "nominal":
            return Checked(Status.PASSED, "", result.error)
        if is_whole:
            with self._binding:
                why = self._unbound.find((case.name, seed, regime), lambda: unbound(self._task, case, expected))
        else:
            why = unbound(self._task, case, expected)
        if why:
            return Checked(Status.REJECTED, f"on {case.name}: {why}")
        return Checked(Status.PASSED, "", result.error)

    def _slices(self, draw: Draw, inputs: Sequence[Input]) -> SlicedReference:
        case, seed, regime = draw
        with self._drawing:
            return self._sliced.find(
                (case.name, seed, regime), lambda: SlicedReference(self._task, inputs, self._wrong_slices)
            )

    @cached_property
    def _wrong_slices(self) -> str:
        """Why this task's reference cannot be had by slices, by its smallest check case."""
        smallest = min(self._task.cases_of(CaseKind.CHECK), key=self._task.elements, default=None)
        if smallest is None:
            return ""
        inputs = regimes.drawn(self._task, smallest, 0, "nominal", "cpu")
        return SlicedReference(self._task, inputs).wrong()

    @cached_property
    def _converts(self) -> bool:
        return converts(self._task, "cpu")

    def _expected(self, draw: Draw, inputs: Sequence[Input]) -> tuple[Expected, ...]:
        """The whole reference. Raises BadDraw, and InfraError after `close`."""
        case, seed, regime = draw

        def run(change: Change) -> Sequence[torch.Tensor]:
            if self.closed:
                raise InfraError("the runner is closed")
            try:
                return self._task.outputs(*map(change, inputs))
            except TaskError as error:
                raise BadDraw(f"{error} This was on {regime} inputs of {case.name}.") from error

        make = partial(expect_by, run, inputs, self._task.tolerance.precision, is_nominal=regime == "nominal")
        return self._references.of(case.name, seed, regime, make)


def _told(verdict: Checked, compared: Compared) -> Checked:
    """A verdict with what it is of, where it passed."""
    return replace(verdict, compared=compared) if verdict.passed else verdict


def _chosen(full: Expected, places: torch.Tensor) -> Expected:
    """What is expected of some elements, with their share of the honest error by number or by norm."""
    truth = full.truth.flatten()[places]
    count = places.numel() / max(1, full.honest.numel())
    share = math.sqrt(count) if truth.is_floating_point() else count  # of integers, those that may differ are counted
    if truth.is_floating_point():
        whole = float(torch.where(full.truth.isfinite(), full.truth, 0).norm())
        share = max(share, float(torch.where(truth.isfinite(), truth, 0).norm()) / whole if whole else 0.0)
    return replace(
        full,
        truth=truth,
        honest=full.honest.flatten()[places],
        compared=full.compared.flatten()[places],
        undecided=None if full.undecided is None else full.undecided.flatten()[places],
        frobenius=full.frobenius * min(1.0, _SLACK * share),
        apart=None if full.apart is None else full.apart * min(1.0, _SLACK * share),
        narrow=full.narrow and full.narrow.of_part(min(1.0, _SLACK * count)),
        typical=tuple(_SLACK * share / math.sqrt(count) * error for error in full.typical) if count else (),
        selection=full.selection and full.selection.of_part(places),
    )


MOST_BYTES = 64 << 20
"""Larger integer inputs read as zeros."""
REAL_ELEMENTS = 1 << 28
"""Largest case, in elements, that is drawn completely if its `inputs` needs floating-point values."""


def integers_among(task: Task, case: Case) -> frozenset[int]:
    """Positions of a case's integer inputs."""
    specs = enumerate(task.input_specs(case))
    return frozenset(n for n, spec in specs if isinstance(spec, TensorSpec) and is_integer(getattr(torch, spec.dtype)))


def index_inputs(task: Task, case: Case, seed: int) -> Mapping[int, torch.Tensor]:
    """Integer inputs of a case by position, as far as they are cheap to draw."""
    specs = {n: spec for n, spec in enumerate(task.input_specs(case)) if isinstance(spec, TensorSpec)}
    wanted = integers_among(task, case)
    if not wanted:
        return {}
    if task.host_known:
        task.host_values(case)  # drawn with real values, as for the recorder
    values: Sequence[Input] = ()
    with contextlib.suppress(TaskError), Blank(integers=True):
        values = task.inputs(case, torch.Generator("cpu").manual_seed(seed), "cpu")
    integers = {n: v for n, v in enumerate(values) if n in wanted and isinstance(v, torch.Tensor) and not v.is_meta}
    # Where `inputs` reads floating-point values, makes integers of them, or calls functions that need memory:
    if len(integers) < len(wanted) and sum(spec.elements for spec in specs.values()) <= REAL_ELEMENTS:
        values = task.inputs(case, torch.Generator("cpu").manual_seed(seed), "cpu")
        integers = {n: v for n, v in enumerate(values) if n in wanted and isinstance(v, torch.Tensor)}
    return {n: v for n, v in integers.items() if v.device.type == "cpu" and v.nbytes <= MOST_BYTES}
