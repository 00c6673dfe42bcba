"""What follows products and convolutions is computed with each of them, however many a graph has."""

from __future__ import annotations

import re

import pytest
import torch

from evo_kernel.tasks.first import template_of
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.lowering.linking import link
from evo_kernel.tasks.lowering.lower import lower_function
from evo_kernel.tasks.lowering.product import MAKERS
from tests.tasks.test_product import passes

SEVERAL = """
import torch
import torch.nn.functional as F

PRECISION = "tf32"
CASES = {"check": [{"n": 3}], "search": [{"n": 2}]}


def inputs(case, generator, device):
    n = case["n"]
    shapes = (n, 16, 16, 16), (16, 16, 3, 3), (16,), (16,), (16,), (256, 16), (256,), (256, 256), (n, 256, 256)
    drawn = [torch.randn(*one, generator=generator, device=device) for one in shapes]
    return *drawn[:3], drawn[3].square() + 0.1, *drawn[4:]


def reference(x, w, mean, var, shift, up, bias, down, rest):
    y = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), mean, var, shift, shift))
    y = F.relu(F.conv2d(y, w, shift, padding=1) + x)
    rows = y.flatten(2).transpose(1, 2).contiguous()
    y = F.linear(F.gelu(F.linear(rows, up, bias)), down) * 0.1 + rest
    return y - y.mean(-1, keepdim=True) + F.linear(y, down).sigmoid().mean()
"""


def test_each_product_and_convolution_is_computed_with_what_follows(tmp_path):
    path = tmp_path / "several_task.py"
    path.write_text(SEVERAL)
    one = load(path)
    source = template_of(one, "gluon")
    assert source is not None
    text = source.text
    fused = re.sub(r"^    else:\n(        .*\n)+", "", text[text.rindex("\ndef run") :], flags=re.MULTILINE)
    assert len(re.findall(r"^ +cut(?:_\d+)?\(", fused, re.MULTILINE)) == 2
    assert len(re.findall(r"^ +product(?:_\d+)?\(", fused, re.MULTILINE)) == 3
    assert not any(f"{kernel}_kernel" in fused for kernel in ("relu", "gelu", "sigmoid", "bias_rows"))
    assert text.count("def parted_kernel(") == text.count("def planes_kernel(") == 1  # what they share is written once
    passes(one, source)


X, W = torch.empty(256, 64, device="meta"), torch.empty(256, 64, device="meta")
KEPT = {
    "used_twice": (lambda x, w: ((y := x @ w.T).relu(), y.sum(0)), ("relu",)),  # the product itself is needed too
    "transposed": (lambda x, w: (x @ w.T).T.relu(), ("relu",)),
    "broadcast": (lambda x, w: (x @ w.T) + x.view(64, 256, 1), ("add",)),  # it grows
    "function": (lambda x, w: torch.acos(x @ w.T), ("acos",)),  # Gluon lacks it
    "before": (lambda x, w: torch.acos((x @ w.T).relu()), ("acos",)),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_a_template_cannot_compute_is_left(name):
    reference, kernels = KEPT[name]
    text = lower_function(reference, [[X, W]], products=MAKERS)
    fused = re.sub(r"^    else:\n(        .*\n)+", "", text[text.rindex("\ndef run") :], flags=re.MULTILINE)
    assert re.search(r"^        product\(", fused, re.MULTILINE)
    assert tuple(one for one in ("relu", "add", "acos") if re.search(rf"\b{one}\w*_kernel\[", fused)) == kernels


def test_definitions_are_shared_where_they_are_equal():
    functions = {"larger": "def larger(a, b):\n    return max(a, b)\n"}
    text = (
        "import math\n\nSIZES = (4,)\n\n\ndef least(size):\n    return min(SIZES, size)\n\n\ndef call(size, least=1):\n"
    )
    text += "    def inner(call):\n        return call\n\n    return inner(other(size))\n\n\ndef other(x):\n    return least(x)\n"
    assert link(functions, text, {"call"})["call"] == "call_2"
    assert link(functions, text, {"call"})["call"] == "call_2"
    assert functions.keys() == {"larger", "import math", "SIZES", "least", "other", "call_2"}
    names = link(functions, text.replace("(4,)", "(8,)"), {"call"})
    assert (names["SIZES"], names["call"], names["import math"]) == ("SIZES_2", "call_3", "import math")
    assert "return min(SIZES_2, size)" in functions["least_2"] and "return least_2(x)" in functions["other_2"]
    assert "def call_3(size, least=1):" in functions["call_3"] and "return inner(other_2(size))" in functions["call_3"]
    assert "def inner(call):\n        return call\n" in functions["call_3"]
