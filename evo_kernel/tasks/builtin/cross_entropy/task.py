"""Cross-entropy loss of each row: loss[i] = log(sum over j of exp(logits[i, j])) - logits[i, target[i]].

Logits are float32 (m, n), targets int64 (m), losses float32 (m), not averaged.
"""

import torch
import torch.nn.functional as F

CASES = {
    "check": [{"m": 1, "n": 2}, {"m": 5, "n": 127}, {"m": 3, "n": 1031}, {"m": 64, "n": 129}],
    "search": [{"m": 4096, "n": 32000}, {"m": 2048, "n": 128256}],
    "confirm": [{"m": 4096, "n": 50257}, {"m": 1023, "n": 151936}, {"m": 16384, "n": 1031}],
}
SEED = "seed.py"
# The logarithm and the target's logit are each rounded at the size of the logits (up to 300 among those that checks
# draw: half a step of float32 is 1.5e-5), and the loss, their difference, may be next to nothing.
TOLERANCE = {"absolute": 3e-5}


def inputs(case, generator, device):
    logits = torch.randn(case["m"], case["n"], generator=generator, device=device)
    return logits, torch.randint(0, case["n"], (case["m"],), generator=generator, device=device)


def reference(logits, target):
    return F.cross_entropy(logits, target, reduction="none")


def flops(case):
    return 4.0 * case["m"] * case["n"]  # maximum, difference, exponential, sum


def bytes(case):
    return 4 * case["m"] * case["n"] + (8 + 4) * case["m"]
