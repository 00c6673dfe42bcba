"""Means of segments of float64 rows, NaN for empty ones, and the rows without them; there may be no rows."""

import torch

CASES = {
    "check": [{"segments": 70, "n": 300}, {"segments": 4, "n": 0}],
    "search": [{"segments": 256, "n": 4096}],
    "confirm": [{"segments": 99, "n": 500}],
}
SEED = "../honest/segment_means.py"
WIDTH = 3


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    ends = torch.randint(0, case["n"] + 1, (case["segments"],), **draw).sort().values
    ends[-1] = case["n"]
    return torch.randn(case["n"], WIDTH, dtype=torch.float64, **draw), ends


def reference(x, ends):
    segment = torch.searchsorted(ends, torch.arange(len(x), device=x.device), right=True)
    sums = torch.zeros(len(ends), WIDTH, dtype=x.dtype, device=x.device).index_add(0, segment, x)
    means = sums / ends.diff(prepend=ends.new_zeros(1))[:, None]
    return means, x - means[segment]
