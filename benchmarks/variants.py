"""What the GPU benchmarks share: tasks cut down to one search case, and many distinct kernels of a task."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.fitness.tuning.proposals import find_knobs, too_large
from evo_kernel.knobs import apply_knobs
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Task
from evo_kernel.types import Source
from operators.micro.coder import RewriteCoder

CASES: dict[str, dict[str, int]] = {
    "softmax": {"m": 4096, "n": 4096},
    "rmsnorm": {"m": 4096, "n": 4096},
    "matmul": {"m": 4096, "n": 4096, "k": 4096},
    "attention": {"b": 4, "h": 16, "s": 4096, "d": 128},
}
"""The published figures' search cases."""
FIXED = {"attention": (128,)}
"""Tile sizes that no knob sets."""


def narrowed(name: str, folder: Path) -> Task:
    """A built-in task with the one search case of the figures, its check cases, and no compiled baseline."""
    return with_search_cases(load(name), [CASES[name]], folder)


def with_search_cases(original: Task, cases: list[dict[str, int]], folder: Path) -> Task:
    """A built-in task with these search cases, its check cases, and no compiled baseline."""
    place = folder / original.name
    place.mkdir(parents=True, exist_ok=True)
    for path in original.path.parent.glob("*.py"):
        shutil.copy(path, place / path.name)
    lines = [
        f"CASES['search'] = {cases!r}",
        "CASES.pop('confirm', None)",
        "reference.compiled_baseline = False",
    ]
    (place / "task.py").write_text(original.text + "\n\n" + "\n".join(lines) + "\n")
    return load(place)


def variants(task: Task, count: int, seed: int = 0, structures: int = 48) -> list[Source]:
    """Up to `count` distinct sources: walks of the rewriter from the seed, each in many knob settings."""
    assert task.seed is not None
    rng = np.random.default_rng(seed)
    shapes = walks(task, structures, rng)
    made: dict[str, Source] = {task.seed.text: task.seed}
    for _ in range(20 * count):
        if len(made) >= count:
            break
        source = shapes[int(rng.integers(len(shapes)))]
        drawn = [(k.name, int(rng.choice(k.choices))) for k in find_knobs(source) if not k.name.endswith(".config")]
        setting = tuple(sorted(drawn))
        if too_large(setting, FIXED.get(task.name, ())):
            continue
        changed = apply_knobs(source, setting)
        made.setdefault(changed.text, changed)
    return list(made.values())


def walks(task: Task, count: int, rng: np.random.Generator) -> list[Source]:
    """The seed and what walks of the rewriter from it make, up to `count`."""
    assert task.seed is not None
    coder, card = RewriteCoder(), task.card()
    found = [task.seed]
    for _ in range(10 * count):
        if len(found) >= count:
            break
        parent = found[int(rng.integers(len(found)))]
        offers = coder.offer(parent, card)
        if not offers:
            continue
        try:
            text = coder.implement(parent, offers[int(rng.integers(len(offers)))])
        except OperatorFailed:
            continue
        if all(text != other.text for other in found):
            found.append(Source(text))
    return found
