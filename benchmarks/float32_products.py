"""What float32 matrix products cost in Triton: input precisions, tiles, and the way an operand lies. Needs a GPU.

    python -m benchmarks.float32_products
    python -m benchmarks.float32_products --sums

4096 x 4096 x 4096, a tiled kernel of the shape that lowering writes, 260 settings: compiled by a pool of processes,
then timed one by one (triton.testing.do_bench, median). Prints the five fastest settings and the slowest of each
precision, with the relative Frobenius error against float64, beside torch.mm without TF32. "K": the second operand is
contiguous along the contracted axis, as the weight of a linear layer is; "N": along the columns of the result.

`--sums`: how the error grows with the length of the sums, 256 x K by K x 256, of numbers of one sign (uniform in
[0, 1)) and of both (normal).
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
from functools import partial

import torch
import triton
import triton.language as tl

SIZE = 4096
TILES = {
    "ieee": [(64, 64, 32), (128, 64, 16), (128, 128, 16), (64, 64, 16), (128, 128, 32), (64, 128, 16)],
    "tf32x3": [(64, 64, 32), (128, 64, 32), (128, 128, 32), (128, 256, 32), (128, 128, 16), (64, 128, 32),
               (64, 256, 32), (128, 256, 16)],
    "bf16x6": [(64, 64, 32), (128, 128, 32), (128, 128, 64), (128, 256, 32)],
    "bf16x3": [(128, 128, 32), (128, 128, 64), (128, 256, 32)],
    "tf32": [(128, 128, 32), (128, 256, 32)],
}  # fmt: skip
Setting = tuple[str, str, tuple[int, int, int], int, int]  # layout, precision, tile, warps, stages
SETTINGS: list[Setting] = [
    (layout, precision, tile, warps, stages)
    for layout, (precision, tiles) in itertools.product("KN", TILES.items())
    for tile, warps, stages in itertools.product(tiles, (4, 8), (3,) if precision == "tf32" else (1, 2, 3))
]


@triton.jit
def product_kernel(
    a_ptr, b_ptr, c_ptr, m, n, k, b_stride_k, b_stride_n, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    wide = 8 * tl.cdiv(n, BLOCK_N)
    first = program // wide * 8
    high = tl.minimum(tl.cdiv(m, BLOCK_M) - first, 8)
    rows = (first + (program % wide) % high) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = (program % wide) // high * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, k, BLOCK_K, num_stages=STAGES):
        inner = start + tl.arange(0, BLOCK_K)
        a = tl.load(
            a_ptr + rows[:, None] * k + inner[None, :], mask=(rows[:, None] < m) & (inner[None, :] < k), other=0.0
        )
        b_at = b_ptr + inner[:, None] * b_stride_k + cols[None, :] * b_stride_n
        b = tl.load(b_at, mask=(inner[:, None] < k) & (cols[None, :] < n), other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    tl.store(c_ptr + rows[:, None] * n + cols[None, :], acc, mask=(rows[:, None] < m) & (cols[None, :] < n))


def launch(setting: Setting, a, b, c, warm_up: bool = False, sizes: tuple[int, int, int] = (SIZE, SIZE, SIZE)) -> None:
    layout, precision, (block_m, block_n, block_k), warps, stages = setting
    m, n, k = sizes
    grid = (triton.cdiv(m, block_m) * triton.cdiv(n, block_n),)
    strides = (1, k) if layout == "K" else (n, 1)
    run = (
        (lambda *given, **named: product_kernel.warmup(*given, grid=grid, **named)) if warm_up else product_kernel[grid]
    )
    run(a, b, c, m, n, k, *strides, PRECISION=precision, BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k,
        STAGES=stages, num_warps=warps)  # fmt: skip


def compiles(setting: Setting) -> bool:
    try:
        launch(setting, torch.float32, torch.float32, torch.float32, warm_up=True)
    except Exception:  # noqa: BLE001 (too much shared memory, say)
        return False
    return True


def sums() -> None:
    """Prints the relative Frobenius error against float64, and the median of the signed relative errors, by length."""
    torch.backends.cuda.matmul.allow_tf32 = False
    side = 256
    for signs, draw in (("one sign", torch.rand), ("both signs", torch.randn)):
        for k in (1 << power for power in range(10, 21)):
            a, b = draw(side, k, device="cuda"), draw(side, k, device="cuda")
            exact, c = a.double() @ b.double().t(), torch.empty(side, side, device="cuda")
            said = []
            for precision in ("torch.mm", "ieee", "tf32x3", "bf16x6"):
                if precision == "torch.mm":
                    torch.mm(a, b.t(), out=c)
                else:
                    launch(("K", precision, (64, 64, 32), 4, 1), a, b, c, sizes=(side, side, k))
                away = c - exact
                drift = (away / exact.abs()).median().item()
                said.append(f"{precision} {(away.norm() / exact.norm()).item():.1e} ({drift:+.0e})")
            print(f"{signs}, K {k:7}: {', '.join(said)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sums", action="store_true")
    if parser.parse_args().sums:
        sums()
        return
    with multiprocessing.get_context("spawn").Pool() as pool:
        settings = list(itertools.compress(SETTINGS, pool.map(compiles, SETTINGS, chunksize=2)))
    torch.backends.cuda.matmul.allow_tf32 = False
    a, weight = (torch.randn(SIZE, SIZE, device="cuda") for _ in range(2))
    seconds = {"K": weight, "N": weight.t().contiguous()}
    c, exact = torch.empty(SIZE, SIZE, device="cuda"), a.double() @ weight.double().t()

    def line(name: str, layout: str, call, note: str = "") -> tuple[float, str]:
        c.zero_()
        call()
        error = ((c - exact).norm() / exact.norm()).item()
        ms = triton.testing.do_bench(call, warmup=3, rep=12, return_mode="median")
        rate = 2 * SIZE**3 / ms / 1e9
        return rate, f"{name:8} {layout} {rate:6.1f} TFLOP/s, error {error:.1e} {note}"

    for layout, second in (("K", weight.t()), ("N", seconds["N"])):
        print(line("torch.mm", layout, partial(torch.mm, a, second, out=c))[1])
    for layout, precision in itertools.product("KN", TILES):
        asked = [one for one in settings if one[:2] == (layout, precision)]
        found = [line(precision, layout, partial(launch, one, a, seconds[layout], c), str(one[2:])) for one in asked]
        for _, text in [*sorted(found, reverse=True)[:5], min(found)]:
            print(text)


if __name__ == "__main__":
    main()
