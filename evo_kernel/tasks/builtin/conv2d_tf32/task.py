"""Convolution in two dimensions, float32 with TF32 products, no padding, NCHW: twelve well-known layers.

x is (n, c, h, h), weight (k, c, f, f), y (n, k, rows, rows) with rows = (h - f) // stride + 1: y[n, k, i, j] = sum
over c, u, v of x[n, c, i * stride + u, j * stride + v] * weight[k, c, u, v]. The layers are those by which im2win and
its rivals are compared, at a batch of 128. Factors may be rounded to ten bits; sums are
float32. Whatever a kernel rearranges first is part of its time.
"""

import torch
import torch.nn.functional as F

CASES = {
    "check": [
        {"n": 2, "c": 3, "h": 11, "k": 5, "f": 3, "stride": 2},
        {"n": 1, "c": 2, "h": 7, "k": 33, "f": 5, "stride": 1},
    ],
    "search": {
        "conv3": {"n": 128, "c": 3, "h": 227, "k": 64, "f": 7, "stride": 2},
        "conv5": {"n": 128, "c": 96, "h": 24, "k": 256, "f": 5, "stride": 1},
        "conv9": {"n": 128, "c": 64, "h": 56, "k": 64, "f": 3, "stride": 1},
    },
    "confirm": {
        "conv1": {"n": 128, "c": 3, "h": 227, "k": 96, "f": 11, "stride": 4},
        "conv2": {"n": 128, "c": 3, "h": 231, "k": 96, "f": 11, "stride": 4},
        "conv4": {"n": 128, "c": 64, "h": 224, "k": 64, "f": 7, "stride": 2},
        "conv6": {"n": 128, "c": 256, "h": 12, "k": 512, "f": 3, "stride": 1},
        "conv7": {"n": 128, "c": 3, "h": 224, "k": 64, "f": 3, "stride": 1},
        "conv8": {"n": 128, "c": 64, "h": 112, "k": 128, "f": 3, "stride": 1},
        "conv10": {"n": 128, "c": 128, "h": 28, "k": 128, "f": 3, "stride": 1},
        "conv11": {"n": 128, "c": 256, "h": 14, "k": 256, "f": 3, "stride": 1},
        "conv12": {"n": 128, "c": 512, "h": 7, "k": 512, "f": 3, "stride": 1},
    },
}
SEED = "seed.py"
PRECISION = "tf32"


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device}
    c, h, f = case["c"], case["h"], case["f"]
    weight = torch.randn(case["k"], c, f, f, **draw) * (c * f * f) ** -0.5
    return torch.randn(case["n"], c, h, h, **draw), weight, case["stride"]


def reference(x, weight, stride):
    return F.conv2d(x, weight, stride=stride)


def channels_last(x, weight, stride):
    """The same through channels-last, with the copies there and back."""
    there = {"memory_format": torch.channels_last}
    return reference(x.contiguous(**there), weight.contiguous(**there), stride).contiguous()


def unfold(x, weight, stride):
    """im2col, then one matrix product a picture."""
    side = (x.shape[2] - weight.shape[2]) // stride + 1
    columns = F.unfold(x, weight.shape[2], stride=stride)
    return (weight.flatten(1) @ columns).unflatten(2, (side, side))


BASELINES = {"eager": reference, "channels-last": channels_last, "unfold": unfold}


def side_of(case):
    """Rows, and columns, of the output."""
    return (case["h"] - case["f"]) // case["stride"] + 1


def flops(case):
    """Of the direct method; Winograd's and Fourier's need fewer."""
    return 2.0 * case["n"] * case["k"] * side_of(case) ** 2 * case["c"] * case["f"] ** 2


def bytes(case):
    filters = case["k"] * case["c"] * case["f"] ** 2
    return 4 * (case["n"] * (case["c"] * case["h"] ** 2 + case["k"] * side_of(case) ** 2) + filters)
