"""Groups of 32 as 8-bit floats (e4m3) with a power of two each as their scale (OCP MX)."""

import torch

CASES = {
    "check": [{"m": 5, "n": 96}, {"m": 16, "n": 1024}],
    "search": [{"m": 256, "n": 4096}],
    "confirm": [{"m": 37, "n": 384}],
}
SEED = "../honest/quantise_groups.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device, dtype=torch.bfloat16)


def reference(x):
    groups = x.float().view(x.shape[0], -1, 32)
    largest = groups.abs().amax(-1).clamp(min=2.0**-118)
    scale = torch.exp2(torch.floor(torch.log2(largest)) - 8)
    quantised = (groups / scale[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return quantised.view(x.shape), scale.to(torch.float8_e8m0fnu)
