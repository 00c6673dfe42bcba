"""Convolution in two dimensions, bfloat16, no padding, channels last: twelve well-known layers.

x is (n, h, h, c), weight (k, f, f, c), y (n, rows, rows, k) with rows = (h - f) // stride + 1: y[n, i, j, k] = sum
over u, v, c of x[n, i * stride + u, j * stride + v, c] * weight[k, u, v, c]. The layers are those of the task conv2d,
at a batch of 128. Products are accumulated in float32.
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


def inputs(case, generator, device):
    draw = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    c, h, f = case["c"], case["h"], case["f"]
    weight = torch.randn(case["k"], f, f, c, **draw) * (c * f * f) ** -0.5
    return torch.randn(case["n"], h, h, c, **draw), weight, case["stride"]


def reference(x, weight, stride):
    # Views: PyTorch sees tensors in channels-last format, and answers in it.
    return F.conv2d(x.permute(0, 3, 1, 2), weight.permute(0, 3, 1, 2), stride=stride).permute(0, 2, 3, 1).contiguous()


def unfold(x, weight, stride):
    """im2col by a strided view and a copy, then one matrix product."""
    f = weight.shape[1]
    windows = x.unfold(1, f, stride).unfold(2, f, stride)  # (n, rows, rows, c, f, f)
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3) @ weight.flatten(1).mT


BASELINES = {"eager": reference, "unfold": unfold}


def side_of(case):
    """Rows, and columns, of the output."""
    return (case["h"] - case["f"]) // case["stride"] + 1


def flops(case):
    """Of the direct method; Winograd's and Fourier's need fewer."""
    return 2.0 * case["n"] * case["k"] * side_of(case) ** 2 * case["c"] * case["f"] ** 2


def bytes(case):
    filters = case["k"] * case["c"] * case["f"] ** 2
    return 2 * (case["n"] * (case["c"] * case["h"] ** 2 + case["k"] * side_of(case) ** 2) + filters)
