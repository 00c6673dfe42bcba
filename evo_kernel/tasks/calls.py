"""A benchmark's function with a script that calls it (TritonBench) as the functions of a task.

A problem file is a reference, a line of 146 `#`, and a test; a second file may hold the sizes of its timings. A case is
one call: `{"test": 2}` is the third call of the test, `{"perf": 9}` the tenth set of inputs of the timings; all of a
task have one form. Scripts' seeds are not set, and what they write out in numbers is changed in every draw: a
remembered output would pass.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import linecache
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from evo_kernel.errors import TaskError
from evo_kernel.syntax import parse_module
from evo_kernel.tasks.call_template import (
    CallForm,
    Form,
    Returned,
    free_name,
    is_differentiable,
    is_tensor,
    noted_call,
    parameters_of,
    returned,
    with_defaults,
)
from evo_kernel.tasks.scripts import (
    APPLY,
    Found,
    Metrics,
    Nothing,
    Placed,
    drawing_seed,
    importable_names,
    is_fake,
    own_numbers,
    refuse_too_large,
    rewritten,
    scaled,
    silent,
    with_parameters,
)
from evo_kernel.tasks.task import same_values

CUT = "#" * 146
"""The line between reference and test."""


class Called:
    """One problem: its reference and test, the script of its timings or none, and the call that gives the form."""

    skipped_on = ""
    """The device on which functions are left out while the scripts run, because their results are dear there."""

    def __init__(
        self,
        source: str,
        path: str,
        perf: str = "",
        *,
        call: Mapping[str, Any] | None = None,
        changed: Sequence[int] = (),
    ) -> None:
        self.path, self.changed = path, tuple(changed)
        self.made_by = {"source": source, "path": path, "perf": perf, "call": call, "changed": tuple(changed)}
        self._call = dict(call or {"test": 0})
        parts = source.split(CUT)
        if len(parts) != 2:
            raise TaskError(f"{path} has no line of {len(CUT)} '#' between a reference and a test. Name another file.")
        text = ast.unparse(rewritten(parts[0]))
        self._label = f"<problem {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
        linecache.cache[self._label] = (len(text), None, text.splitlines(keepends=True), self._label)  # Triton reads it
        self._reference = parse_module(text)
        self._test = rewritten(parts[1], script=True)
        self._perf = rewritten(perf, script=True) if perf else None
        self._lock = threading.RLock()

    def calls(self, seed: int, device: str = "cpu") -> list[CallForm]:
        """Every call of the test, in order. Its exceptions are the script's own.

        Where functions are left out, a script that needs a result ends early, and the calls until then are told.
        """
        run = _Run(device, skip=device == self.skipped_on)
        with own_numbers(device):
            torch.manual_seed(seed)
            names = run.names(self._reference, self._label)
            try:
                exec(compile(self._test, self._label, "exec"), names)
            except Exception:  # what follows a call that was skipped may trip over its missing result in any way
                if not run.skip or not run.calls:
                    raise
        return run.calls

    def timed(self) -> list[CallForm]:
        """Every set of inputs of the timings, without data."""
        found: list[CallForm] = []
        if self._perf is None:
            return found
        with own_numbers("cpu"):
            names, metrics = self._metrics(_Run("meta"))
            with Placed(lambda: "meta"):
                metrics.get_input_tensors()
                items = list(metrics.input_tensors)
            for item in items:
                run = _Run("meta", stop=0)
                run.wrap(names)
                found.append(_stopped(run, lambda item=item: metrics.call_op(metrics.to_cuda(item))))
        return found

    def inputs(self, case: Mapping[str, Any], generator: torch.Generator, device: torch.device) -> tuple[Any, ...]:
        """The tensors of the case's call, fresh but for integers that the script writes out."""
        seed, place = drawing_seed(generator, device, without_data=1), str(device)
        if not is_fake() and "perf" in case:
            with own_numbers("cpu"):
                tensors = self._one_timed(case["perf"], "meta").tensors
            needed = sum(tensor.nbytes for tensor in tensors)
            refuse_too_large(self.path, needed, device, "check it at the sizes of its test only")
        with self._lock, own_numbers(device), torch.no_grad():
            torch.manual_seed(seed)
            call = self._one_test(case["test"], place) if "test" in case else self._one_timed(case["perf"], place)
            tensors = [tensor.detach() for tensor in call.tensors]
            for position in case.get("written", ()):
                tensors[position] = _fresh(tensors[position])
        return tuple(tensors)

    @cached_property
    def form(self) -> Form:
        """How the function is called in every case of this task."""
        with _disable_current_modes(), own_numbers("cpu"):
            if "test" in self._call:
                return self._one_test(self._call["test"], "cpu").form
            return self._one_timed(self._call["perf"], "meta").form

    def reference(self) -> Callable[..., Any]:
        """The function as one of its tensors alone; what it writes into its arguments is returned after the rest."""
        form, functions = self.form, {}

        def reference(*values: Any) -> Any:
            place = values[0].device.type
            with self._lock, torch.no_grad():
                if place not in functions:
                    with _disable_current_modes():
                        functions[place] = self._entry(place)
                given = [v.clone() if index in self.changed else v for index, v in enumerate(values)]
                made = [leaf for leaf in pytree.tree_leaves(form.call(functions[place], given)) if is_tensor(leaf)]
            written = [given[index] for index in self.changed]
            made += [tensor for tensor in written if not any(tensor is other for other in made)]
            if not made:
                raise TaskError(f"{self.path}: {form.entry} returns no tensor. A kernel has nothing to compute.")
            return made[0] if len(made) == 1 else tuple(made)

        return with_parameters(reference, self.names)

    def effects(self, values: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], tuple[int, ...]]:
        """What the function makes of these values, what it writes to among it, and the positions of the latter."""
        given = [value.clone() for value in values]
        with torch.no_grad():
            made = pytree.tree_leaves(self.form.call(self._entry(values[0].device.type), given))
        pairs = zip(values, given, strict=True)
        changed = tuple(index for index, (was, now) in enumerate(pairs) if not same_values(was, now))
        return [leaf for leaf in made if is_tensor(leaf)] + [given[index] for index in changed], changed

    def returned(self, values: Sequence[torch.Tensor]) -> Returned:
        """How the function gives back what it makes of these values. Raises TaskError where that is no plain data."""
        given = [value.clone() for value in values]
        with torch.no_grad():
            result = self.form.call(self._entry(values[0].device.type), given)
        return returned(result, given, self.changed)

    @cached_property
    def names(self) -> list[str]:
        """A Python name for each tensor: the parameter that it, or a list that holds it, was given as."""
        form = self.form
        parameters = list(parameters_of(self._entry("cpu")))
        args, kwargs = pytree.tree_unflatten(list(range(len(form.leaves))), form.spec)
        wanted: dict[int, str] = {}
        for position, value in [*enumerate(args), *kwargs.items()]:
            name = position if isinstance(position, str) else (parameters + [f"x{i}" for i in range(99)])[position]
            held = pytree.tree_leaves(value)
            wanted.update((leaf, name if len(held) == 1 else f"{name}_{index}") for index, leaf in enumerate(held))
        names: list[str] = []
        for index, tensor in enumerate(form.tensors):
            if tensor:
                names.append(free_name(wanted[index], names))
        return names

    def _entry(self, place: str) -> Any:
        """The function itself, for tensors of a kind of device."""
        name, _, method = self.form.entry.partition(".")
        found = _Run(place).plain(self._reference, self._label)[name]
        return getattr(found, method) if method else found

    def _one_test(self, number: int, device: str) -> CallForm:
        run = _Run(device, stop=number, skip=device == self.skipped_on)
        names = run.names(self._reference, self._label)
        return _stopped(run, lambda: exec(compile(self._test, self._label, "exec"), names))

    def _one_timed(self, number: int, device: str) -> CallForm:
        names, metrics = self._metrics(_Run(device))
        metrics.wanted = number
        names["_device"] = device if number == 0 else "meta"
        metrics.reached = lambda: names.update(_device=device)
        with Placed(lambda: names["_device"]):
            try:
                metrics.get_input_tensors()
            except Found as found:
                item = found.item
            else:
                raise TaskError(f"{self.path}: its timings have no set of inputs {number}. Import the problem again.")
        run = _Run(device, stop=0)
        run.wrap(names)
        return _stopped(run, lambda: metrics.call_op(metrics.to_cuda(item)))

    def _metrics(self, run: _Run) -> tuple[dict[str, Any], Any]:
        assert self._perf is not None, "a case with timings has a script of them"
        names = run.names(self._reference, self._label)
        names |= {"Performance_Metrics": Metrics, "do_bench_config": lambda *a, **k: None, "__name__": "_timings"}
        exec(compile(self._perf, self._label, "exec"), names)
        return names, names["performance_metrics"]()


class _Stop(BaseException):
    """The call that was waited for has been made. No script catches it by accident."""


class _Run:
    """One execution of a problem's parts: which calls were made, until the one to stop at."""

    def __init__(self, device: str, stop: int | None = None, *, skip: bool = False) -> None:
        self.device, self.stop, self.skip = device, stop, skip
        self.calls: list[CallForm] = []
        self._depth = 0

    def plain(self, reference: ast.Module, path: str) -> dict[str, Any]:
        """The reference part's names."""
        names = importable_names(path)
        names |= {"print": silent, "_device": self.device}
        names["torch"] = torch  # some references leave it to their tests to import it
        exec(compile(reference, path, "exec"), names)
        return names

    def names(self, reference: ast.Module, path: str) -> dict[str, Any]:
        """The reference part's names, its functions noting their calls."""
        names = self.plain(reference, path)
        self.wrap(names)
        return names

    def wrap(self, names: dict[str, Any]) -> None:
        for name, value in list(names.items()):
            function = getattr(value, "_evo_kernel_plain", value)
            own = inspect.isfunction(function) and inspect.unwrap(function).__globals__ is names and name != "print"
            if own or (inspect.ismethod(function) and is_differentiable(function.__self__)):
                names[name] = self._noting(name, function)
            elif is_differentiable(value) and value is not torch.autograd.Function:
                names[f"{name}{APPLY}"] = self._noting(f"{name}.apply", value.apply)

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                self.calls.append(noted_call(name, *with_defaults(function, args, kwargs)))
                if self.stop is not None and len(self.calls) > self.stop:
                    raise _Stop
                if self.skip:
                    return Nothing()
            self._depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1

        noting._evo_kernel_plain = function  # pyright: ignore[reportFunctionMemberAccess]
        return noting


def _fresh(written: torch.Tensor) -> torch.Tensor:
    """A tensor that its script writes out, with other values of the same kind: numbers scaled, integers shuffled."""
    if not written.is_floating_point():
        return written.flatten()[torch.randperm(written.numel(), device=written.device)].reshape(written.shape)
    return scaled(written)


def _stopped(run: _Run, script: Callable[[], Any]) -> CallForm:
    try:
        script()
    except _Stop:
        return run.calls[-1]
    raise TaskError(f"the script makes {len(run.calls)} calls, and number {run.stop} was asked for. Import it again.")
