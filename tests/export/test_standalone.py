"""Kernels that leave the judge: what they need of the program that launches them."""

import pytest
import torch
import triton

from evo_kernel.export import flashinfer, kernelbench
from evo_kernel.export.standalone import standalone

PLAIN = "def run(x):\n    return x + 1\n"
DESCRIBED = "def run(x):\n    tl_make = 'tl.make_tensor_descriptor(x, [4], [1], [4])'\n    return x + 1\n"


@pytest.mark.parametrize("text", [PLAIN, DESCRIBED + "# triton.set_allocator(mine)\n"])
def test_a_text_that_needs_nothing_stays_as_it_is(text):
    assert standalone(text) == text


def test_a_kernel_that_makes_descriptors_gets_memory_for_them(monkeypatch):
    allocators = []
    monkeypatch.setattr(triton, "set_allocator", allocators.append)
    names = {}
    exec(standalone(DESCRIBED), names)
    assert torch.equal(names["run"](torch.ones(2)), torch.full((2,), 2.0))
    monkeypatch.setattr(torch, "empty", lambda size, **how: (size, how["device"]))
    assert [allocate(64, 128, None) for allocate in allocators] == [(64, "cuda")]


def test_every_export_carries_it():
    solution = kernelbench.Solution(1, 1, DESCRIBED, "class Model:\n    pass", [])
    assert "set_allocator" in solution.text()
    assert "set_allocator" in flashinfer.solution("d", DESCRIBED, "me", "h200")["sources"][0]["content"]
