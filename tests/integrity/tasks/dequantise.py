"""int8 rows with a float16 scale each: their float32 values, and the int32 sums of the rows."""

import torch

CASES = {
    "check": [{"m": 5, "n": 127}, {"m": 8, "n": 128}],
    "search": [{"m": 64, "n": 128}],
    "confirm": [{"m": 31, "n": 1000}],
}
SEED = "../honest/dequantise_rows.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    q = torch.randint(-127, 128, (case["m"], case["n"]), dtype=torch.int8, **draw)
    return q, torch.rand(case["m"], **draw).add(0.5).half()


def reference(q, scale):
    return q.to(scale.dtype if scale.dtype == torch.float64 else torch.float32) * scale[:, None].to(
        torch.float64 if scale.dtype == torch.float64 else torch.float32
    ), q.sum(dim=1, dtype=torch.int32)
