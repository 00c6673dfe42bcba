"""A child process for the tests of grid rewrites: executes sources without a GPU, or compiles them for sm_90.

    python grid_child.py execute|compile JOBS.json

A job is [path of a source, name of a built-in task]. Prints one JSON list of [value, reason]: the worst error against
a float64 reference relative to its largest value, or a digest of grids and machine code. Executed inputs are fp32.
"""

import hashlib
import importlib.util
import json
import math
import os
import sys
import types
from pathlib import Path
from typing import Any

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
os.environ["TRITON_DISABLE_LINE_INFO"] = "1"

import torch
import triton

from evo_kernel.fitness.ir.jit import install
from evo_kernel.tasks.builtin import text_of

SIGNS = ("wgmma", "mma.sync", "cp.async.bulk.tensor", "cp.async.c")
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.int64: "*i64"}


def load(path, number):
    spec: Any = importlib.util.spec_from_file_location(f"job_{number}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def execute(module, task):
    worst = 0.0
    for number, case in enumerate(task.CASES["check"]):
        drawn = task.inputs(case, torch.Generator().manual_seed(number), "cpu")
        inputs = [t.float() for t in drawn]
        want = task.reference(*[t.double() for t in inputs])
        got = module.run(*[t.clone() for t in inputs]).double()
        error = (got - want).abs().max().item() / want.abs().max().item()
        worst = max(worst, float("inf") if math.isnan(error) else error)
    return worst


def described(kernel, args, named):
    """Types, constants and alignments, as Triton's own launch would find them."""
    values = dict(zip(kernel.arg_names, args, strict=False)) | named
    constants = {p.name: values[p.name] for p in kernel.params if p.is_constexpr}
    constants |= {n: 1 for n, v in values.items() if n in kernel.arg_names and type(v) is int and v == 1}
    kinds, aligned = {}, {}
    for place, name in enumerate(kernel.arg_names):
        value = values[name]
        if name in constants:
            kinds[name] = "constexpr"
            continue
        is_tensor = isinstance(value, torch.Tensor)
        kinds[name] = POINTERS[value.dtype] if is_tensor else "fp32" if isinstance(value, float) else "i32"
        if is_tensor or (type(value) is int and value % 16 == 0):
            aligned[(place,)] = [["tt.divisibility", 16]]
    return kinds, constants, aligned


def compile_all(module, task):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    parts = []

    def launch(kernel, *args, grid, warmup, num_warps=4, num_stages=3, **named):
        kinds, constants, aligned = described(kernel, args, named)
        options = {"num_warps": num_warps, "num_stages": num_stages}
        source = ASTSource(kernel, kinds, constants, aligned)
        built = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        signs = [sign for sign in SIGNS if sign in built.asm["ptx"]]
        code = hashlib.sha256(built.asm["cubin"]).hexdigest()[:12]
        parts.append([kernel.__name__, list(grid), code, signs])

    setattr(triton.runtime.jit.JITFunction, "run", launch)
    with FakeTensorMode():
        case = task.CASES["search"][0]
        drawn = task.inputs(case, None, "cpu")
        module.run(*(drawn if isinstance(drawn, tuple) else (drawn,)))
    return parts


def main(how, jobs):
    torch.set_num_threads(1)
    if how == "execute":
        install()
    answer = types.SimpleNamespace(multi_processor_count=2 if how == "execute" else 132)
    torch.cuda.get_device_properties = lambda device=None: answer
    answers = []
    for number, (path, name) in enumerate(json.loads(Path(jobs).read_text())):
        try:
            task = types.SimpleNamespace()
            exec(text_of(name, "task.py"), vars(task))
            value = (execute if how == "execute" else compile_all)(load(path, number), task)
            answers.append([value, ""])
        except Exception as error:  # noqa: BLE001 whatever the source does is the answer
            answers.append([None, f"{type(error).__name__}: {str(error)[-800:]}"])
    print("ANSWER" + json.dumps(answers))


if __name__ == "__main__":
    main(*sys.argv[1:])
