"""A task: what a kernel must compute, on which shapes, how exactly, and against what it is timed."""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import inspect
import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from evo_kernel.errors import TaskError
from evo_kernel.tasks.blank import Blank
from evo_kernel.types import CaseCard, CaseKind, Source, TaskCard

Number = int | float | bool
Input = torch.Tensor | int | float | bool
Function = Callable[..., Any]

HOST_KNOWN_ELEMENTS = 1 << 16
"""How many elements a host-known input may have: its values travel with every recording."""


@dataclass(frozen=True)
class Case(Mapping[str, Any]):
    """One named set of sizes: `case["m"]` is what the task file wrote for it. Names are unique within a task."""

    name: str
    kind: CaseKind
    sizes: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        return self.sizes[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def __hash__(self) -> int:
        return hash((self.name, self.kind))


@dataclass(frozen=True)
class Tolerance:
    """How far a correct kernel may be from the float64 reference, in units of what an honest kernel reaches.

    An output passes when its relative Frobenius error is at most `relative_multiple` times, and its largest error over
    (eps · scale) at most `max_multiple` times, that of an honest kernel in the same dtype. `absolute` is a floor below
    which an error never counts (0: none).
    """

    relative_multiple: float = 4.0
    max_multiple: float = 8.0
    absolute: float = 0.0
    atomics: bool = False  # two runs may differ in the last bits: sums through atomics are allowed
    precision: Literal["ieee", "tf32"] = "ieee"  # what float32 contractions may use


TOLERANCES: Mapping[str, Tolerance] = {
    "default": Tolerance(),
    "loose": Tolerance(relative_multiple=16.0, max_multiple=32.0),
    "atomics": Tolerance(atomics=True),
}
"""Tolerances that a task file may ask for by name."""


class TensorSpec(NamedTuple):
    """A tensor input without its values; `dtype` as in `getattr(torch, dtype)`, strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def __str__(self) -> str:
        """dtype[shape], with the strides where they are not those of a dense tensor."""
        dense = torch.empty(self.shape, device="meta").stride()
        return f"{self.dtype}{list(self.shape)}" + (f" strides {list(self.strides)}" if self.strides != dense else "")

    def empty(self, device: str | torch.device) -> torch.Tensor:
        """An uninitialised tensor of this kind (fake under a FakeTensorMode)."""
        return torch.empty_strided(self.shape, self.strides, dtype=getattr(torch, self.dtype), device=device)


def identity_of(text: str) -> str:
    """Of a task: the sha256 of its file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Task:
    """What a kernel must compute. See docs/guides/tasks.md for what each part of the file means."""

    name: str
    path: Path
    text: str  # of the task file
    cases: tuple[Case, ...]
    inputs_function: Function = field(repr=False)
    reference_function: Function = field(repr=False)
    baselines: Mapping[str, Function] = field(repr=False)
    flops_function: Function | None = field(default=None, repr=False)
    bytes_function: Function | None = field(default=None, repr=False)
    allow: Literal["kernels", "mixed"] = "kernels"
    tolerance: Tolerance = Tolerance()
    host_known: frozenset[int] = frozenset()  # positions of inputs whose values the host may read
    mutates: tuple[int, ...] = ()  # positions of inputs that the reference and the kernel change in place
    seed: Source | None = None
    description: str = ""
    public_text: str = ""  # the file's text without its confirm cases
    origin: str = ""  # a built-in name, or what names an imported task (kernelbench:PATH/level1/23); else empty
    narrowed_to: str = ""  # its only search case, where others were left out
    notes: tuple[str, ...] = ()  # what loading assumed because the file does not say, one sentence each
    _specs: dict[Case, tuple[TensorSpec | Number, ...]] = field(default_factory=dict, repr=False, compare=False)
    _borrowings: dict[Case, frozenset[int]] = field(default_factory=dict, repr=False, compare=False)
    _host: dict[Case, Mapping[int, torch.Tensor]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def identity(self) -> str:
        """Scores compare only within one identity."""
        return identity_of(self.text)

    def __hash__(self) -> int:
        return hash(self.identity)

    @property
    def spec(self) -> str:
        """What `load` finds this task by, in another process on this machine."""
        return self.origin or str(self.path.absolute())

    @property
    def is_imported(self) -> bool:
        """Whether its text is an importer's, wherever it lies: of a benchmark's problem."""
        return self.reference_function.__module__.startswith("evo_kernel.tasks.")

    def cases_of(self, kind: CaseKind) -> tuple[Case, ...]:
        """The cases of one kind, in the file's order."""
        return tuple(case for case in self.cases if case.kind is kind)

    def case(self, name: str) -> Case:
        """The case with this name."""
        found = {case.name: case for case in self.cases}
        if name not in found:
            raise TaskError(f"{self.name} has no case {name!r}; it has {', '.join(found)}.")
        return found[name]

    def narrowed(self, case: str) -> Task:
        """With one search case alone. Raises TaskError."""
        self.case(case)
        kept = tuple(one for one in self.cases if one.kind is not CaseKind.SEARCH or one.name == case)
        return replace(self, name=f"{self.name}@{case}", cases=kept, narrowed_to=case)

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """The reference's parameter names, as far as it names them."""
        return tuple(positional_names(self.reference_function))

    def inputs(self, case: Case, generator: torch.Generator, device: str | torch.device) -> tuple[Input, ...]:
        """Draw the inputs of a case. `generator` lives on `device`; the same state of it draws the same values.

        Host-known inputs are the same in every draw: see `host_values`.
        """
        values = self._drawn(case, generator, device)
        if not self.host_known or any(isinstance(value, FakeTensor) for value in values):
            return values
        known = self.host_values(case)
        return tuple(
            self._host_input(case, position, value, known[position]) if position in known else value
            for position, value in enumerate(values)
        )

    def host_values(self, case: Case) -> Mapping[int, torch.Tensor]:
        """The values of host-known inputs by position, on the CPU: do not change them.

        They decide what `run` launches, so they must be the same when a kernel is recorded, checked and timed. Hence
        they are drawn once, by the file's `inputs` with a seed that follows from the case's name alone.
        """
        if not self.host_known:
            return {}
        if case not in self._host:
            seed = int.from_bytes(hashlib.sha256(case.name.encode()).digest()[:4])
            values = self._integers(case, seed)
            positions = [position for position in sorted(self.host_known) if 0 <= position < len(values)]
            self._host[case] = {
                position: self._small_integers(case, position, value)
                for position in positions
                if isinstance(value := values[position], torch.Tensor)
            }
        return self._host[case]

    def _integers(self, case: Case, seed: int) -> tuple[Input, ...]:
        """A draw whose host-known inputs have values; others may have no memory, where none of those depends on them:
        to draw them all would take seconds."""
        with contextlib.suppress(TaskError), Blank(integers=True):
            values = self._drawn(case, torch.Generator("cpu").manual_seed(seed), "cpu")
            if not any(isinstance(v, torch.Tensor) and v.is_meta for n, v in enumerate(values) if n in self.host_known):
                return values
        return self._drawn(case, torch.Generator("cpu").manual_seed(seed), "cpu")

    def _small_integers(self, case: Case, position: int, value: torch.Tensor) -> torch.Tensor:
        what = f"{self.path}: HOST_KNOWN names input {position}, which for case {case.name!r} "
        if value.is_floating_point() or value.is_complex():
            kind = str(value.dtype).removeprefix("torch.")
            raise TaskError(f"{what}is {kind}. Only integer inputs can be host-known: take it out of HOST_KNOWN.")
        if value.numel() > HOST_KNOWN_ELEMENTS:
            raise TaskError(
                f"{what}has {value.numel()} elements; at most {HOST_KNOWN_ELEMENTS} may be host-known. Take it out of "
                "HOST_KNOWN, or give `run` a small input with what the host must know."
            )
        return value.clone(memory_format=torch.contiguous_format)

    def _host_input(self, case: Case, position: int, drawn: Input, known: torch.Tensor) -> torch.Tensor:
        if not isinstance(drawn, torch.Tensor) or (drawn.shape, drawn.dtype) != (known.shape, known.dtype):
            raise TaskError(
                f"{self.path}: host-known input {position} has another shape or dtype in another draw of case "
                f"{case.name!r}. Let `case` alone decide shapes, and only values depend on the generator."
            )
        return known.to(drawn.device, copy=True)

    def _drawn(self, case: Case, generator: torch.Generator, device: str | torch.device) -> tuple[Input, ...]:
        """What the file's `inputs` returns, validated."""
        made = self._call(
            self.inputs_function,
            f"inputs(case, generator, device) for case {case.name!r} "
            f"({', '.join(f'{name}={value}' for name, value in case.sizes.items())})",
            (case, generator, torch.device(device)),
        )
        values = list(made) if isinstance(made, (tuple, list)) else [made]
        for position, value in enumerate(values):
            if not isinstance(value, (torch.Tensor, int, float)):
                raise TaskError(
                    f"{self.path}: inputs returned a {type(value).__name__} at position {position} for case "
                    f"{case.name!r}. Return a tuple or list of tensors and plain numbers."
                )
        if not any(isinstance(value, torch.Tensor) for value in values):
            raise TaskError(f"{self.path}: inputs returned no tensor for case {case.name!r}. Return at least one.")
        return tuple(values)

    def reference(self, *inputs: Input) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """What the file's reference returns: one tensor, or a tuple. It changes the inputs at `mutates` in place."""
        if misfit := _arity_misfit(self.reference_function, len(inputs)):
            code = getattr(self.reference_function, "__code__", None)
            line = f":{code.co_firstlineno}" if code is not None else ""
            raise TaskError(f"{self.path}{line}: {misfit} Let reference take what inputs() returns, in that order.")
        result = self._call(self.reference_function, "reference", inputs)
        if isinstance(result, torch.Tensor):
            return result
        parts = as_tuple(result)
        if (parts or self.mutates) and all(isinstance(part, torch.Tensor) for part in parts):
            return parts
        raise TaskError(
            f"{self.path}: reference returned a {type(result).__name__}. Return a tensor, or a tuple or list of them."
        )

    def outputs(self, *inputs: Input) -> tuple[torch.Tensor, ...]:
        """What a kernel must compute: what the reference returns, then the inputs that it changes. Copies those."""
        for position in self.mutates:
            if position >= len(inputs) or not isinstance(inputs[position], torch.Tensor):
                raise TaskError(f"{self.path}: MUTATES names input {position}, which is no tensor.")
        return as_tuple(functional(self.reference, self.mutates)(*inputs))

    def truth(self, *inputs: Input) -> tuple[torch.Tensor, ...]:
        """The reference computed on float64 copies of the floating-point inputs: what errors are measured from."""
        return self.outputs(*(as_float64(value) for value in inputs))

    def borrowed_outputs(self, case: Case) -> frozenset[int]:
        """Numbers of outputs for which the reference, on this case, returns memory of an input or of another output, or
        a tensor several of whose elements share memory. Changed inputs are among them.

        Of a timed case it is found without data; where the reference needs some, what all check cases have in common.
        """
        if case not in self._borrowings:
            self._borrowings[case] = self._find_borrowed(case)
        return self._borrowings[case]

    def _find_borrowed(self, case: Case) -> frozenset[int]:
        try:
            return self._borrowed(*self._example(case))
        except TaskError:
            if case.kind is CaseKind.CHECK:
                raise
        return frozenset.intersection(*map(self.borrowed_outputs, self.cases_of(CaseKind.CHECK)))

    def _borrowed(self, inputs: Sequence[Input], outputs: Sequence[torch.Tensor]) -> frozenset[int]:
        given = {value.untyped_storage()._cdata for value in inputs if isinstance(value, torch.Tensor)}
        borrowed: set[int] = set()
        given |= {output.untyped_storage()._cdata for output in outputs[len(outputs) - len(self.mutates) :]}
        for number, output in enumerate(outputs):
            storage = output.untyped_storage()
            is_expanded = any(step == 0 and size > 1 for step, size in zip(output.stride(), output.shape, strict=True))
            is_larger = output.numel() * output.element_size() > storage.nbytes()  # windows
            if storage._cdata in given or is_expanded or is_larger:
                borrowed.add(number)
            given.add(storage._cdata)
        return frozenset(borrowed)

    @cached_property
    def output_orders(self) -> tuple[tuple[int, ...] | None, ...]:
        """Axes of each output of the reference from the outermost in memory to the innermost; None where the task
        leaves it open: the output is borrowed, has gaps, or the reference does not run on a CPU."""
        inputs: tuple[Input, ...] = ()
        outputs: tuple[torch.Tensor, ...] = ()
        checked = sorted(self.cases_of(CaseKind.CHECK), key=self.elements)
        for case in (*checked, *self.cases_of(CaseKind.SEARCH)):
            with contextlib.suppress(TaskError):
                example = self._example(case)
                tells = all(size > 1 for output in example[1] for size in output.shape)  # one place has no order
                if case.kind is CaseKind.CHECK or (tells and outputs):
                    inputs, outputs = example
                if tells:
                    break
        borrowed = self._borrowed(inputs, outputs)
        return tuple(
            None
            if number in borrowed or output.numel() * output.element_size() != _reach(output)
            else tuple(sorted(range(output.dim()), key=lambda axis: -output.stride(axis)))
            for number, output in enumerate(outputs)
        )

    def _example(self, case: Case) -> tuple[tuple[Input, ...], tuple[torch.Tensor, ...]]:
        """Inputs and outputs of a case, without data where it is timed."""
        with contextlib.nullcontext() if case.kind is CaseKind.CHECK else FakeTensorMode(allow_non_fake_inputs=True):
            inputs = self.inputs(case, torch.Generator("cpu").manual_seed(0), "cpu")
            return inputs, self.outputs(*inputs)

    def flops(self, case: Case) -> float | None:
        """Floating-point operations that the computation needs on this case; None where the file does not say."""
        return self._formula("flops", self.flops_function, case)

    def bytes(self, case: Case) -> float | None:
        """Bytes that must move at least: every input read and every output written once. None where not said."""
        return self._formula("bytes", self.bytes_function, case)

    def input_specs(self, case: Case) -> tuple[TensorSpec | Number, ...]:
        """Per input, its dtype, shape and strides, or the number itself.

        Found by running `inputs` on tensors without memory, so that large cases cost nothing; with real ones where the
        file reads values while it draws.
        """
        if case not in self._specs:
            specs = [spec_of(value) for value in self._without_values(case)]
            for position in self.host_known.intersection(range(len(specs))):
                if isinstance(spec := specs[position], TensorSpec):  # handed over dense, whatever the file's strides
                    specs[position] = spec_of(torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device="meta"))
            self._specs[case] = tuple(specs)
        return self._specs[case]

    def input_texts(self, case: Case) -> list[str]:
        """Each input of a case: its name, with dtype and shape of a tensor, or the value."""
        specs, names = self.input_specs(case), list(self.input_names)
        names += [f"input {number}" for number in range(len(names), len(specs))]
        return [
            f"{name} {spec}" if isinstance(spec, TensorSpec) else f"{name} = {spec}"
            for name, spec in zip(names, specs, strict=False)
        ]

    def elements(self, case: Case) -> int:
        """Of all inputs together."""
        return sum(spec.elements for spec in self.input_specs(case) if isinstance(spec, TensorSpec))

    def _without_values(self, case: Case) -> tuple[Input, ...]:
        """Inputs whose values are of no use."""
        # Imported problems go by FakeTensorMode, which takes a second to import.
        modes: tuple[Callable[[], TorchDispatchMode], ...] = (
            (FakeTensorMode,) if self.is_imported else (Blank, FakeTensorMode)
        )
        for mode in modes:
            # Where it fails the file reads values, or uses an operation that knows no tensors without memory.
            with contextlib.suppress(TaskError), mode():
                return self._drawn(case, torch.Generator("cpu"), "cpu")
        return self._drawn(case, torch.Generator("cpu").manual_seed(0), "cpu")

    def card(self) -> TaskCard:
        """The task as agents see it: without the confirm cases."""
        shown = [case for case in self.cases if case.kind is not CaseKind.CONFIRM]
        return TaskCard(
            name=self.name,
            reference=self.public_text,
            allow=self.allow,
            precision=self.tolerance.precision,
            atomics=self.tolerance.atomics,
            cases=tuple(
                CaseCard(
                    name=case.name,
                    kind=case.kind,
                    sizes=dict(case.sizes),
                    inputs=tuple(
                        (spec.dtype, spec.shape, spec.strides)
                        for spec in self.input_specs(case)
                        if isinstance(spec, TensorSpec)
                    ),
                    flops=self.flops(case),
                    moved=self.bytes(case),
                )
                for case in shown
            ),
            description=self.description,
        )

    def _formula(self, what: str, function: Function | None, case: Case) -> float | None:
        if function is None:
            return None
        value = self._call(function, f"{what}(case) for case {case.name!r}", (case,))
        if value is None or (isinstance(value, (int, float)) and value >= 0):
            return None if value is None else float(value)
        raise TaskError(f"{self.path}: {what} returned {value!r} for case {case.name!r}. Return a number, or None.")

    def _call(self, function: Function, what: str, arguments: Sequence[Any]) -> Any:
        """Call a function of the file; its exceptions become a TaskError with the file's line."""
        try:
            return function(*arguments)
        except (torch.OutOfMemoryError, TaskError):  # the machine's limit; or said already
            raise
        except Exception as error:  # a user's function may raise anything: all of it is theirs to mend
            raise TaskError(f"{self.path}{line_in(self.path, error)}: {what} failed: {describe(error)}") from error


def _arity_misfit(function: Function, count: int) -> str:
    """How a function cannot take `count` positional arguments, as a sentence; empty where it can, or does not say."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*range(count))
    except TypeError:
        return f"reference{signature} cannot be called with the {count} values that inputs() returns."
    return ""


def positional_names(function: Function) -> list[str]:
    """Names of the parameters that may be given by position; none of a builtin, which does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def as_tuple(result: Any) -> tuple[Any, ...]:
    """What a function returned, as a tuple; None is an empty one."""
    return () if result is None else tuple(result) if isinstance(result, (tuple, list)) else (result,)


def functional(function: Function, mutates: Sequence[int]) -> Function:
    """`function` without its effect on inputs: it returns a tuple, with the inputs at `mutates` as it left them last.

    The result has an attribute `mutates`. Where nothing is changed it is the function itself.
    """
    if not mutates:
        return function

    @functools.wraps(function)
    def computed(*inputs: Any) -> tuple[torch.Tensor, ...]:
        given = [value.clone() if position in mutates else value for position, value in enumerate(inputs)]
        return (*as_tuple(function(*given)), *(given[position] for position in mutates))

    setattr(computed, "mutates", tuple(mutates))  # noqa: B010 (functions have no such field)
    return computed


def as_float64(value: Input) -> Input:
    """A float64 copy of a floating-point tensor; anything else as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + steps) * tensor.element_size() if tensor.numel() else 0


def size_hint(size: Any) -> int:
    """A size, or what a size symbol stands for in the case that is being traced."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else int(size)


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, with NaN where the other has it."""
    if a.shape != b.shape:
        return False
    # Eight-bit floats as float32, which holds them exactly: they have hardly any operations of their own.
    a, b = (x.float() if x.is_floating_point() and x.element_size() == 1 else x for x in (a, b))
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def describe(error: BaseException) -> str:
    """An exception in one line: its type and the first line of its message."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """A hint that begins with a space; empty where nothing is near."""
    near = difflib.get_close_matches(wanted, list(names), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


def line_in(path: Path, error: BaseException) -> str:
    """`:LINE` of the innermost frame of `error` that lies in the file, or an empty string."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f":{lines[-1]}" if lines else ""


def spec_of(value: Input) -> TensorSpec | Number:
    """A tensor's dtype, shape and strides; a number as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return TensorSpec(str(value.dtype).removeprefix("torch."), tuple(value.shape), tuple(value.stride()))


def without_data(value: Input | TensorSpec) -> Input:
    """A tensor of the meta device like this one, or of this spec; a number as it is."""
    spec = spec_of(value) if isinstance(value, torch.Tensor) else value
    return spec.empty("meta") if isinstance(spec, TensorSpec) else spec
