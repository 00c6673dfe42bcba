"""Grid and contraction rewrites: the sign of each in the code compiled for sm_90 (no GPU needed)."""

from __future__ import annotations

import pytest

from operators.micro.rewrites.arithmetic import InputPrecision
from operators.micro.rewrites.causal import CausalSkip
from operators.micro.rewrites.descriptor import TensorDescriptor
from operators.micro.rewrites.loops import SoftwarePipeline
from operators.micro.rewrites.split_k import SplitK
from operators.micro.rewrites.swizzle import Swizzle
from tests.operators.support_grid import PRODUCT, answers, applied, seed


def jobs() -> dict[str, tuple[str, str]]:
    """A source and its task, by name."""
    return {
        "product": (PRODUCT, "matmul"),
        "product half": (applied(PRODUCT, InputPrecision()), "matmul"),
        "matmul": (seed("matmul"), "matmul"),
        "matmul swizzle": (applied(seed("matmul"), Swizzle()), "matmul"),
        "matmul split": (applied(seed("matmul"), SplitK()), "matmul"),
        "matmul tma": (applied(seed("matmul"), TensorDescriptor()), "matmul"),
        "attention": (seed("attention"), "attention"),
        "attention skip": (applied(seed("attention"), CausalSkip()), "attention"),
        "attention tma": (applied(seed("attention"), TensorDescriptor()), "attention"),
        "softmax": (seed("softmax"), "softmax"),
        "softmax pipeline": (applied(seed("softmax"), SoftwarePipeline()), "softmax"),
    }


@pytest.fixture(scope="module")
def plans() -> dict[str, list]:
    """Job → [kernel, grid, digest of its code, signs in its PTX] of each launch."""
    made = jobs()
    found = answers("compile", list(made.values()))
    assert not [reason for _, reason in found if reason]
    return dict(zip(made, (value for value, _ in found), strict=True))


def test_every_rewrite_changes_the_code(plans):
    bases = {"product", "matmul", "attention", "softmax"}
    for name in set(plans) - bases:
        before = plans[name.split(" ")[0]]
        assert [p[1:3] for p in plans[name]] != [p[1:3] for p in before], name


def test_grids(plans):
    tiles = plans["matmul"][0][1]
    assert plans["matmul swizzle"][0][1] == [tiles[0] * tiles[1]]
    assert [launch[1] for launch in plans["matmul split"]] == [[*tiles, 4], tiles]


def test_paths(plans):
    assert not {"mma.sync", "wgmma"} & set(plans["product"][0][3])
    assert {"mma.sync", "wgmma"} & set(plans["product half"][0][3])
    assert "cp.async.bulk.tensor" in plans["matmul tma"][0][3]
    assert "cp.async.bulk.tensor" in plans["attention tma"][0][3]
    assert "cp.async.c" not in plans["softmax"][0][3]
    assert "cp.async.c" in plans["softmax pipeline"][0][3]
