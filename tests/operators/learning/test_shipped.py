"""What comes with the package is what the documentation says of it."""

from __future__ import annotations

from evo_kernel.tasks.loading import builtin_names
from operators.learning import TREE
from operators.learning.tree import HELD_OUT, Tree


def test_the_shipped_tree_holds_enough_and_no_benchmark() -> None:
    assert TREE.stat().st_size < 40e6
    tree = Tree.load(TREE)
    tasks = {problem.task for problem in tree.problems.values()}
    assert tree.plans >= 20_000 and tree.settings >= 20_000
    assert len(tasks) >= 10 and tasks <= set(builtin_names())
    held_out = {problem.family for problem in tree.problems.values() if problem.split == "held-out"}
    assert held_out == set(HELD_OUT)
    assert len(tree.roots("train")) > len(tree.roots("held-out")) >= 4
    assert {one.kind for one in tree.environments.values()} == {"measured"}
    assert "train collect" in tree.command and ":" not in tree.command  # built-in tasks alone
