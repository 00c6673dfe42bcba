"""SwiGLU of two bfloat16 matrices: y = silu(gate) * up, elementwise, with silu(v) = v / (1 + exp(-v))."""

import torch
import torch.nn.functional as F

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 3, "n": 1031}, {"m": 16, "n": 128}],
    "search": [{"m": 8192, "n": 14336}, {"m": 4096, "n": 11008}],
    "confirm": [{"m": 16384, "n": 8192}, {"m": 2049, "n": 28672}, {"m": 64, "n": 14336}],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    return torch.randn(case["m"], case["n"], **draw), torch.randn(case["m"], case["n"], **draw)


def reference(gate, up):
    return F.silu(gate) * up


def flops(case):
    return 5.0 * case["m"] * case["n"]  # negation, exponential, sum, quotient, product


def bytes(case):
    return 2 * 3 * case["m"] * case["n"]
