"""A small convolution in IEEE float32, NCHW, no padding; arguments as those of the built-in conv2d."""

import torch
import torch.nn.functional as F

CASES = {
    "check": [
        {"n": 2, "c": 3, "h": 11, "k": 5, "f": 3, "stride": 2},
        {"n": 1, "c": 2, "h": 7, "k": 33, "f": 5, "stride": 1},
    ],
    "search": [{"n": 4, "c": 16, "h": 14, "k": 32, "f": 3, "stride": 1}],
    "confirm": [{"n": 3, "c": 5, "h": 13, "k": 7, "f": 4, "stride": 3}],
}
SEED = "../honest/convolution_im2win.py"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    c, h, f = case["c"], case["h"], case["f"]
    weight = torch.randn(case["k"], c, f, f, **draw) * (c * f * f) ** -0.5
    return torch.randn(case["n"], c, h, h, **draw), weight, case["stride"]


def reference(x, weight, stride):
    return F.conv2d(x, weight, stride=stride)
