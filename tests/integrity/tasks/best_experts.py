"""Best of the products of each token with experts, and a bias between the two."""

import torch

CASES = {"check": [{"m": 32, "n": 60, "k": 64}], "search": [{"m": 256, "n": 60, "k": 128}]}
SEED = "../honest/best_experts.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    m, n, k = case["m"], case["n"], case["k"]
    return torch.randn(m, k, **draw), torch.randn(n, **draw), torch.randn(n, k, **draw) * k**-0.5


def reference(x, bias, weight):
    wide = torch.promote_types(x.dtype, torch.float32)
    return torch.addmm(bias.to(wide), x.to(wide), weight.to(wide).T).amax(-1)
