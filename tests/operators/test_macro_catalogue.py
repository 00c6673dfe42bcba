"""The catalogue: it matches the rewrites and the documentation, and its witnesses tell happened from claimed."""

import dataclasses

import pytest

from evo_kernel.types import Strategy
from operators.macro import catalogue
from operators.macro.catalogue import CATALOGUE, FAMILIES, STOP, witnessed
from operators.micro.coder import RewriteCoder
from operators.micro.rewrites import REWRITES
from tests.operators.support_search import TASK, broken, evaluation, kernel, plan, seed_of

BASE = plan(kernel())
TWO = plan(kernel(share=0.6), kernel(name="b", share=0.4), scratch_bytes=4096)
INSTRUCTIONS = dict(kernel().instructions)


def one(**changes):
    return plan(kernel(**changes))


def code(**changes):
    return plan(kernel(instructions=INSTRUCTIONS | changes))


HAPPENED = {
    "one-pass-row": (BASE, code(**{"ld.global": 2})),
    "multi-pass-row": (code(**{"ld.global": 2}), BASE),
    "online-row": (BASE, code(**{"ld.global": 4})),
    "rows-per-program": (BASE, one(grid=(256, 1, 1))),
    "tile-2d": (BASE, one(grid=(32, 32, 1))),
    "split-k": (BASE, plan(kernel(grid=(4096, 1, 1)), kernel(name="add"))),
    "swizzle": (one(grid=(32, 32, 1)), BASE),
    "hoist": (BASE, code(int=18)),
    "persistent": (BASE, one(grid=(264, 1, 1))),
    "launch-options": (BASE, one(registers=24)),
    "drop-masks": (BASE, code(int=12)),
    "cache-hints": (BASE, one(registers=30)),
    "tensor-descriptor": (BASE, one(data_path="tma")),
    "software-pipeline": (BASE, one(schedule="pipelined")),
    "causal-skip": (BASE, code(int=25)),
    "exp2": (BASE, code(fmul=2)),
    "accumulate-type": (BASE, code(fma=2, convert=2)),
    "input-precision": (BASE, one(tensor_core="wgmma")),
    "fuse-producer": (TWO, BASE),
    "fuse-consumer": (TWO, BASE),
}


def claim(name):
    return Strategy(name, CATALOGUE[name].family)


def test_every_rewrite_is_in_the_catalogue_and_nothing_is_promised_that_nobody_wrote():
    assert set(REWRITES) == {spec.name for spec in CATALOGUE.values() if spec.rewritten}


@pytest.mark.parametrize("task", ["softmax", "layernorm", "linear_gelu", "attention"])
def test_offers_have_the_catalogues_families(task):
    offered = RewriteCoder().offer(seed_of(task), TASK)
    assert offered
    assert [s.key for s in offered if s.family != CATALOGUE[s.name].family] == []


def test_families_and_stop():
    assert {spec.family for spec in CATALOGUE.values()} <= set(FAMILIES)
    assert STOP.name in CATALOGUE and not witnessed(STOP, evaluation(BASE, "p"), evaluation(code(int=1), "q"))


def test_every_rewritten_strategy_has_an_example_here():
    assert set(HAPPENED) == set(CATALOGUE) - {"stop"}


@pytest.mark.parametrize("name", HAPPENED)
def test_a_witness_sees_what_happened_and_not_what_did_not(name):
    parent, child = HAPPENED[name]
    assert witnessed(claim(name), evaluation(parent, "p"), evaluation(child, "q"))
    assert not witnessed(claim(name), evaluation(parent, "p"), evaluation(parent, "q"))  # same features
    assert not witnessed(claim(name), evaluation(parent, "p"), evaluation(child, "p"))  # the very same plan


def test_a_row_in_registers_is_seen_by_its_loops():
    """Unrolled loads outnumber those of the loop that they replace."""
    before, after = code(loops=2), code(**{"ld.global": 66, "st.global": 1})
    still_looping = code(**{"ld.global": 66, "st.global": 1, "loops": 2})
    assert witnessed(claim("one-pass-row"), evaluation(before, "p"), evaluation(after, "q"))
    assert not witnessed(claim("one-pass-row"), evaluation(before, "p"), evaluation(still_looping, "q"))


def test_a_sign_on_one_case_is_enough():
    """Masks go where tiles divide the shape: the slowest case may be another."""
    times = {"quick": 10.0, "slow": 100.0}

    def measured(quick, slow, name):
        whole = evaluation(quick, name)
        first = dataclasses.replace(whole.measurements[0], case="quick", plan=f"{name}-quick", median_us=times["quick"])
        second = dataclasses.replace(first, case="slow", plan=f"{name}-slow", median_us=times["slow"], features=slow)
        return dataclasses.replace(whole, measurements=(first, second))

    assert witnessed(claim("drop-masks"), measured(BASE, BASE, "p"), measured(code(int=12), BASE, "q"))
    assert not witnessed(claim("drop-masks"), measured(BASE, BASE, "p"), measured(BASE, BASE, "q"))


LEAST = {"hoist", "cache-hints", "launch-options"}


@pytest.mark.parametrize("name", sorted(set(HAPPENED) - LEAST))
def test_another_number_of_warps_is_no_witness(name):
    parent, _ = HAPPENED[name]
    kernels = (dataclasses.replace(one, num_warps=8) for one in parent.kernels)
    retuned = plan(*kernels, scratch_bytes=parent.scratch_bytes)
    assert not witnessed(claim(name), evaluation(parent, "p"), evaluation(retuned, "q"))


@pytest.mark.parametrize("name", ["one-pass-row", "online-row", "multi-pass-row", "exp2", "accumulate-type"])
def test_a_tile_twice_as_large_is_no_witness(name):
    parent, _ = HAPPENED[name]
    doubled = {key: 2 * value for key, value in parent.kernels[0].instructions.items()}
    assert not witnessed(claim(name), evaluation(parent, "p"), evaluation(plan(kernel(instructions=doubled)), "q"))


def test_nothing_is_witnessed_without_two_verdicts():
    fused = claim("fuse-consumer")
    assert witnessed(fused, evaluation(TWO, "p"), evaluation(BASE, "q"))
    assert not witnessed(fused, None, evaluation(BASE, "q"))
    assert not witnessed(fused, evaluation(TWO, "p"), broken())
    assert not witnessed(None, evaluation(TWO, "p"), evaluation(BASE, "q"))
    assert not witnessed(Strategy("by-magic", "fusion"), evaluation(TWO, "p"), evaluation(BASE, "q"))


def test_the_table_holds_every_strategy():
    assert all(f"| `{name}` | {spec.family} |" in catalogue.table() for name, spec in CATALOGUE.items())
