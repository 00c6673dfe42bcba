"""Cross-entropy of each row and its gradient, bfloat16 logits: the last step of a language model's training, fused.

logits are (m, vocabulary), target int64 (m), dloss float32 (m), the gradient of each row's loss. Returned are loss[i] =
log(sum over j of exp(logits[i, j])) - logits[i, target[i]], float32 and not averaged, and dlogits[i, j] = dloss[i] *
(softmax(logits[i])[j] - (j == target[i])), in the dtype of the logits.
"""

import torch
import torch.nn.functional as F

CASES = {
    "check": [{"m": 2, "v": 3}, {"m": 5, "v": 127}, {"m": 3, "v": 1031}],
    "search": [{"m": 4096, "v": 128256}, {"m": 8192, "v": 32000}],
    "confirm": [{"m": 2048, "v": 151936}, {"m": 1023, "v": 128256}, {"m": 8192, "v": 50257}],
}
SEED = "seed.py"
# A loss is the difference of two numbers as large as the logits (up to 300 among those that checks draw: half a step
# of float32 is 1.5e-5), and may be next to nothing. Gradients are far above this wherever they matter.
TOLERANCE = {"absolute": 3e-5}


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    logits = torch.randn(case["m"], case["v"], dtype=torch.bfloat16, **draw)
    target = torch.randint(0, case["v"], (case["m"],), **draw)
    return logits, target, torch.rand(case["m"], **draw) + 0.5


def reference(logits, target, dloss):
    wide = logits.to(dloss.dtype)
    lse = wide.logsumexp(-1, keepdim=True)
    rows = torch.arange(len(target), device=target.device)
    gradient = (wide - lse).exp_() * dloss[:, None]
    gradient[rows, target] -= dloss
    return lse[:, 0] - wide[rows, target], gradient.to(logits.dtype)


def autograd(logits, target, dloss):
    """As a training loop writes it."""
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        loss = F.cross_entropy(leaf.to(dloss.dtype), target, reduction="none")
        return loss.detach(), torch.autograd.grad(loss, leaf, dloss)[0]


BASELINES = {"eager": autograd}


def flops(case):
    return 6.0 * case["m"] * case["v"]  # maximum, difference, exponential, sum, quotient, product


def bytes(case):
    return 2 * 2 * case["m"] * case["v"] + (8 + 4 + 4) * case["m"]
