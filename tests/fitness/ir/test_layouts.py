"""Layouts of Gluon tensors: what a thread holds, and whether a warp asks for whole sectors."""

import pytest

from evo_kernel.fitness.ir.layouts import elements_of_a_thread, scattered

ROWS = "#ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [1, 32], warpsPerCTA = [4, 1], order = [1, 0]}>"
MMA = "#ttg.nvidia_mma<{versionMajor = 3, versionMinor = 0, warpsPerCTA = [4, 1], instrShape = [16, 64, 16]}>"
LINEAR = "#ttg.linear<{register = [[1], [2]], lane = [[4], [8], [16], [32], [64]], warp = [[128], [0]], block = []}>"
VECTOR = "#ttg.blocked<{sizePerThread = [16], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>"


@pytest.mark.parametrize(
    ("layout", "shape", "elements"),
    [
        (ROWS, (64, 64), 32),
        (f"#ttg.slice<{{dim = 1, parent = {ROWS}}}>", (64,), 16),  # each lane of a warp has the same
        (MMA, (64, 128), 64),
        (f"#ttg.dot_op<{{opIdx = 0, parent = {MMA}, kWidth = 2}}>", (64, 64), 32),
        (f"#ttg.dot_op<{{opIdx = 1, parent = {ROWS}}}>", (16, 64), 32),
        (LINEAR, (256,), 4),
        (VECTOR, (512,), 16),  # all four warps have the same
        ("#ttg.unheard_of<{}>", (512,), 512),
        (LINEAR, (128,), 128),  # beyond the tensor
    ],
)
def test_elements_of_a_thread(layout, shape, elements):
    assert elements_of_a_thread(layout, shape) == elements


@pytest.mark.parametrize(
    ("layout", "shape", "item", "axis", "times"),
    [
        (ROWS, (64, 64), 4, 1, 1),
        (ROWS, (64, 64), 4, 0, 8),  # each lane in a row of its own
        (MMA, (64, 64), 4, 1, 1),
        (MMA, (64, 64), 2, 1, 2),  # four lanes have 16 bytes side by side
        (VECTOR, (2048,), 2, 0, 2),  # of 32 bytes a thread asks for 16 at once
        ("#ttg.unheard_of<{}>", (512,), 4, 0, 8),
    ],
)
def test_scattered(layout, shape, item, axis, times):
    assert scattered(layout, shape, item, axis) == times
