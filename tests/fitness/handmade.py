"""Launch plans made by hand, and their binaries: what the recorder and the compiler write, without either.

Used by the tests of the CPU runner, the machine-code reader and the time model.
"""

from __future__ import annotations

import base64
import importlib.util
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from evo_kernel.fitness.ir import count_launch
from evo_kernel.fitness.ir.execute import Launched
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic
from evo_kernel.fitness.ir.module import IRModule
from evo_kernel.fitness.ir.nodes import memory_of, run_nodes
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.plan.launch_plan import (
    Binary,
    Buffer,
    CompiledPlan,
    Kernel,
    Launch,
    Plan,
    Pointer,
    Scalar,
    View,
)

HEADER = "import triton\nimport triton.language as tl\n\n\n"

SOFTMAX = (
    HEADER
    + """@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, x_stride, y_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    mask = columns < n_cols
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(y_ptr + row * y_stride + columns, e / tl.sum(e, axis=0), mask=mask)
"""
)

SOFTMAX_THREE_PASSES = (
    HEADER
    + """@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, x_stride, y_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    peak = -float("inf")
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + columns, mask=columns < n_cols, other=-float("inf"))
        peak = tl.maximum(peak, tl.max(x, axis=0))
    total = 0.0
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + columns, mask=columns < n_cols, other=-float("inf"))
        total += tl.sum(tl.exp(x - peak), axis=0)
    for start in range(0, n_cols, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        mask = columns < n_cols
        x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=-float("inf"))
        tl.store(y_ptr + row * y_stride + columns, tl.exp(x - peak) / total, mask=mask)
"""
)

MATMUL = (
    HEADER
    + """@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, m, n, k, a_stride, b_stride, c_stride,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    width = GROUP * tiles_n
    first = (pid // width) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    tile_m = first + (pid % width) % height
    tile_n = (pid % width) // height
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * a_stride + inner[None, :]
    b_ptrs = b_ptr + inner[:, None] * b_stride + columns[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        a = tl.load(a_ptrs, mask=(rows[:, None] < m) & (inner[None, :] < k - start), other=0.0)
        b = tl.load(b_ptrs, mask=(inner[:, None] < k - start) & (columns[None, :] < n), other=0.0)
        total += tl.dot(a, b)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * b_stride
    c_ptrs = c_ptr + rows[:, None] * c_stride + columns[None, :]
    tl.store(c_ptrs, total.to(c_ptr.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))
"""
)


def empty_ir(name: str, kinds: Sequence[str]) -> str:
    """IR of a kernel that does nothing, for parameters of these kinds."""
    plain = {"fp16": "f16", "fp32": "f32", "fp64": "f64", "u1": "i1", "u32": "i32", "u64": "i64"}
    types: list[str] = []
    for kind in kinds:
        if kind.startswith("tensordesc"):
            rank = kind.count(",") + 1
            types += ["!tt.tensordesc<64x64xbf16>", *["i32"] * rank, *["i64"] * rank]
        else:
            types.append("!tt.ptr<f32>" if kind.startswith("*") else plain.get(kind, kind))
    parameters = ", ".join(f"%arg{i}: {type}" for i, type in enumerate(types))
    return f"module {{\n  tt.func public @{name}({parameters}) attributes {{noinline = false}} {{\n    tt.return\n  }}\n}}\n"


@cache
def lowered(text: str, name: str, kinds: tuple[tuple[str, str], ...], constants: tuple[int, ...],
            divisible: tuple[int, ...] = (), options: tuple[tuple[str, Any], ...] = ()) -> Kernel:  # fmt: skip
    """The kernel `name` of a module's text, as a recording has it. `kinds` of parameters, the last ones constants.

    `divisible`: parameters, by index, that are multiples of 16.
    """
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import make_backend

    from evo_kernel.fitness.record.launches import lower

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location("kernel", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        backend = make_backend(GPUTarget("cuda", 90, 32))
        first = len(kinds) - len(constants)
        code = lower(
            getattr(module, name), backend, backend.parse_options(dict(options)), dict(kinds),
            {(first + i,): value for i, value in enumerate(constants)},
            {(index,): [["tt.divisibility", 16]] for index in divisible},
        )  # fmt: skip
    return Kernel(name=name, code=code, signature=kinds[:first], options=options)


def softmax_plan(
    rows: int, columns: int, block: int | None = None, text: str = "", num_warps: int = 4, name: str = "softmax_kernel"
) -> Plan:
    """fp32 row softmax, one program a row; without `block` in one pass."""
    if block is None:
        block = 1 << (columns - 1).bit_length()
        text = text or SOFTMAX
    kinds = (("x_ptr", "*fp32"), ("y_ptr", "*fp32"), ("n_cols", "i32"), ("x_stride", "i32"), ("y_stride", "i32"))
    kernel = lowered(
        text or SOFTMAX_THREE_PASSES, name, (*kinds, ("BLOCK", "constexpr")), (block,),
        (0, 1, *((2, 3, 4) if columns % 16 == 0 else ())), (("num_warps", num_warps),),
    )  # fmt: skip
    sizes = tuple(Scalar(type="i32", value=columns) for _ in range(3))
    launch = Launch(kernel=0, grid=(rows, 1, 1), args=(Pointer(buffer=0), Pointer(buffer=1), *sizes))
    views = [View(buffer=i, dtype="float32", shape=(rows, columns), strides=(columns, 1)) for i in (0, 1)]
    count = rows * columns * 4
    return Plan(
        case=f"{rows}x{columns}",
        target=90,
        inputs=(views[0],),
        buffers=(Buffer(kind="input", bytes=count), Buffer(kind="scratch", bytes=count)),
        kernels=(kernel,),
        nodes=(launch,),
        outputs=(views[1],),
    )


def matmul_plan(
    m: int, n: int, k: int, block: tuple[int, int, int], dtype: str = "bfloat16",
    num_warps: int = 4, num_stages: int = 3, group: int = 1, text: str = MATMUL, name: str = "matmul_kernel",
    num_ctas: int = 1,
) -> Plan:  # fmt: skip
    """C = A @ B, row-major, output in the dtype of the inputs, accumulated in fp32."""
    item = 2 if dtype in ("bfloat16", "float16") else 4
    pointer = {"bfloat16": "*bf16", "float16": "*fp16", "float32": "*fp32"}[dtype]
    names = ("m", "n", "k", "a_stride", "b_stride", "c_stride")
    values = (m, n, k, k, n, n)
    kinds = (
        *((pointed, pointer) for pointed in ("a_ptr", "b_ptr", "c_ptr")),
        *((size, "i32") for size in names),
        *((constant, "constexpr") for constant in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP")),
    )
    divisible = (0, 1, 2, *(3 + i for i, value in enumerate(values) if value % 16 == 0))
    options = (("num_warps", num_warps), ("num_stages", num_stages), ("num_ctas", num_ctas))
    kernel = lowered(text, name, kinds, (*block, group), divisible, options)
    grid = (-(-m // block[0]) * -(-n // block[1]), 1, 1)
    args = (*(Pointer(buffer=i) for i in range(3)), *(Scalar(type="i32", value=value) for value in values))
    shapes = ((m, k), (k, n), (m, n))
    views = [View(buffer=i, dtype=dtype, shape=s, strides=(s[1], 1)) for i, s in enumerate(shapes)]  # type: ignore[arg-type]
    kinds = ("input", "input", "scratch")
    return Plan(
        case=f"{m}x{n}x{k}",
        target=90,
        inputs=tuple(views[:2]),
        buffers=tuple(Buffer(kind=kind, bytes=s[0] * s[1] * item) for kind, s in zip(kinds, shapes, strict=True)),  # type: ignore[arg-type]
        kernels=(kernel,),
        nodes=(Launch(kernel=0, grid=grid, args=args),),
        outputs=(views[2],),
    )


def compile_kernel(kernel: Kernel, arch: int = 90) -> dict[str, Any]:
    """What the compiler's child answers for a kernel: "metadata", "cubin" (bytes) and "ir". Line information off."""
    from evo_kernel.fitness.compile.child import compile_ir

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRITON_DISABLE_LINE_INFO", "1")
        patched.setenv("TRITON_CACHE_DIR", folder)
        made = compile_ir(kernel.model_dump(mode="json"), arch, folder)
        return made | {"cubin": base64.b64decode(made["cubin"])}


def compiled_plan(plan: Plan) -> CompiledPlan:
    """The plan with binaries as the compiler writes them."""
    from evo_kernel.fitness.compile import instructions, machine_code

    binaries = []
    for kernel in plan.kernels:
        made = compile_kernel(kernel, plan.target)
        cubin, metadata = made["cubin"], made["metadata"]
        used = machine_code.resources(cubin)
        binaries.append(
            Binary(
                key=kernel.key, ir=made["ir"], symbol=metadata["name"], cubin=cubin,
                code_hash=machine_code.code_hash(cubin), num_warps=metadata["num_warps"], num_ctas=metadata["num_ctas"],
                shared_bytes=metadata["shared"], registers=used.registers, spill_bytes=used.spill_bytes,
                parameter_bytes=machine_code.parameter_bytes(cubin),
                instructions=dict(instructions.instruction_counts(cubin)), loops=instructions.loops(cubin),
            )
        )  # fmt: skip
    return CompiledPlan(plan=plan, binaries=tuple(binaries))


def counted_traffic(plan: Plan) -> list[LaunchTraffic]:
    """Traffic of a plan as the executor counts it, with inputs of zeros."""
    modules = [parse(kernel.code) for kernel in plan.kernels]
    memory = memory_of(plan, {n: torch.zeros(b.bytes, dtype=torch.uint8) for n, b in enumerate(plan.buffers)})
    made: list[LaunchTraffic] = []

    def run(number: int, module: IRModule, node: Launch) -> Launched:
        found = count_launch.count(module, node, memory, float("inf"), complete=True)
        assert isinstance(found, LaunchTraffic), found
        made.append(found)
        return Launched()

    assert run_nodes(plan, memory, modules, run) is None
    return made
