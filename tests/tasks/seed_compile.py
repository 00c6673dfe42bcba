"""A child process: compile what seeds launch for sm_90, with no GPU, for as long as it is asked (tests/tasks/children.py).

Each line of its input is JSON, {"seed": path, "specs": list of input lists}: an input is [dtype, shape], or [dtype,
shape, values] where the host knows them, or a number. It answers with a list of launches: kernel's name, grid, bytes of
machine code and of shared memory. Only the first launch of each kernel is compiled: code and shared are those of it.
"""

import importlib.util
import os

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from tests.tasks.children import answer

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int64: "*i64"}
POINTERS |= {torch.int32: "*i32", torch.uint8: "*u8", torch.int8: "*i8", torch.float8_e4m3fn: "*fp8e4nv"}
launches = []
compiled = {}


def type_of(value):
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def launch(kernel, *args, grid, warmup, num_warps=4, num_stages=3, **named):
    values = dict(zip(kernel.arg_names, args, strict=False)) | named
    constants = {p.name: values[p.name] for p in kernel.params if p.is_constexpr}
    types = {name: "constexpr" if name in constants else type_of(values[name]) for name in kernel.arg_names}
    if kernel not in compiled:
        built = triton.compile(
            ASTSource(kernel, types, constants),
            target=GPUTarget("cuda", 90, 32),
            options={"num_warps": num_warps, "num_stages": num_stages},
        )
        compiled[kernel] = {"code": len(built.asm["cubin"]), "shared": built.metadata.shared}
    launches.append({"kernel": kernel.__name__, "grid": list(grid), **compiled[kernel]})


def made(spec):
    """An input: without memory unless the host knows its values."""
    if not isinstance(spec, list):
        return spec
    dtype = getattr(torch, spec[0])
    return torch.tensor(spec[2], dtype=dtype) if len(spec) > 2 else torch.empty(spec[1], dtype=dtype, device="meta")


def compile_seed(seed, specs):
    launches.clear()
    compiled.clear()
    spec = importlib.util.spec_from_file_location("seed", seed)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for inputs in specs:
        module.run(*map(made, inputs))
    return launches


if __name__ == "__main__":
    JITFunction.run = launch
    answer(compile_seed)
