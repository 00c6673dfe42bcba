"""Leaving families of training tasks out."""

from benchmarks.left_out import leaving_out
from tests.operators.learning.planted import planted


def test_one_family_is_held_out_and_nothing_else() -> None:
    tree = planted(problems=6, steps=1, held_out=2).within("train")
    found = leaving_out(tree, "family0")
    assert {one.family for one in found.problems.values() if one.split == "held-out"} == {"family0"}
    assert {one.family for one in found.problems.values() if one.split == "train"} == {"family1"}
    assert {root.task for root in found.roots("held-out")} == {"task0", "task1"}
