"""A benchmark's function with a script that calls it (TritonBench) as the functions of a task.

A problem file is a reference part, a line of 146 `#`, and a test part that calls the reference; a second file may hold
the sizes that it is timed at (`performance_metrics`). A case is one of these calls: `{"test": 2}` is the third call of
the test, `{"perf": 9}` the tenth set of inputs of the timings. All cases of a task have one *form*: the same function
with the same arguments where they are no tensors. Tensors are the inputs, in the order of the call.

Both scripts are rewritten before they run: what says "cuda" says the device at hand, and seeds are not set, so that
every draw is fresh. A tensor that a script writes out in numbers (`torch.tensor([1.0, 2.0])`) would be the same in
every draw and a remembered output would pass: its elements are scaled by factors from [0.9, 1), which keeps signs,
zeros, and domains around zero; integers are shuffled.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import keyword
import linecache
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

from evo_kernel.errors import TaskError
from evo_kernel.syntax import parse_expression, parse_module
from evo_kernel.tasks.problems import free_bytes, own_numbers

CUT = "#" * 146
"""The line between reference and test."""
SHRUNK = (0.9, 1.0)
APPLY = "__applied"
_CUDA = re.compile(r"cuda(:\d+)?")
_OF_A_GPU = {
    "torch.cuda.is_available": "True",
    "torch.cuda.device": "__import__('contextlib').nullcontext()",
    "torch.cuda.current_device": "0",
    "torch.cuda.device_count": "1",
    "torch.cuda.get_device_capability": "(9, 0)",
    "torch.cuda.get_device_name": "'NVIDIA H200'",
}
_HERE = "the inputs' device"
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.memory_format)
_TAKEN = {"torch", "triton", "tl", "math", "run"}


class _Word(str):
    """Text that is its own repr: a name among values."""

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class Form:
    """How a function is called, but for its tensors: a tree of arguments with plain values at some leaves."""

    entry: str
    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]  # None where `tensors` says so
    tensors: tuple[bool, ...]

    def call(self, function: Callable[..., Any], values: Sequence[Any]) -> Any:
        waiting = iter(values)
        device = values[0].device
        leaves = [
            next(waiting) if tensor else device if leaf is _HERE else leaf
            for leaf, tensor in zip(self.leaves, self.tensors, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return function(*args, **kwargs)

    def written(self, names: Sequence[str]) -> str:
        """The call as Python text, with these names for its tensors."""
        waiting = iter(names)
        leaves = [
            _Word(next(waiting) if tensor else f"{names[0]}.device" if leaf is _HERE else repr(leaf))
            for leaf, tensor in zip(self.leaves, self.tensors, strict=True)
        ]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        told = [repr(arg) for arg in args] + [f"{name}={value!r}" for name, value in kwargs.items()]
        return f"{self.entry}({', '.join(told)})"

    @property
    def key(self) -> str:
        return repr((self.entry, str(self.spec), self.leaves, self.tensors))


@dataclass(frozen=True)
class Call:
    """One call that a script made: its form, and its tensors."""

    form: Form
    tensors: tuple[torch.Tensor, ...]

    @property
    def elements(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors)

    def detached(self) -> Call:
        """The same without a graph of gradients: what can travel."""
        return Call(self.form, tuple(tensor.detach() for tensor in self.tensors))


class Called:
    """One problem: its reference and test, the script of its timings or none, and the call that gives the form."""

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
        self._reference = _here(parts[0])
        self._test = _here(parts[1])
        self._perf = _here(perf) if perf else None
        lines = source.splitlines(keepends=True)
        self._label = f"<problem {hashlib.sha256(source.encode()).hexdigest()[:16]}>"
        linecache.cache[self._label] = (len(source), None, lines, self._label)  # Triton reads its kernels' text there
        self._lock = threading.RLock()

    def calls(self, seed: int, device: str = "cpu") -> list[Call]:
        """Every call of the test, in order. Its exceptions are the script's own."""
        run = _Run(device)
        with own_numbers(device):
            torch.manual_seed(seed)
            names = run.names(self._reference, self._label)
            exec(compile(self._test, self._label, "exec"), names)
        return run.calls

    def timed(self) -> list[Call]:
        """Every set of inputs of the timings, without data."""
        found: list[Call] = []
        if self._perf is None:
            return found
        with own_numbers("cpu"):
            names, metrics = self._metrics(_Run("meta"))
            with _Placed(lambda: "meta"):
                metrics.get_input_tensors()
                items = list(metrics.input_tensors)
            for item in items:
                run = _Run("meta", stop=0)
                run.wrap(names)
                found.append(_stopped(run, lambda item=item: metrics.call_op(metrics.to_cuda(item))))
        return found

    def inputs(self, case: Mapping[str, Any], generator: torch.Generator, device: torch.device) -> tuple[Any, ...]:
        """The tensors of the case's call, fresh but for integers that the script writes out."""
        fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
        seed = 1 if fake else int(torch.randint(1 << 62, (), generator=generator, device=device))
        place = str(device)
        if not fake:
            self._refuse_too_large(case, device)
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
                made = [leaf for leaf in pytree.tree_leaves(form.call(functions[place], given)) if _is_tensor(leaf)]
            written = [given[index] for index in self.changed]
            made += [tensor for tensor in written if not any(tensor is other for other in made)]
            if not made:
                raise TaskError(f"{self.path}: {form.entry} returns no tensor. A kernel has nothing to compute.")
            return made[0] if len(made) == 1 else tuple(made)

        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in self.names]
        reference.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
        return reference

    @cached_property
    def names(self) -> list[str]:
        """A Python name for each tensor: the parameter that it, or a list that holds it, was given as."""
        form = self.form
        parameters = list(_parameters(self._entry("cpu")))
        args, kwargs = pytree.tree_unflatten(list(range(len(form.leaves))), form.spec)
        wanted: dict[int, str] = {}
        for position, value in [*enumerate(args), *kwargs.items()]:
            name = position if isinstance(position, str) else (parameters + [f"x{i}" for i in range(99)])[position]
            held = pytree.tree_leaves(value)
            wanted.update((leaf, name if len(held) == 1 else f"{name}_{index}") for index, leaf in enumerate(held))
        names: list[str] = []
        for index, tensor in enumerate(form.tensors):
            if tensor:
                names.append(_free_name(wanted[index], names))
        return names

    def _entry(self, place: str) -> Any:
        """The function itself, for tensors of a kind of device."""
        name, _, method = self.form.entry.partition(".")
        found = _Run(place).plain(self._reference, self._label)[name]
        return getattr(found, method) if method else found

    def _one_test(self, number: int, device: str) -> Call:
        run = _Run(device, stop=number)
        names = run.names(self._reference, self._label)
        return _stopped(run, lambda: exec(compile(self._test, self._label, "exec"), names))

    def _one_timed(self, number: int, device: str) -> Call:
        names, metrics = self._metrics(_Run(device))
        metrics.wanted = number
        names["_device"] = device if number == 0 else "meta"
        metrics.reached = lambda: names.update(_device=device)
        with _Placed(lambda: names["_device"]):
            try:
                metrics.get_input_tensors()
            except _Found as found:
                item = found.item
            else:
                raise TaskError(f"{self.path}: its timings have no set of inputs {number}. Import the problem again.")
        run = _Run(device, stop=0)
        run.wrap(names)
        return _stopped(run, lambda: metrics.call_op(metrics.to_cuda(item)))

    def _metrics(self, run: _Run) -> tuple[dict[str, Any], Any]:
        assert self._perf is not None, "a case with timings has a script of them"
        names = run.names(self._reference, self._label)
        names |= {"Performance_Metrics": _Metrics, "do_bench_config": lambda *a, **k: None, "__name__": "_timings"}
        exec(compile(self._perf, self._label, "exec"), names)
        return names, names["performance_metrics"]()

    def _refuse_too_large(self, case: Mapping[str, Any], device: torch.device) -> None:
        if "perf" not in case:
            return
        with own_numbers("cpu"):
            call = self._one_timed(case["perf"], "meta")
        needed, free = sum(t.numel() * t.element_size() for t in call.tensors), free_bytes(device)
        if needed > free:
            raise TaskError(
                f"{self.path}: the inputs need {needed / 1e9:.1f} GB and {device.type} has {free / 1e9:.1f} GB free. "
                "Run it on a machine with more memory, or check it at the sizes of its test only."
            )


class _Stop(BaseException):
    """The call that was waited for has been made. No script catches it by accident."""


class _Found(BaseException):
    def __init__(self, item: Any) -> None:
        super().__init__()
        self.item = item


class _Run:
    """One execution of a problem's parts: which calls were made, until the one to stop at."""

    def __init__(self, device: str, stop: int | None = None) -> None:
        self.device, self.stop = device, stop
        self.calls: list[Call] = []
        self._depth = 0

    def plain(self, reference: ast.Module, path: str) -> dict[str, Any]:
        """The reference part's names."""
        names: dict[str, Any] = {"__name__": "_evo_kernel_problem", "__file__": path, "print": _silent}
        names |= {"_device": self.device}
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
            own = inspect.isfunction(function) and function.__globals__ is names and name != "print"
            if own or (inspect.ismethod(function) and _is_differentiable(function.__self__)):
                names[name] = self._noting(name, function)
            elif _is_differentiable(value) and value is not torch.autograd.Function:
                names[f"{name}{APPLY}"] = self._noting(f"{name}.apply", value.apply)

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                self.calls.append(_call(name, *_with_defaults(function, args, kwargs)))
                if self.stop is not None and len(self.calls) > self.stop:
                    raise _Stop
            self._depth += 1
            try:
                return function(*args, **kwargs)
            finally:
                self._depth -= 1

        noting._evo_kernel_plain = function  # pyright: ignore[reportFunctionMemberAccess]
        return noting


class _Metrics:
    """Stands for the benchmark's own base class: keeps one set of inputs, or all where none is wanted."""

    wanted: int | None = None
    reached: Callable[[], Any] = staticmethod(lambda: None)

    def __init__(self, op_name: str = "", dtype: Any = None, is_backward: bool = False, **kwargs: Any) -> None:
        del op_name, is_backward
        self.dtype, self.kwargs = dtype, kwargs
        self.input_tensors = []

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "input_tensors":
            sets = _Sets(self)
            for item in value:
                sets.append(item)
            value = sets
        super().__setattr__(name, value)


class _Sets(list[Any]):
    def __init__(self, metrics: _Metrics) -> None:
        super().__init__()
        self._metrics = metrics

    def append(self, item: Any) -> None:
        if self._metrics.wanted == len(self):
            raise _Found(item)
        super().append(item)
        if self._metrics.wanted == len(self):
            self._metrics.reached()


class _Placed(TorchFunctionMode):
    """Tensors whose device nobody names are made where `where()` says."""

    def __init__(self, where: Callable[[], str]) -> None:
        super().__init__()
        self._where = where

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = dict(kwargs or {})
        if func in _device_constructors() and kwargs.get("device") is None:
            kwargs["device"] = self._where()
        return func(*args, **kwargs)


class _Here(ast.NodeTransformer):
    """ "cuda" becomes the device at hand; seeds, prints to it and imports of the benchmark's own modules go."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and _CUDA.fullmatch(node.value):
            return ast.copy_location(ast.Name("_device", ast.Load()), node)
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        called = ast.unparse(node.func)
        if re.fullmatch(r"[A-Za-z_]\w*\.apply", called):  # of an autograd function, most often: see _Run.wrap
            name = called.removesuffix(".apply")
            either = f"({name}{APPLY} if {name + APPLY!r} in globals() else {called})"
            node.func = ast.copy_location(parse_expression(either), node.func)
            return node
        if called in _OF_A_GPU:  # a CPU answers as a GPU of the kind that kernels are judged for
            either = f"({ast.unparse(node)} if str(_device).startswith('cuda') else {_OF_A_GPU[called]})"
            return ast.copy_location(parse_expression(either), node)
        if called == "torch.cuda.synchronize" or re.fullmatch(r"(torch(\.cuda)?|random|np|numpy)\..*seed\w*", called):
            return ast.copy_location(ast.Constant(None), node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and called != "torch.cuda":
            here = ast.Name("_device", ast.Load())
            node = ast.copy_location(ast.Call(ast.Attribute(node.func.value, "to", ast.Load()), [here], []), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return ast.copy_location(ast.Constant(True), node) if node.attr == "is_cuda" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        own = re.match(r"(Torch|Triton)Bench_\w+\.|performance_utils$", node.module or "")
        return ast.copy_location(ast.Expr(ast.Constant(None)), node) if own else node


def _here(text: str) -> ast.Module:
    return ast.fix_missing_locations(_Here().visit(parse_module(text)))


def _call(entry: str, args: Any, kwargs: Any) -> Call:
    leaves, spec = pytree.tree_flatten((args, kwargs))
    tensors = tuple(_is_tensor(leaf) for leaf in leaves)
    plain = []
    for leaf, tensor in zip(leaves, tensors, strict=True):
        if not tensor and not isinstance(leaf, _PLAIN):
            raise TaskError(f"{entry} is called with a {type(leaf).__name__}: tensors and plain values can be inputs")
        device = isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf in ("cpu", "cuda", "meta"))
        plain.append(None if tensor else _HERE if device else leaf)
    return Call(Form(entry, spec, tuple(plain), tensors), tuple(leaf for leaf in leaves if _is_tensor(leaf)))


def _with_defaults(function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The same call with nothing left to defaults and nothing to write to, so that equal calls look equal."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):  # a wrong call: the function will say so
        return args, kwargs
    bound.apply_defaults()
    if "out" in bound.arguments:  # holds nothing yet: no input
        bound.arguments["out"] = None
    return bound.args, bound.kwargs


def _fresh(written: torch.Tensor) -> torch.Tensor:
    """A tensor that its script writes out, with other values of the same kind: numbers scaled, integers shuffled."""
    if not written.is_floating_point():
        return written.flatten()[torch.randperm(written.numel(), device=written.device)].reshape(written.shape)
    return written * torch.empty_like(written).uniform_(*SHRUNK)


def _stopped(run: _Run, script: Callable[[], Any]) -> Call:
    try:
        script()
    except _Stop:
        return run.calls[-1]
    raise TaskError(f"the script makes {len(run.calls)} calls, and number {run.stop} was asked for. Import it again.")


def _parameters(function: Any) -> list[str]:
    try:
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    except (TypeError, ValueError):
        return []


def _free_name(wanted: str, taken: Sequence[str]) -> str:
    name = re.sub(r"\W", "_", wanted).replace("kernel", "window").strip("_") or "x"
    if not name.isidentifier() or keyword.iskeyword(name) or name in _TAKEN:
        name = f"w_{name}"
    while name in taken:
        name += "_"
    return name


def _is_differentiable(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, torch.autograd.Function)


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor)


def _silent(*args: Any, **kwargs: Any) -> None:
    del args, kwargs
