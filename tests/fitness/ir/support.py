"""Running IR over CPU tensors as the judge would: strict memory, every finding told."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import make_backend

from evo_kernel.fitness.ir.execute import Launched, launch
from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.plan.launch_plan import Pointer, Scalar
from evo_kernel.fitness.record.launches import lower

torch.set_num_threads(1)

KINDS = {
    torch.float64: "fp64", torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "i1",
    torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5",
}  # fmt: skip
ELEMENTS = {
    torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.bool: "i1", torch.float8_e4m3fn: "f8E4M3FN",
    torch.float8_e5m2: "f8E5M2",
}  # fmt: skip


def lowered(kernel: Any, *args: Any, **constants: Any) -> str:
    """IR of a jitted function for these arguments; `constants` are its constexprs."""
    backend = make_backend(GPUTarget("cuda", 90, 32))
    kinds = [f"*{KINDS[a.dtype]}" if isinstance(a, torch.Tensor) else _scalar_kind(a) for a in args]
    signature = dict(zip(kernel.arg_names, kinds, strict=False)) | dict.fromkeys(constants, "constexpr")
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    return lower(kernel, backend, backend.parse_options({}), signature, values, {})


def _scalar_kind(value: Any) -> str:
    return "fp32" if isinstance(value, float) else "i32"


def run(kernel: Any, grid: int, *args: Any, scratch: Collection[int] = (), reverse: bool = False, seed: int = 0,
        shuffled: bool = False, **constants: Any) -> Launched:  # fmt: skip
    """One launch of IR or of a jitted function. Tensors are changed in place; those of `scratch` start undefined."""
    text = kernel if isinstance(kernel, str) else lowered(kernel, *args, **constants)
    memory, passed = DeviceMemory(), []
    for index, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            number = memory.add(value.numel() * value.element_size(), defined=index not in scratch)
            if index not in scratch:
                memory.buffers[number].data.copy_(value.reshape(-1).view(torch.uint8))
            passed.append(Pointer(buffer=number))
        else:
            passed.append(Scalar(type=_scalar_kind(value), value=value))
    done = launch(parse(text), (grid, 1, 1), passed, memory, seed=seed, reverse=reverse, shuffled=shuffled)
    tensors = [value for value in args if isinstance(value, torch.Tensor)]
    for value, buffer in zip(tensors, memory.buffers, strict=True):
        value.reshape(-1).view(torch.uint8).copy_(buffer.data)
    return done


def fine(kernel: Any, grid: int, *args: Any, **named: Any) -> None:
    done = run(kernel, grid, *args, **named)
    assert done.finding is None, done.finding.sentence


def fault(kernel: Any, grid: int, *args: Any, **named: Any) -> str:
    """The kind of what a launch is found to do; empty for nothing."""
    found = run(kernel, grid, *args, **named).finding
    return "" if found is None else found.kind


def pointwise(operation: str, *inputs: torch.Tensor, out: torch.dtype, undefined: bool = False) -> torch.Tensor:
    """What an operation makes of equally long vectors: `operation` with {0}, {1} for operands and {t}, {r} for types."""
    size = inputs[0].numel()
    elements = [*(ELEMENTS[value.dtype] for value in inputs), ELEMENTS[out]]
    lines = [f"%o = tt.make_range {{end = {size} : i32, start = 0 : i32}} : tensor<{size}xi32>"]
    for number, element in enumerate(elements):
        pointers = f"tensor<{size}x!tt.ptr<{element}>>"
        lines.append(f"%s{number} = tt.splat %a{number} : !tt.ptr<{element}> -> {pointers}")
        lines.append(f"%p{number} = tt.addptr %s{number}, %o : {pointers}, tensor<{size}xi32>")
        if number < len(inputs):
            lines.append(f"%v{number} = tt.load %p{number} : {pointers}")
    types = {"t": f"tensor<{size}x{elements[0]}>", "r": f"tensor<{size}x{elements[-1]}>"}
    lines.append("%r = " + operation.format(*(f"%v{n}" for n in range(len(inputs))), **types))
    last = len(inputs)
    lines.append(f"tt.store %p{last}, %r : tensor<{size}x!tt.ptr<{elements[-1]}>>")
    parameters = ", ".join(f"%a{number}: !tt.ptr<{element}>" for number, element in enumerate(elements))
    text = f"module {{\ntt.func public @k({parameters}) {{\n" + "\n".join([*lines, "tt.return", "}", "}"])
    made = torch.zeros(size, dtype=out)
    fine(text, 1, *inputs, made)
    return made
