"""RMSNorm over rows, backward, bfloat16: gradients of x and of the weight from x, weight, dy and 1 / rms of each row.

x and dy are (m, n), weight (n); rstd is float32 (m), 1 / sqrt(mean over k of x[i, k]^2 + 1e-6) as the forward pass
left it. With u = x * rstd and g = dy * weight, the gradients are dx = rstd * (g - u * mean over a row of g * u) and
dweight = sum over rows of dy * u. Sums are float32.
"""

import torch
import torch.nn.functional as F

from evo_kernel.tasks import vendor

EPS = 1e-6
CASES = {
    "check": [{"m": 2, "n": 3}, {"m": 5, "n": 127}, {"m": 37, "n": 65}],
    "search": [{"m": 8192, "n": 4096}, {"m": 4096, "n": 8192}],
    "confirm": [{"m": 16384, "n": 2048}, {"m": 4097, "n": 5120}, {"m": 32768, "n": 1024}],
}
SEED = "seed.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    x, dy = torch.randn(case["m"], case["n"], **draw), torch.randn(case["m"], case["n"], **draw)
    rstd = torch.rsqrt(x.float().square().mean(-1) + EPS)
    return x, torch.randn(case["n"], **draw), dy, rstd


def reference(x, weight, dy, rstd):
    u = x * rstd[:, None]  # float32, by the dtype of rstd
    g = dy * weight.to(rstd.dtype)
    dx = rstd[:, None] * (g - u * (g * u).mean(-1, keepdim=True))
    return dx.to(x.dtype), (dy * u).sum(0).to(weight.dtype)


def fused(x, weight, dy, rstd):
    """PyTorch's own kernel, which autograd runs."""
    if not x.is_cuda:
        return autograd(x, weight, dy, rstd)
    return torch.ops.aten._fused_rms_norm_backward(dy, x, [x.shape[-1]], rstd[:, None], weight, [True, True])


def autograd(x, weight, dy, rstd):
    """The forward pass again, then its gradients."""
    return vendor.gradients(lambda x, weight: F.rms_norm(x, (x.shape[-1],), weight, EPS), (x, weight), dy)


BASELINES = {"eager": reference, "fused": fused, "autograd": autograd}


def flops(case):
    return 9.0 * case["m"] * case["n"]  # u, g, g * u and its sum, three for dx, dy * u and its sum


def bytes(case):
    return 2 * (3 * case["m"] * case["n"] + 2 * case["n"]) + 4 * case["m"]
