"""Grid and contraction rewrites: what they offer and refuse, what they write, and that it computes the same."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from operators.micro.module import KernelModule
from operators.micro.rewrites.arithmetic import InputPrecision
from operators.micro.rewrites.base import Rewrite, RewriteFailed
from operators.micro.rewrites.causal import CausalSkip
from operators.micro.rewrites.descriptor import TensorDescriptor
from operators.micro.rewrites.loops import SoftwarePipeline
from operators.micro.rewrites.persistent import Persistent
from operators.micro.rewrites.split_k import SplitK
from operators.micro.rewrites.swizzle import Swizzle
from tests.operators.support_grid import FP32_ERROR, PRODUCT, TF32_ERROR, answers, applied, card, seed

ALL: tuple[Rewrite, ...] = (
    Swizzle(),
    SplitK(),
    CausalSkip(),
    InputPrecision(),
    TensorDescriptor(),
    SoftwarePipeline(),
    Persistent(),
)
GOLDEN = Path(__file__).parent / "golden"
SOURCES = {
    "product": (PRODUCT, "matmul"),
    **{name: (seed(name), name) for name in ("matmul", "linear_gelu", "attention")},
}


def offered(text: str, **about) -> set[str]:
    module = KernelModule.parse(text)
    return {rewrite.name for rewrite in ALL if rewrite.offers(module, card(**about))}


# -- what is offered -----------------------------------------------------------------------------------------------


def test_offers_follow_from_the_source():
    tiles = {"swizzle", "split-k", "software-pipeline", "persistent"}
    assert offered(seed("matmul")) == tiles | {"tensor-descriptor"}
    assert offered(seed("linear_gelu")) == tiles | {"tensor-descriptor"}
    assert offered(seed("attention")) == {
        "causal-skip",
        "persistent",
        "software-pipeline",
        "tensor-descriptor",
    }
    assert offered(seed("softmax")) == {"software-pipeline", "persistent"}
    assert offered(PRODUCT) == tiles | {"input-precision"}


def test_relaxed_precision_needs_the_tasks_contract():
    def operands(**about):
        strategies = InputPrecision().offers(KernelModule.parse(PRODUCT), card(**about))
        return {dict(strategy.parameters)["operands"] for strategy in strategies}

    assert operands(dtype="float32") == {"tf32x3", "bf16x6"}  # as exact, by several products on tensor cores
    assert operands(dtype="float32", precision="tf32") == {"tf32"}
    assert operands(dtype="bfloat16") == {"half"}


@pytest.mark.parametrize("rewrite", ALL, ids=lambda rewrite: rewrite.name)
def test_nothing_is_offered_twice_and_what_is_not_offered_fails(rewrite):
    for text, _ in SOURCES.values():
        module = KernelModule.parse(text)
        for strategy in rewrite.offers(module, card(inputs=len(module.run.args.args))):
            changed = KernelModule.parse(rewrite.changed(module, strategy))
            compile(changed.text, rewrite.name, "exec")  # what parses may still name a parameter twice
            assert strategy not in rewrite.offers(changed, card(inputs=len(module.run.args.args)))
            with pytest.raises(RewriteFailed):
                rewrite.changed(changed, strategy)


REFUSED = {
    "swizzle": ("cols = pid_n", "cols = pid_m"),  # both operands move with one coordinate: nothing to share
    "split-k": ("acc += tl.dot", "acc = acc * 0.5\n        acc += tl.dot"),
    "input-precision": ('tl.dot(a, b, input_precision="ieee")', 'tl.dot(a * 2, b, input_precision="tf32")'),
    "software-pipeline": ("in range(", "in tl.range("),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_precondition_is_refused(name):
    old, new = REFUSED[name]
    assert old in PRODUCT
    assert name in offered(PRODUCT) - offered(PRODUCT.replace(old, new))


CAUSAL_REFUSED = {
    "a mask that is not causal": ("keys[None, :] <= rows[:, None]", "keys[None, :] >= rows[:, None]"),
    "masked scores that still count": ('scores, float("-inf"))', "scores, -1.0)"),
    "a count of all keys": ("row_sum += tl.sum(", "row_sum += 1.0 + tl.sum("),
    "keys in another order": ("keys = start + cols", "keys = length - start - cols"),
}


@pytest.mark.parametrize("case", CAUSAL_REFUSED)
def test_causal_skip_wants_a_proof(case):
    old, new = CAUSAL_REFUSED[case]
    text = seed("attention")
    assert old in text
    before = CausalSkip().changed(KernelModule.parse(text), CausalSkip().offers(KernelModule.parse(text), card())[0])
    assert before.count("tl.minimum(") == 3
    module = KernelModule.parse(text.replace(old, new))
    after = [CausalSkip().changed(module, strategy) for strategy in CausalSkip().offers(module, card())]
    assert all(changed.count("tl.minimum(") < 3 for changed in after)


def test_descriptors_want_zeros_outside_and_plain_bounds():
    text = seed("matmul")
    assert "tensor-descriptor" not in offered(text.replace("other=0.0", "other=1.0"))
    assert "tensor-descriptor" not in offered(
        text.replace("rows[:, None] < m)", "rows[:, None] != m)").replace("cols[None, :] < n)", "cols[None, :] != n)")
    )


# -- what is written -----------------------------------------------------------------------------------------------

GOLDEN_PATHS = {
    "swizzle": (PRODUCT, (Swizzle(),)),
    "split_k": (PRODUCT, (SplitK(),)),
    "precision": (PRODUCT, (InputPrecision(),)),
    "pipeline": (PRODUCT, (SoftwarePipeline(),)),
    "descriptor": (seed("linear_gelu"), (TensorDescriptor(),)),
    "causal": (seed("attention"), (CausalSkip(),)),
}


@pytest.mark.parametrize("name", GOLDEN_PATHS)
def test_golden(name):
    """EVO_GOLDEN=write pytest ... writes the files anew; read the diff before you commit it."""
    text, rewrites = GOLDEN_PATHS[name]
    path, got = GOLDEN / f"grid_{name}.txt", applied(text, *rewrites)
    if os.environ.get("EVO_GOLDEN") == "write":
        path.write_text(got)
    assert got == path.read_text()


def test_untouched_text_stays():
    text = PRODUCT.replace("    # which tile this is\n", "    # which tile this is\n    # (a note)\n")
    for rewrite in (InputPrecision(), SoftwarePipeline()):
        assert "# (a note)" in applied(text, rewrite)


# -- what it computes ----------------------------------------------------------------------------------------------


def walks(depth: int) -> list[tuple[str, str, str]]:
    """(path, text, task) of every walk of up to `depth` rewrites from every source."""
    found = []
    for name, (text, task) in SOURCES.items():
        level = [(name, text)]
        for _ in range(depth):
            level = [(f"{path} > {s.key}", r.changed(m, s)) for path, old in level for m, r, s in _offers(old)]
            found += [(path, changed, task) for path, changed in level]
    return found


def _offers(text: str):
    module = KernelModule.parse(text)
    about = card(inputs=len(module.run.args.args))
    return [(module, rewrite, strategy) for rewrite in ALL for strategy in rewrite.offers(module, about)]


def test_every_rewrite_and_some_pairs_compute_the_same():
    single = walks(1)
    pairs = [walk for walk in walks(2) if walk not in single]
    chosen = single + list(itertools.islice(pairs, 0, None, 32))
    found = answers("execute", [(text, task) for _, text, task in chosen])
    wrong = [
        (path, value, why)
        for (path, _, task), (value, why) in zip(chosen, found, strict=True)
        if why or value > (TF32_ERROR if "attention" in task else FP32_ERROR)
    ]
    assert len(single) > 14
    assert not wrong


def test_long_walks_compose():
    """Among them: the kernel that adds shares up finds its tiles by their number, which a swizzle must not change."""
    walks = [
        (SplitK(), InputPrecision(), Swizzle(), SoftwarePipeline()),
    ]
    jobs = [(applied(PRODUCT, *walk), "matmul") for walk in walks]
    jobs.append((applied(seed("matmul"), Swizzle(), SplitK()), "matmul"))
    found = answers("execute", jobs)
    assert all(not reason and error < FP32_ERROR for error, reason in found)


def test_fallback_kernels_are_left_alone():
    text = applied(seed("matmul"), TensorDescriptor())
    module = KernelModule.parse(text)
    regions = {s.region for rewrite in ALL for s in rewrite.offers(module, card())}
    assert regions == {"kernel matmul_tma_kernel"}
