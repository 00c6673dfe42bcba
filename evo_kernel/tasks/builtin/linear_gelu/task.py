"""Linear layer with bias and tanh-approximated GELU, bfloat16: y = gelu(x @ weight.T + bias), accumulated in float32.

x is (m, k), weight (n, k), bias (n), y (m, n); gelu(v) = v / 2 · (1 + tanh(sqrt(2 / pi) · (v + 0.044715 v³))).
"""

import torch
import torch.nn.functional as F

CASES = {
    "check": [
        {"m": 1, "n": 1, "k": 1},
        {"m": 31, "n": 65, "k": 37},
        {"m": 67, "n": 33, "k": 129},
        {"m": 64, "n": 64, "k": 64},
    ],
    "search": [{"m": 4096, "n": 4096, "k": 1024}, {"m": 2048, "n": 16384, "k": 4096}],
    "confirm": [
        {"m": 8192, "n": 3072, "k": 768},
        {"m": 2049, "n": 4095, "k": 1031},
        {"m": 256, "n": 8192, "k": 2048},
    ],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    m, n, k = case["m"], case["n"], case["k"]
    return torch.randn(m, k, **draw), torch.randn(n, k, **draw) * k**-0.5, torch.randn(n, **draw)


def reference(x, weight, bias):
    return F.gelu(F.linear(x, weight, bias), approximate="tanh")


def epilogue(x, weight, bias):
    # On a GPU this is one cuBLASLt call whose epilogue adds the bias and applies this very GELU.
    return torch._addmm_activation(bias, x, weight.t(), use_gelu=True)


BASELINES = {"eager": reference, "cublaslt": epilogue}


def flops(case):
    return 2.0 * case["m"] * case["n"] * case["k"] + 10.0 * case["m"] * case["n"]


def bytes(case):
    m, n, k = case["m"], case["n"], case["k"]
    return 2 * (m * k + n * k + n + m * n)
