"""Executing a launch plan on the CPU, in Triton's interpreter.

Runs in a clean confined child with TRITON_INTERPRET=1. Only the kernel text that the plan carries is executed, with
the plan's arguments; programs run one after another in a drawn order, so that a kernel that leans on an order which no
GPU promises is found. Kernels with atomics run in launch order: they may wait for each other.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import math
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

from evo_kernel.fitness.interpreting import device_functions
from evo_kernel.fitness.interpreting.emulation import Builder, Handle, KernelFault, Memory, NotInterpretable, install
from evo_kernel.fitness.plan import (
    Aten,
    Constant,
    Copy,
    Descriptor,
    Fill,
    Kernel,
    Launch,
    Plan,
    Pointer,
    Scalar,
    View,
)

_SCALARS = {
    "u1": tl.int1, "i1": tl.int1, "i8": tl.int8, "i16": tl.int16, "i32": tl.int32, "i64": tl.int64, "u8": tl.uint8,
    "u16": tl.uint16, "u32": tl.uint32, "u64": tl.uint64, "fp16": tl.float16, "bf16": tl.bfloat16,
    "fp32": tl.float32, "f32": tl.float32, "fp64": tl.float64, "f64": tl.float64,
}  # fmt: skip
_TEXT_FILE = "interpreted_kernel_"
_LANGUAGES = {"gluon": "Gluon", "cuda": "CUDA C++"}
_POINTED = {
    "float64": tl.float64, "float32": tl.float32, "float16": tl.float16, "bfloat16": tl.bfloat16,
    "float8_e4m3fn": tl.float8e4nv, "float8_e5m2": tl.float8e5, "int64": tl.int64, "int32": tl.int32,
    "int16": tl.int16, "int8": tl.int8, "uint8": tl.uint8, "uint16": tl.uint16, "uint32": tl.uint32,
    "uint64": tl.uint64, "bool": tl.int1,
}  # fmt: skip


def execute(plan: Plan, buffers: Sequence[torch.Tensor], folder: Path, seed: int = 0) -> None:
    """Run a plan's nodes in order over `buffers`, in place.

    `buffers` are one-dimensional uint8 tensors on the CPU, one a buffer of the plan and of its size: inputs filled,
    scratch poisoned. `folder` is scratch for kernel text, which Triton wants in real files. Raises KernelFault for what
    the kernel does wrong and NotInterpretable for what only a GPU can execute; both messages are for users.
    """
    machine = Machine(plan, folder)
    for index, buffer in enumerate(buffers):
        machine.memory.of(index).copy_(buffer)
    order = np.random.default_rng(seed)
    # What a kernel computes out of range (0/0, overflow) is its own affair: warnings would only fill a pipe.
    with np.errstate(all="ignore"):
        for node in plan.nodes:
            if isinstance(node, Launch):
                machine.launch(node, _programs(plan.kernels[node.kernel], node.grid, order))
            elif isinstance(node, Fill):
                machine.view(node.view).fill_(node.value)
            elif isinstance(node, Copy):
                machine.view(node.target).copy_(machine.view(node.source))
            elif isinstance(node, Constant):
                machine.view(node.view).copy_(table_of(node))
            else:
                _replay(node, machine.view)
    for index, buffer in enumerate(buffers):
        buffer.copy_(machine.memory.of(index))


def _programs(kernel: Kernel, grid: tuple[int, int, int], order: np.random.Generator) -> Iterator[tuple[int, int, int]]:
    if "atomic" in kernel.code:
        yield from itertools.product(range(grid[0]), range(grid[1]), range(grid[2]))
        return
    for number in order.permutation(math.prod(grid)):
        x, y, z = np.unravel_index(int(number), grid)
        yield int(x), int(y), int(z)


@dataclass(frozen=True)
class Bound:
    """A kernel ready to run: call `function(**arguments)` once a program."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]


class Machine:
    """A plan's memory, and its kernels loaded into the interpreter."""

    def __init__(self, plan: Plan, folder: Path, make_builder: Callable[..., Builder] = Builder) -> None:
        self.plan, self._folder, self._make_builder = plan, folder, make_builder
        self.memory = Memory([buffer.bytes for buffer in plan.buffers], _names(plan))
        self._modules: dict[int, Any] = {}

    def view(self, view: View) -> torch.Tensor:
        """A torch tensor over a buffer."""
        return view_of(self.memory.of(view.buffer), view)

    def launch(self, launch: Launch, programs: Iterator[tuple[int, int, int]]) -> None:
        """Run some programs of a launch. Raises KernelFault, NotInterpretable."""
        builder, bound = self.bind(launch)
        for program in programs:
            self.program(builder, bound, program)

    def bind(self, launch: Launch) -> tuple[Builder, Bound]:
        """Install a builder for a launch and convert its arguments."""
        kernel = self.plan.kernels[launch.kernel]
        if kernel.language != "triton":
            raise NotInterpretable(
                f"kernel {kernel.name} is written in {_LANGUAGES[kernel.language]}, which only a GPU executes; a judge "
                "with one decides it (--device cuda)"
            )
        builder = self._make_builder(self.memory, dict(kernel.options), f"kernel {kernel.name}")
        install(builder)
        builder.set_grid_dim(*launch.grid)
        module = self._module(launch.kernel)
        function = getattr(module, kernel.name, None)
        if not isinstance(function, interpreter.InterpretedFunction):
            raise KernelFault(f"the text of kernel {kernel.name} does not define it as a jitted function")
        return builder, Bound(function.rewrite(), self._arguments(kernel, launch, function, module))

    def program(self, builder: Builder, bound: Bound, program: tuple[int, int, int]) -> None:
        """Run one program."""
        builder.set_grid_idx(*program)
        try:
            bound.function(**bound.arguments)
        # A kernel's body is arbitrary Python here: whatever it raises is a fault of the kernel.
        except Exception as error:
            raise _explained(error, f"{builder.kernel}, program {program}") from error

    def _module(self, index: int) -> Any:
        if index not in self._modules:
            kernel = self.plan.kernels[index]
            name = f"{_TEXT_FILE}{index}"
            path = self._folder / f"{name}.py"
            path.write_text(kernel.code, encoding="utf-8")
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            module.__dict__["range"] = functools.partial(device_functions.counted, interpreter)
            sys.modules[name] = module
            try:
                spec.loader.exec_module(module)
            # The text may raise anything while it is executed.
            except Exception as error:
                raise _explained(error, f"the text of kernel {kernel.name}") from error
            self._modules[index] = module
        return self._modules[index]

    def _arguments(self, kernel: Kernel, launch: Launch, function: Any, module: Any) -> dict[str, Any]:
        constants: dict[int, Any] = {}
        given = iter(launch.args)
        parameters = getattr(function, "signature", None) or _signature(function)
        arguments: dict[str, Any] = {}
        for index, (name, kind) in enumerate(kernel.signature):
            if kind != "constexpr":
                arguments[name] = self._argument(next(given), kind)
                continue
            value = _constant(constants.get(index), module)
            declared = "constexpr" in str(parameters.parameters[name].annotation)
            arguments[name] = value if declared else interpreter._implicit_cvt(value)
        return arguments

    def _argument(self, arg: Any, kind: str) -> Any:
        if isinstance(arg, Scalar):
            return _number(arg.value, _SCALARS[arg.type])
        address = int(self.memory.starts[arg.buffer]) + arg.offset
        if isinstance(arg, Pointer):
            return _typed(np.array([address], dtype=np.uint64), tl.str_to_ty(kind, None))
        assert isinstance(arg, Descriptor)
        strides: list[Any] = [_number(s, tl.int64) for s in arg.strides[:-1]]
        return interpreter.interpreter_semantic.make_tensor_descriptor(
            base=_typed(np.array([address], dtype=np.uint64), tl.pointer_type(_POINTED[arg.dtype])),
            shape=[_number(s, tl.int32) for s in arg.shape],
            strides=[*strides, tl.constexpr(1)],
            block_shape=[tl.constexpr(size) for size in arg.block],
            padding_option=arg.padding,
        )


def view_of(storage: torch.Tensor, view: View) -> torch.Tensor:
    """A view of a plan over the bytes of its buffer."""
    dtype = getattr(torch, view.dtype)
    usable = storage.numel() // view.item_bytes * view.item_bytes
    return torch.as_strided(storage[:usable].view(dtype), view.shape, view.strides, view.offset)


def table_of(node: Constant) -> torch.Tensor:
    """A constant table as a tensor on the CPU."""
    data = torch.frombuffer(bytearray(node.content), dtype=torch.uint8) if node.data else torch.empty(0)
    return data.view(getattr(torch, node.view.dtype)).reshape(node.view.shape)


def _names(plan: Plan) -> list[str]:
    names = [f"scratch buffer {index}" for index in range(len(plan.buffers))]
    for number, view in enumerate(plan.outputs):
        names[view.buffer] = f"output {number}"
    for number, view in enumerate(plan.inputs):
        if view is not None:
            names[view.buffer] = f"input {number}"
    return names


def _signature(function: Any) -> Any:
    import inspect

    return inspect.signature(function.fn)


def _typed(data: np.ndarray, dtype: Any) -> Any:
    return tl.tensor(Handle(data, dtype), dtype)


def _number(value: Any, dtype: Any) -> Any:
    if dtype == tl.bfloat16:
        return _typed(interpreter.interpreter_builder.get_bf16(value).data, dtype)
    kind = interpreter._get_np_dtype(dtype)
    return _typed(np.array([value]).astype(kind) if kind.kind == "f" else np.array([value], dtype=kind), dtype)


def _constant(value: Any, module: Any) -> Any:
    """A constexpr argument from its JSON form."""
    if isinstance(value, dict):
        if "dtype" in value:
            return tl.dtype(value["dtype"])
        if "float" in value:
            return float(value["float"])
        if "tuple" in value:
            return tuple(_constant(item, module) for item in value["tuple"])
        if "function" in value:
            return getattr(module, value["function"])
    return tuple(_constant(item, module) for item in value) if isinstance(value, list) else value


def _explained(error: Exception, where: str) -> Exception:
    """The fault behind an exception: the interpreter wraps what is raised once a function call."""
    inner: BaseException | None = error
    last: BaseException = error
    while inner is not None:
        if isinstance(inner, (KernelFault, NotInterpretable)):
            return inner
        if isinstance(inner, NotImplementedError):
            return NotInterpretable(f"{where}: {inner}")
        last, inner = inner, inner.__cause__ or inner.__context__
    text = str(last).strip().splitlines()
    return KernelFault(
        f"{where} fails{_line_of(error)}: {type(last).__name__}: {text[0][:400] if text else ''}", of_text=True
    )


def _line_of(error: BaseException) -> str:
    """The innermost line of kernel text that an exception passed through, quoted; empty where there is none.

    A kernel's text is cut out of its module, so a line number would mean nothing to its author.
    """
    found, seen = "", error
    while seen is not None:
        for frame in traceback.extract_tb(seen.__traceback__):
            if Path(frame.filename).name.startswith(_TEXT_FILE) and frame.line:
                found = f" at `{frame.line[:160]}`"
        seen = seen.__cause__ or seen.__context__
    return found


def _replay(node: Aten, view: Callable[[View], torch.Tensor]) -> None:
    """Run a torch operation of a plan whose task allows them, and leave its results where the plan has them."""
    _, name, overload = node.op.split(".")
    operation = getattr(getattr(torch.ops.aten, name), overload)
    tensors = [view(v) for v in node.views]

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            if "view" in value:
                return tensors[value["view"]]
            if "dtype" in value:
                return getattr(torch, value["dtype"])
            if "torch" in value:
                return getattr(torch, value["torch"])
            return torch.device("cpu")
        return [plain(item) for item in value] if isinstance(value, list) else value

    try:
        result = operation(*plain(node.args), **{key: plain(value) for key, value in node.kwargs.items()})
    except RuntimeError as error:
        raise KernelFault(f"{node.op} fails: {str(error).splitlines()[0]}") from error
    results = result if isinstance(result, (tuple, list)) else [result]
    for made, wanted in zip(results, node.outputs, strict=True):
        if wanted is not None and isinstance(made, torch.Tensor):
            place = view(wanted)
            if place.data_ptr() != made.data_ptr() or place.stride() != made.stride():
                place.copy_(made)
