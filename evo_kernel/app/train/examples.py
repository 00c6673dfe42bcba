"""Collects examples of edits from populations, transition trees, and walks of the offline rewriter."""

from __future__ import annotations

import math
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from evo_kernel.app.train.problems import problem_task
from evo_kernel.errors import EvoKernelError, UserError
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.types import Environment, Evaluation, Source, TaskCard
from operators.learning.coder.examples import Example, Wanted, kept, of_tree, reasoning_in, write
from operators.learning.tree import INVENTED, Tree
from operators.macro.catalogue import UNGUIDED, witnessed
from populations.reading import PopulationReader

SQLITE = b"SQLite format 3\0"
MANY = 2000  # examples from which on processes are worth their start
FUSED = 0.7  # share of made-up tasks whose first kernel is one with its operations joined


def export_examples(
    out: Path,
    sources: Sequence[Path],
    wanted: Wanted,
    *,
    walks: int,
    tasks: Sequence[str],
    invented: int,
    held_out: Sequence[str],
    split: str,
    seed: int,
    workers: int,
) -> dict[str, Any]:
    """Write the examples that are wanted of these sources and of so many walks; how many of each kind they are.

    `split`: train, held-out or all. Raises UserError.
    """
    made = chain.from_iterable(examples_in(path) for path in sources)
    if walks:
        every = tasks or builtin_names()
        made = chain(made, walked(every, walks, seed, workers, wanted.characters, wanted.strategies, invented))
    chosen = [one for one in kept(made, wanted, held_out) if split in ("all", one.split)]
    if not chosen:
        raise UserError(
            "no example was left. Filters: passed, with its strategy seen in the plan (--any-witness), gain "
            f"{'any' if wanted.gain is None else wanted.gain} (--min-gain), split {split}."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    write(out, chosen, _about, workers if len(chosen) > MANY else 1)
    return {
        "examples": len(chosen),
        "splits": dict(Counter(one.split for one in chosen)),
        "families": dict(Counter(one.family for one in chosen)),
        "strategies": dict(Counter(one.strategy.name for one in chosen)),
        "with_reasoning": sum(bool(one.reasoning) for one in chosen),
        "out": str(out),
    }


@cache
def _about(task: str) -> str:
    """The task in a sentence, where it is one that can be loaded here."""
    name = task.partition("@")[0]
    return load(name).description if name in builtin_names() else ""


def examples_in(path: Path) -> Iterator[Example]:
    """Of a population or a tree. Raises UserError, PopulationError."""
    try:
        with path.open("rb") as file:
            is_population = file.read(len(SQLITE)) == SQLITE
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}. Name population files or trees of transitions.") from None
    yield from (_of_population(path) if is_population else of_tree(Tree.load(path), path.name))


def _of_population(path: Path) -> Iterator[Example]:
    with PopulationReader(path) as reader:
        for number in range(1, reader.last_candidate() + 1):
            view = reader.candidate(number)
            strategy, found = view.proposal.strategy, view.evaluation
            if view.parent is None or strategy is None or strategy.name == UNGUIDED.name or found is None:
                continue
            before = _latest(reader, view.parent, found.environment)
            yield Example(
                task=reader.task.name,
                parent=reader.relative(view.parent).source.text,
                child=view.proposal.source.text,
                strategy=strategy,
                status=found.status,
                witnessed=witnessed(strategy, before, found),
                gain=_gain(before, found),
                reasoning=reasoning_in(view.proposal.calls),
                origin=f"{path.name}#{number}",
            )


def _latest(reader: PopulationReader, number: int, environment: Environment) -> Evaluation | None:
    scores = [one for one in reader.candidate(number).evaluations if one.purpose == "score"]
    return next((one for one in reversed(scores) if one.environment.key == environment.key), None)


def _gain(parent: Evaluation | None, child: Evaluation) -> float | None:
    if parent is None or not parent.passed or not child.passed:
        return None
    gain = parent.log_us - child.log_us
    return None if math.isnan(gain) else gain


def walked(
    tasks: Sequence[str], count: int, seed: int, workers: int, most: int, strategies: frozenset[str], invented: int = 0
) -> list[Example]:
    """Examples that the rewriter makes, nobody's verdict on them. The same arguments make the same examples.

    `invented`: references that are made up besides; about half of the walks are on theirs.
    """
    for name in tasks:
        problem_task(name)  # raises UserError here, not in a child
    shares = [[total // workers + (at < total % workers) for at in range(workers)] for total in (count, invented)]
    jobs = [
        (tuple(tasks), share, [seed, number], most, strategies, made)
        for number, (share, made) in enumerate(zip(*shares, strict=True))
        if share
    ]
    if len(jobs) <= 1:
        return [one for job in jobs for one in _walk(*job)]
    with ProcessPoolExecutor(len(jobs), mp_context=multiprocessing.get_context("spawn")) as pool:
        return [one for found in pool.map(_walk, *zip(*jobs, strict=True)) for one in found]


def _walk(
    tasks: Sequence[str], count: int, seed: list[int], most: int, strategies: frozenset[str], invented: int
) -> list[Example]:
    from operators.learning.coder.walks import walks

    loaded = [problem_task(name) for name in tasks]
    firsts = [(task.card(), first_kernel(task)) for task in loaded]
    rng = np.random.default_rng(seed)
    made = list(_invented(invented, seed[-1], rng))
    firsts = [*firsts * max(1, round(len(made) / len(firsts))), *made]
    return list(walks(firsts, count, rng, most_characters=most or 4000, strategies=strategies))


def _invented(count: int, worker: int, rng: np.random.Generator) -> Iterator[tuple[TaskCard, Source]]:
    """Made-up tasks with their first kernels; fewer where some cannot be lowered."""
    from operators.learning.coder.walks import fused, invented

    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            file = Path(folder) / f"{INVENTED}_{worker}_{number}.py"
            file.write_text(invented(rng))
            try:
                task = load(file)
                card, source = task.card(), first_kernel(task)
            except EvoKernelError:  # an operation, or a form of it, that lowering does not know
                continue
            yield card, fused(source, card, rng) if rng.random() < FUSED else source
