"""Running the code of imported problems: on the device at hand, with random numbers of its own, within its memory."""

from __future__ import annotations

import ast
import contextlib
import inspect
import itertools
import re
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from evo_kernel.errors import TaskError
from evo_kernel.syntax import parse_expression, parse_module

APPLY = "__applied"
_CUDA = re.compile(r"cuda(:\d+)?")
_FILLED = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}
_STAND_IN = "__import__('evo_kernel.tasks.compiled.stand_in', fromlist=['PROPERTIES']).PROPERTIES"
_OF_A_GPU = {
    "torch.cuda.is_available": "True",
    "torch.cuda.device": "__import__('contextlib').nullcontext()",
    "torch.cuda._DeviceGuard": "__import__('contextlib').nullcontext()",
    "torch.cuda.current_device": "0",
    "torch.cuda.device_count": "1",
    "torch.cuda.get_device_capability": "(9, 0)",
    "torch.cuda.get_device_name": f"{_STAND_IN}.name",
    "torch.cuda.get_device_properties": _STAND_IN,
    "torch.cuda.set_device": "None",
    "triton.runtime.driver.active.get_current_target": "__import__('triton.backends.compiler', "
    "fromlist=['GPUTarget']).GPUTarget('cuda', 90, 32)",
}


class Nothing:
    """Stands for the result of a function that was left out: may be kept, read from and called, not computed with."""

    def __getattr__(self, name: str) -> Nothing:
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Nothing:
        return self

    def __getitem__(self, index: Any) -> Nothing:
        return self


class Found(BaseException):
    def __init__(self, item: Any) -> None:
        super().__init__()
        self.item = item


class Metrics:
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
    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics

    def append(self, item: Any) -> None:
        if self._metrics.wanted == len(self):
            raise Found(item)
        super().append(item)
        if self._metrics.wanted == len(self):
            self._metrics.reached()


class Placed(TorchFunctionMode):
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
    """ "cuda" becomes the device at hand; seeds go, as do imports of the benchmark's own modules and paths to them."""

    def __init__(self, script: bool) -> None:
        self._script = script

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and _CUDA.fullmatch(node.value):
            return ast.copy_location(ast.Name("_device", ast.Load()), node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        if isinstance(node.annotation, ast.Constant) and isinstance(node.annotation.value, str):
            node.annotation = parse_expression(node.annotation.value)  # read as the type that the text names
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if self._script and isinstance(node.func, ast.Attribute):  # what nobody filled would differ in every draw
            node.func.attr = _FILLED.get(node.func.attr, node.func.attr)
        called = ast.unparse(node.func)
        if re.fullmatch(r"[A-Za-z_]\w*\.apply", called):  # of an autograd function, most often: see _Run.wrap
            name = called.removesuffix(".apply")
            either = f"({name}{APPLY} if {name + APPLY!r} in globals() else {called})"
            node.func = ast.copy_location(parse_expression(either), node.func)
            return node
        if called in _OF_A_GPU:  # a CPU answers as a GPU of the kind that kernels are judged for
            either = f"({ast.unparse(node)} if str(_device).startswith('cuda') else {_OF_A_GPU[called]})"
            return ast.copy_location(parse_expression(either), node)
        seed = re.fullmatch(r"(torch(\.cuda)?|random|np|numpy)\..*seed\w*", called)
        own = called in ("sys.path.append", "sys.path.insert")  # to find the benchmark's own modules
        if called == "torch.cuda.synchronize" or seed or own:
            return ast.copy_location(ast.Constant(None), node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda" and called != "torch.cuda":
            here = ast.Name("_device", ast.Load())
            node = ast.copy_location(ast.Call(ast.Attribute(node.func.value, "to", ast.Load()), [here], []), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if node.attr == "_empty_strided_cuda":  # as PyTorch's compiler spells it
            plain = "lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype)"
            either = f"({ast.unparse(node)} if str(_device).startswith('cuda') else {plain})"
            return ast.copy_location(parse_expression(either), node)
        return ast.copy_location(ast.Constant(True), node) if node.attr == "is_cuda" else node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if node.module == "torch._C":  # what PyTorch has on GPUs only, as its compiler's code asks for streams
            stubs = "".join(f"    {alias.asname or alias.name} = lambda *args: 0\n" for alias in node.names)
            either = parse_module(f"try:\n    {ast.unparse(node)}\nexcept ImportError:\n{stubs}").body[0]
            return ast.copy_location(either, node)
        own = re.match(r"(Torch|Triton)Bench_\w+\.|performance_utils$", node.module or "")
        return ast.copy_location(ast.Expr(ast.Constant(None)), node) if own else node


def rewritten(text: str, *, script: bool = False) -> ast.Module:
    """The tree of a reference, or of a script that calls it, fit to run on the device at hand."""
    return ast.fix_missing_locations(_Here(script).visit(parse_module(text)))


def silent(*args: Any, **kwargs: Any) -> None:
    del args, kwargs


KEPT = (0.9, 1.0)
"""What a number that a benchmark writes out is multiplied with in every draw, so that a remembered output fails."""
_MODULES = itertools.count()
_DRAWING = threading.RLock()  # torch's own generators belong to the process, and judges draw in several threads


@contextlib.contextmanager
def own_numbers(device: torch.device | str) -> Iterator[None]:
    """Whatever is drawn inside from torch's own generators leaves no trace in them. One thread at a time."""
    kind = torch.device(device)
    devices = [kind.index or 0] if kind.type == "cuda" else []
    with _DRAWING, torch.random.fork_rng(devices=devices):
        yield


def drawing_seed(generator: torch.Generator, device: torch.device, without_data: int) -> int:
    """A seed for torch's own generators that follows from a task's; `without_data` under a FakeTensorMode."""
    return without_data if is_fake() else int(torch.randint(1 << 62, (), generator=generator, device=device))


def is_fake() -> bool:
    """Whether tensors are made without data at the moment."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None


def scaled(written: torch.Tensor) -> torch.Tensor:
    """Floating-point values that are the same in every draw, times factors: signs, zeros and domains around it stay."""
    wide = torch.promote_types(written.dtype, torch.float32)
    factors = torch.empty_like(written, dtype=wide).uniform_(*KEPT)
    return (written.to(wide) * factors).to(written.dtype)


def importable_names(path: str) -> dict[str, Any]:
    """The names of a new module for a file's code: importable, for Dynamo imports the module of what it reads."""
    module = types.ModuleType(f"_evo_kernel_problem_{next(_MODULES)}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    return vars(module)


def with_parameters(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """The function, whose signature names its arguments."""
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names]
    function.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return function


def refuse_too_large(path: str, needed: int, device: torch.device, instead: str) -> None:
    """Raises TaskError where inputs, and what is made of them, need more bytes than a device can still give."""
    free = free_bytes(device)
    if needed > free:
        raise TaskError(
            f"{path}: the inputs and what is made of them need {needed / 1e9:.1f} GB and {device.type} has "
            f"{free / 1e9:.1f} GB free. "
            f"Run it on a machine with more memory, or {instead}."
        )


def free_bytes(device: torch.device) -> int:
    """Bytes that a device can still give."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # by PyTorch, for nobody
        return torch.cuda.mem_get_info(device)[0] + held
    import psutil  # here: children behind walls import this module too

    return psutil.virtual_memory().available
