"""Router of a mixture of experts: probabilities of each token's experts and the log-sum-exp that the z-loss needs.

logits is a float32 matrix (tokens, experts). Returned are y[i, j] = exp(x[i, j]) / sum over k of exp(x[i, k]) and
z[i] = log(sum over k of exp(x[i, k])), both float32. Rows are as short as there are experts.
"""

import torch

CASES = {
    "check": [{"m": 1, "n": 1}, {"m": 7, "n": 8}, {"m": 65, "n": 60}, {"m": 33, "n": 128}],
    "search": [{"m": 131072, "n": 64}, {"m": 65536, "n": 256}],
    "confirm": [{"m": 262144, "n": 8}, {"m": 65535, "n": 128}, {"m": 100000, "n": 60}],
}
SEED = "seed.py"


def inputs(case, generator, device):
    return torch.randn(case["m"], case["n"], generator=generator, device=device)


def reference(logits):
    return torch.softmax(logits, dim=-1), torch.logsumexp(logits, dim=-1)


def flops(case):
    return 5.0 * case["m"] * case["n"]  # maximum, difference, exponential, sum, division


def bytes(case):
    return 2 * 4 * case["m"] * case["n"] + 4 * case["m"]
