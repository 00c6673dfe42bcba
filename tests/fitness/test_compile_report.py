"""What `compile` tells of machine code: resources, loops by source line, the assembler's warnings, listings."""

from __future__ import annotations

from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.compile.machine_code import code_words
from evo_kernel.fitness.plan.launch_plan import Binary
from evo_kernel.fitness.profiling.compile_report import warnings_of
from tests.fitness.handmade import matmul_plan
from tests.support.commands import evo, evo_main, told

MATMUL = """
import torch
import triton
import triton.language as tl

WARPS = 8


@triton.jit
def product(a_ptr, b_ptr, c_ptr, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, cols = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, k, BK):
        inner = start + tl.arange(0, BK)
        a = tl.load(a_ptr + rows[:, None] * k + inner[None, :])
        b = tl.load(b_ptr + inner[:, None] * n + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc.to(tl.bfloat16))


def run(a, b):
    c = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(a.shape[0], 128), triton.cdiv(b.shape[1], 256))
    product[grid](a, b, c, b.shape[1], a.shape[1], BM=128, BN=256, BK=64, num_warps=WARPS, num_stages=3)
    return c
"""


def test_loops_have_lines_and_what_the_assembler_warns_of_is_told(tmp_path):
    (tmp_path / "mm.py").write_text(MATMUL)
    ended = evo(
        "compile", tmp_path / "mm.py", "--task", "matmul", "--case", "m64-n64-k64", "--device", "cpu", "--ptx", "--sass",
        "--knobs", "WARPS=8", "--knobs", "WARPS=4", "--knobs", "WARPS=3", "--json",
    )  # fmt: skip
    assert ended.exit_code == 1, ended.output
    good, spilling, broken = told(ended)
    assert [one["setting"] for one in (good, spilling, broken)] == [{"WARPS": n} for n in (8, 4, 3)]
    assert broken["fault"].startswith("build_error: ") and not broken["kernels"] and not good["fault"]
    (kernel,) = good["kernels"]
    assert (kernel["name"], kernel["num_warps"], kernel["tensor_core"], kernel["spill_bytes"]) == (
        "product",
        8,
        "wgmma",
        0,
    )
    assert kernel["instructions"]["wgmma"] >= 4 and not kernel["warnings"] and kernel["blocks_per_sm"] == 1
    line = MATMUL.splitlines().index("    for start in range(0, k, BK):") + 1
    (loop,) = [loop for loop in kernel["loops"] if loop["instructions"].get("wgmma")]
    assert (loop["file"], loop["line"], loop["text"]) == ("kernel.py", line, "for start in range(0, k, BK):")
    assert f"# line {line + 4}\n" in kernel["sass"] and "HGMMA" in kernel["sass"] and "wgmma.mma_async" in kernel["ptx"]
    (kernel,) = spilling["kernels"]
    assert kernel["spill_bytes"] > 100 and kernel["instructions"]["spill"] > 10
    (warning,) = kernel["warnings"]
    assert "wgmma" in warning and "serialized" in warning and warning.endswith(f"of the PTX (line {line + 4})")


def test_lines_change_no_code():
    kernel = matmul_plan(64, 64, 64, (64, 64, 32)).kernels[0]
    made = []
    for explain in (False, True):
        compiler = Compiler(90, 60.0, explain=explain)
        made += compiler.compile([kernel])
        assert list(compiler.explanations) == [kernel.key] * explain
        compiler.close()
    plain, explained = made
    assert isinstance(plain, Binary) and isinstance(explained, Binary)
    assert code_words(plain.cubin)[1] == code_words(explained.cubin)[1] and plain.cubin != explained.cubin
    assert plain.model_dump(exclude={"cubin", "code_hash"}) == explained.model_dump(exclude={"cubin", "code_hash"})


def test_cuda_code_without_a_gpu_is_compiled_with_lines():
    seed = "evo_kernel/tasks/builtin/softmax/seed_cuda.py"
    ended = evo_main("compile", seed, "--task", "softmax", "--device", "cpu")
    assert ended.returncode == 0, ended.stderr
    assert "softmax_kernel  grid 4096, 8 warps; NVRTC" in ended.stdout and "0 B spilled" in ended.stdout
    assert (
        "kernel.cu:27 `for (int i = threadIdx.x; i < columns; i += blockDim.x) peak = largest(peak, x[i]);`"
        in ended.stdout
    )


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirement.
ptxas /tmp/x.ptx, line 4; warning : Value of threads per SM is out of range
ptxas-blackwell info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in line 4
ptxas-blackwell info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in line 4
ptxas info    : Used 168 registers
"""
PTX = """.loc 1 7 3 // kernel.py:7:3
.loc 2 90 1, function_name $str, inlined_at 1 8 5
add.s32 %r1, %r2, %r3;
wgmma.mma_async
.file 1 "/tmp/candidate_0_0/kernel.py"
.file 2 "/site-packages/triton/language/standard.py"
"""


def test_warnings_are_told_apart_from_statistics_and_name_source_lines():
    assert warnings_of(LOG, PTX) == (
        "(C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirement.",
        "Value of threads per SM is out of range",
        "(C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in line 4 of the PTX (line 8)",
    )
    assert warnings_of(LOG, "")[2].endswith("in line 4"), "nothing is made up where the PTX has no lines"
