"""Profiles: what is read from the code, what follows from a time, and the command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from evo_kernel.fitness.compiling.compiler import Compiler
from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.fitness.profile import LaunchCost, alone, as_text, profile
from evo_kernel.fitness.targets import H200
from tests.fitness.handmade import matmul_plan

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def twice():
    """A matmul launched twice."""
    plan = matmul_plan(512, 512, 512, (128, 128, 64), num_warps=8)
    plan = plan.model_copy(update={"nodes": plan.nodes * 2})
    compiler = Compiler(90, 60.0)
    compiler.start()
    (binary,) = compiler.compile(list(plan.kernels))
    compiler.close()
    return CompiledPlan(plan=plan, binaries=(binary,))


def test_each_launch_has_its_share_and_its_rates(twice):
    costs = [LaunchCost(30.0, bytes=42.6e6, flops=2 * 512**3), LaunchCost(10.0)]
    first, second = profile(twice, costs, H200)
    assert (first.share, second.share) == (0.75, 0.25)
    assert first.gb_per_s == pytest.approx(1420.0) and first.bandwidth_share == pytest.approx(1 / 3)
    assert first.tflop_per_s == pytest.approx(8.948, rel=1e-3)
    assert second.gb_per_s is second.tflop_per_s is None
    assert (first.tensor_core, first.data_path, first.num_warps) == ("wgmma", "cp.async", 8)
    assert first.waves == 16 / (first.blocks_per_sm * 132)
    assert first.limiter in ("registers", "shared memory") and 0 < first.occupancy <= 1
    assert 0 < sum(first.mix.values()) <= 1
    text = as_text([first, second], "measured (a GPU)")
    assert text.startswith("times are measured (a GPU)")
    assert "33% of a copy" in text and "wgmma tensor cores" in text and f"{first.registers} registers" in text


def test_a_launch_alone_is_one_node_and_another_kernel(twice):
    one = alone(twice, 1)
    assert len(one.plan.nodes) == 1 and one.binaries == twice.binaries
    assert one.hash != twice.hash


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    whole = [sys.executable, "-m", "evo_kernel.cli.main", "profile", *arguments]
    return subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_the_command():
    seed = "evo_kernel/tasks/builtin/softmax/seed.py"
    done = command(seed, "--task", "softmax", "--case", "m16384-n1000", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (kernel,) = found["cases"].pop("m16384-n1000")
    assert found["environment"]["kind"] == "modeled" and not found["cases"]
    assert kernel["share"] == 1.0 and kernel["us"] > 10 and kernel["terms"]["dram"] > 1
    missing = command("none.py", "--task", "softmax")
    assert missing.returncode == 2 and "none.py" in missing.stderr and "Traceback" not in missing.stderr
