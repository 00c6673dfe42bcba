"""The pre-filter: who gets one, what it leaves out, and when it pays."""

from __future__ import annotations

import math
import shutil

import pytest

from evo_kernel.fitness import prefilter
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic
from evo_kernel.fitness.ir_text import without_locations
from evo_kernel.fitness.model import modeled_time
from evo_kernel.fitness.plan import Binary, CompiledPlan
from evo_kernel.fitness.prefilter import Prefilter, Sieve, prefilter_for
from evo_kernel.fitness.record.recorder import Fault, Recording
from evo_kernel.fitness.runners.base import Checked
from evo_kernel.fitness.targets import H200
from evo_kernel.tasks.loading import BUILTIN, load
from evo_kernel.tasks.task import Case
from evo_kernel.types import CaseKind, Status
from tests.fitness.handmade import softmax_plan

CASE = Case("rows", CaseKind.SEARCH, {"m": 4096, "n": 4096})


def plan(num_warps):
    made = softmax_plan(4096, 4096, num_warps=num_warps)
    (kernel,) = made.kernels
    binary = Binary(
        key=kernel.key, ir=without_locations(kernel.code), symbol="k", cubin=b"", code_hash=str(num_warps),
        num_warps=num_warps, registers=32,
    )  # fmt: skip
    return CompiledPlan(plan=made, binaries=(binary,))


class Sampled:
    """A sampler that knows: a plan's warps stand for the megabytes that it moves, 16 for one that it cannot run."""

    arch = 90

    def __init__(self):
        self.calls = 0

    def traffic(self, found, case):
        assert case is CASE
        self.calls += 1
        megabytes = found.plan.kernels[0].num_warps
        if megabytes == 16:
            return Checked(Status.REJECTED, "no")
        grid = megabytes * 1e8
        each = grid / 4096
        return (
            LaunchTraffic(
                programs=4096, sampled=1, load_bytes=each, store_bytes=0.0, load_sector_bytes=each,
                store_sector_bytes=0.0, atomic_elements=0.0, wave_load_bytes=264 * each, grid_load_bytes=grid,
                grid_store_bytes=0.0, rounds=1.0, iterations=0.0, imbalance=1.0,
            ),
        )  # fmt: skip


def left_out(sieve, plans):
    return sieve.behind(Recording({(CASE.name, setting): plan for setting, plan in plans.items()}), list(plans))


def us(num_warps):
    return modeled_time(plan(num_warps), Sampled().traffic(plan(num_warps), CASE), H200).total_us


def knobs(num_warps):
    return (("NUM_WARPS", num_warps),)


def test_what_is_far_behind_its_best_sibling_is_left_out():
    sampler = Sampled()
    made = Prefilter(sampler, always=True)
    sieve = Sieve(made, CASE, plan(2))
    tried = {knobs(w): plan(w) for w in (1, 2, 8)} | {knobs(16): plan(16), knobs(3): Fault(Status.BUILD_ERROR, "no")}
    left = left_out(sieve, tried)
    assert left == {knobs(8): pytest.approx(math.log(us(8) / us(2)))}
    assert us(2) < 2 * us(1)  # near enough
    assert sampler.calls == 5
    assert (made.asked, made.left_out) == (4, 1)
    assert left_out(sieve, {knobs(4): plan(4)}).keys() == {knobs(4)}  # the best so far is remembered, and the own
    assert sampler.calls == 6


def test_nothing_is_left_out_of_a_source_that_cannot_be_modeled():
    assert left_out(Sieve(Prefilter(Sampled(), always=True), CASE, plan(16)), {knobs(8): plan(8)}) == {}


def test_it_works_only_while_the_gpu_is_waited_for():
    sampler = Sampled()
    made = Prefilter(sampler)
    sieve = Sieve(made, CASE, plan(1))
    assert left_out(sieve, {knobs(8): plan(8)}) == {} and sampler.calls == 0
    for _ in range(50):
        made.waited(2.0)
    assert left_out(sieve, {knobs(8): plan(8)}).keys() == {knobs(8)}
    for _ in range(100):
        made.waited(0.0)
    assert not made.pays


def test_who_gets_one(monkeypatch, tmp_path):
    monkeypatch.setattr(prefilter, "EARNED", {"softmax": 0.9, "matmul": 0.5})
    shutil.copytree(BUILTIN / "softmax", tmp_path / "softmax")
    softmax, matmul, own = load("softmax"), load("matmul"), load(tmp_path / "softmax")
    got = {
        (mode, task.path): prefilter_for(task, mode, 90, 20.0)
        for mode in ("auto", "on", "off")
        for task in (softmax, matmul, own)
    }
    assert {key for key, made in got.items() if made} == {
        ("auto", softmax.path), ("on", softmax.path), ("on", matmul.path), ("on", own.path),
    }  # fmt: skip
    for made in got.values():
        if made:
            made.close()


def test_whoever_earned_it_is_a_built_in_task():
    assert all((BUILTIN / name).is_dir() for name in prefilter.EARNED)
