"""Profiles: what is read from the code, what follows from a time, and the command."""

from __future__ import annotations

import json

import pytest

from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.costmodel.targets import H200
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Fill, View
from evo_kernel.fitness.profiling.profiler import CaseProfile, LaunchCost, alone, costs_of, profile, rest_note
from evo_kernel.fitness.timing.ceilings import Ceilings
from tests.fitness.handmade import counted_traffic, matmul_plan
from tests.fitness.test_counters import RAW
from tests.support.commands import evo_main
from tests.support.small_tasks import small_softmax

CEILINGS = Ceilings.of_target(H200)


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
    costs = [LaunchCost(30.0, bytes=42.6e6, flops={"fp16": 2 * 512**3}), LaunchCost(10.0)]
    first, second = profile(twice, costs, H200, CEILINGS)
    assert (first.share, second.share) == (0.75, 0.25)
    assert first.gb_per_s == pytest.approx(1420.0) and first.bandwidth_share == pytest.approx(1 / 3)
    assert first.tflop_per_s == pytest.approx(8.948, rel=1e-3)
    assert first.roofline_share == pytest.approx(1 / 3)
    assert second.gb_per_s is second.tflop_per_s is second.roofline_share is None and second.bound_by == "unknown"
    assert (first.tensor_core, first.data_path, first.num_warps) == ("wgmma", "cp.async", 8)
    assert first.waves == 16 / (first.blocks_per_sm * 132)
    assert first.limiter in ("registers", "shared memory") and 0 < first.occupancy <= 1
    assert 0 < sum(first.mix.values()) <= 1
    text = CaseProfile((first, second), ("a note",)).as_text("measured (a GPU)")
    assert text.startswith("times are measured (a GPU); bytes and tl.dot are counted by executing the IR")
    assert text.splitlines()[1] == "a note"
    assert "33% of the copy bandwidth; 8.9 TFLOP/s in tl.dot, 33% of the roofline\n" in text and "of light" not in text
    assert "wgmma tensor cores" in text and f"{first.registers} registers" in text


def test_a_measured_launch_has_counted_bytes_and_hardware_counters(twice):
    one = alone(twice, 0)
    (cost,) = costs_of(one, [40.0], counted_traffic(one.plan), [RAW], H200)
    assert sum(cost.flops.values()) == pytest.approx(2 * 512**3)
    assert 3 * 512 * 512 <= cost.bytes / 2 <= 4.5 * 512 * 512  # fp16 inputs once each, and the output
    (found,) = profile(one, [cost], H200, CEILINGS)
    assert found.roofline_share == pytest.approx(max(cost.bytes / 4.26e12, 2 * 512**3 / 789e12) / 40e-6)
    assert (found.bound_by, found.evidence) == ("memory", "device memory at 71% of peak")
    (line,) = [x for x in CaseProfile((found,)).as_text("x").splitlines() if "occupancy" in x]
    assert "achieved" not in line, "it was not counted"
    bare = costs_of(one, [40.0], None, [{}], H200)
    assert bare == [LaunchCost(40.0)]
    assert "not measured" not in CaseProfile(tuple(profile(one, bare, H200, CEILINGS))).as_text("x")


def test_launches_that_skip_work_when_timed_alone_are_flagged(twice):
    (fast,) = profile(alone(twice, 0), [LaunchCost(2.0, bytes=42.6e6, clock_mhz=1605.0)], H200, CEILINGS)
    text = CaseProfile((fast,)).as_text("x")
    assert "faster than light" in text and "of the kernels' time, SM clock 1605 MHz\n" in text
    (slow,) = profile(alone(twice, 0), [LaunchCost(11.0, bytes=42.6e6)], H200, CEILINGS)
    assert "faster than light" not in CaseProfile((slow,)).as_text("x") and "clock" not in CaseProfile((slow,)).as_text(
        "x"
    )
    assert "take 5.9 µs, but the plan takes 212.0 µs" in rest_note([5.0, 0.9], 212.0, [])
    assert rest_note([150.0], 212.0, []) == rest_note([], 3.0, []) == ""
    by_torch = rest_note([150.0], 212.0, ["aten.mm.default"] * 2)
    assert by_torch == "launches take 150.0 of 212.0 µs; the rest is PyTorch's: aten.mm.default"


def test_a_launch_alone_keeps_its_small_tables(twice):
    launch = twice.plan.nodes[0]
    view = twice.plan.inputs[0]
    table = Fill(view=View(buffer=view.buffer, dtype="bfloat16", shape=(4,), strides=(1,)), value=0)
    large = Fill(view=view, value=0)
    other = table.model_copy(update={"view": table.view.model_copy(update={"buffer": 7})})
    plan = twice.plan.model_copy(update={"nodes": (table, large, other, launch, table, launch)})
    assert alone(CompiledPlan.model_construct(plan=plan, binaries=twice.binaries), 0).plan.nodes == (table, launch)
    assert alone(CompiledPlan.model_construct(plan=plan, binaries=twice.binaries), 1).plan.nodes == (
        table,
        table,
        launch,
    )


def test_a_launch_alone_is_one_node_and_another_kernel(twice):
    one = alone(twice, 1)
    assert len(one.plan.nodes) == 1 and one.binaries == twice.binaries
    assert one.hash != twice.hash


CASES = {"check": [{"m": 5, "n": 127}], "search": [{"m": 64, "n": 128}, {"m": 8192, "n": 1000}]}
CASE = "m8192-n1000"


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    """The first kernel of a small task, which lies beside it."""
    return small_softmax(tmp_path_factory.mktemp("softmax"), CASES).path.parent / "seed.py"


def on_cpu(seed):
    return (str(seed), "--task", str(seed.parent), "--device", "cpu")


def test_the_command(seed):
    done = evo_main("profile", *on_cpu(seed), "--case", CASE, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    case = found["cases"].pop(CASE)
    (kernel,) = case["kernels"]
    assert not case["notes"] and 0.2 < kernel["roofline_share"] < 1
    longest = max(kernel["terms"][name] for name in ("dram", "l2", "issue"))
    assert (kernel["bound_by"] in ("memory", "issue")) == (longest >= 0.6 * kernel["us"])
    assert found["environment"]["kind"] == "modeled" and not found["cases"]
    assert kernel["share"] == 1.0 and kernel["us"] > 10 and kernel["terms"]["dram"] > 1
    assert case["bottleneck"] == f"{kernel['bound_by']}: {kernel['evidence']}; 1 launch"
    verified = evo_main("verify", *on_cpu(seed))
    said = [line for line in verified.stdout.splitlines() if line.startswith(f"bottleneck on {CASE}: ")]
    assert said == [f"bottleneck on {CASE}: {case['bottleneck']}"]
    missing = evo_main("profile", "none.py", "--task", "softmax")
    assert missing.returncode == 2 and "none.py" in missing.stderr and "Traceback" not in missing.stderr


def test_counters_that_are_asked_for_and_cannot_be_had_are_a_sentence(seed):
    done = evo_main("profile", *on_cpu(seed), "--counters")
    assert done.returncode == 0 and "\nno hardware counters: there is no GPU here\n" in done.stdout
