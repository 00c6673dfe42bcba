"""Matrix product of 8-bit floats (e4m3), scaled by row and by column: y = (a @ b.T) * scale_a * scale_b, bfloat16.

a is (m, k) and b (n, k), float8_e4m3fn; scale_a is float32 (m, 1), scale_b (1, n); y is (m, n). Products are
accumulated in float32, with the tensor cores' own rounding of partial sums.
"""

import torch

CASES = {
    "check": [{"m": 1, "n": 16, "k": 32}, {"m": 37, "n": 48, "k": 80}, {"m": 16, "n": 64, "k": 128}],
    "search": [{"m": 4096, "n": 4096, "k": 4096}, {"m": 64, "n": 8192, "k": 8192}],
    "confirm": [
        {"m": 8192, "n": 8192, "k": 2048},
        {"m": 2048, "n": 11008, "k": 4096},
        {"m": 16, "n": 14336, "k": 4096},
    ],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    m, n, k = case["m"], case["n"], case["k"]
    a, b = (torch.randn(rows, k, **draw).to(torch.float8_e4m3fn) for rows in (m, n))
    return a, b, torch.rand(m, 1, **draw) + 0.5, (torch.rand(1, n, **draw) + 0.5) * k**-0.5


def reference(a, b, scale_a, scale_b):
    wide = a.to(scale_a.dtype) @ b.to(scale_a.dtype).T * scale_a * scale_b
    return wide.to(torch.bfloat16) if scale_a.dtype == torch.float32 else wide


reference.compiled_baseline = False  # a float32 product of copies: nobody's kernel


def cublas(a, b, scale_a, scale_b):
    """cuBLASLt's product with scales by row."""
    return torch._scaled_mm(a, b.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16)


def cublas_fast(a, b, scale_a, scale_b):
    """The same with sums kept in the tensor cores for longer."""
    return torch._scaled_mm(a, b.T, scale_a=scale_a, scale_b=scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)


BASELINES = {"eager": cublas, "fast sums": cublas_fast}


def flops(case):
    return 2.0 * case["m"] * case["n"] * case["k"] + 2.0 * case["m"] * case["n"]


def bytes(case):
    m, n, k = case["m"], case["n"], case["k"]
    return (m + n) * k + 4 * (m + n) + 2 * m * n
