"""A child process: compile every kernel that a seed launches for sm_90, with no GPU.

    python -P seed_compile.py SEED SPECS

SPECS is a JSON list of input lists, each input [dtype, shape], or [dtype, shape, values] where the host knows them, or a
number.
Prints a JSON list: per launch its kernel's name, grid, bytes of machine code and shared memory.
"""

import importlib.util
import json
import os
import sys

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int64: "*i64"}
POINTERS[torch.int32] = "*i32"


def type_of(value):
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def made(spec):
    """An input: without memory unless the host knows its values."""
    if not isinstance(spec, list):
        return spec
    dtype = getattr(torch, spec[0])
    return torch.tensor(spec[2], dtype=dtype) if len(spec) > 2 else torch.empty(spec[1], dtype=dtype, device="meta")


def main(seed, specs):
    launches = []

    def launch(kernel, *args, grid, warmup, num_warps=4, num_stages=3, **named):
        values = dict(zip(kernel.arg_names, args, strict=False)) | named
        constants = {p.name: values[p.name] for p in kernel.params if p.is_constexpr}
        types = {name: "constexpr" if name in constants else type_of(values[name]) for name in kernel.arg_names}
        built = triton.compile(
            ASTSource(kernel, types, constants),
            target=GPUTarget("cuda", 90, 32),
            options={"num_warps": num_warps, "num_stages": num_stages},
        )
        name, code = kernel.__name__, len(built.asm["cubin"])
        launches.append({"kernel": name, "grid": list(grid), "code": code, "shared": built.metadata.shared})

    JITFunction.run = launch
    spec = importlib.util.spec_from_file_location("seed", seed)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for inputs in json.loads(specs):
        module.run(*map(made, inputs))
    print(json.dumps(launches))


if __name__ == "__main__":
    main(*sys.argv[1:])
