"""Make the problems: parents by random walks of the rewriter, and kernels with one planted fault.

    python -m benchmarks.agents.prepare --out benchmarks/agents/problems.json.gz

No GPU is needed. Every planted fault fails the judge's probe on a CPU in its category; whether a parent is right is for
the judge to say when it is measured. The same seed makes the same problems, for one version of rewriter and tasks.
"""

from __future__ import annotations

import argparse
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import FIGURES_OF
from benchmarks.agents import planting
from benchmarks.agents.problems import CATEGORIES, SHIPPED, Parent, Planted, Problems, save
from evo_kernel.errors import OperatorFailed
from evo_kernel.fitness.judge import JudgeSettings, PlanJudge, open_judge
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.task import Task
from evo_kernel.types import Evaluation, Purpose, Source, Strategy
from operators.micro.coder import RewriteCoder
from operators.micro.faults import fault_of

PARENTS, DEEPEST = 120, 4
PLANTED = 40
TRIES = 60  # walks a wanted parent; kernels that a category is tried on


def main(arguments: list[str] | None = None) -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--out", type=Path, default=SHIPPED)
    made.add_argument("--parents", type=int, default=PARENTS)
    made.add_argument("--planted", type=int, default=PLANTED)
    made.add_argument("--tasks", default=",".join(FIGURES_OF), help="comma-separated")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--threads", type=int, default=2)
    made.add_argument("--look", action="store_true", help="leave parents out that fail the judge's probe on a CPU")
    chosen = made.parse_args(arguments)
    tasks = [load(name) for name in chosen.tasks.split(",")]
    shares = shared_out(chosen.parents, {task.name: offers_of(task) for task in tasks})
    wanted = categories_by_task(tasks, chosen.planted)
    parents: list[Parent] = []
    planted: list[Planted] = []
    for task in tasks:
        with open_judge(task, device="cpu", settings=JudgeSettings(tune_plans=0, deadline_s=30.0)) as judge:
            own = walked(task, shares[task.name], chosen.seed, judge if chosen.look else None, chosen.threads)
            parents += own
            planted += plant(task, own, wanted[task.name], judge, chosen.seed)
        print(f"{task.name}: {len(own)} parents, {len(planted)} planted so far", flush=True)
    problems = Problems(tuple(parents), tuple(planted))
    save(problems, chosen.out)
    print(f"depths {sorted(Counter(one.depth for one in parents).items())}")
    print(f"faults {dict(Counter(one.category for one in planted))}")
    print(f"mutations {dict(Counter(one.mutation for one in planted))}")
    print(f"{len(parents)} parents, {len(planted)} faults in {chosen.out}: {chosen.out.stat().st_size} bytes")


def offers_of(task: Task) -> int:
    return len(RewriteCoder().offer(first_kernel(task), task.card()))


def shared_out(total: int, weights: dict[str, int]) -> dict[str, int]:
    """`total` by weight: whole numbers that add up to it, the largest remainders rounded up; at least one each."""
    whole = sum(weights.values())
    exact = {name: total * weight / whole for name, weight in weights.items()}
    found = {name: max(1, int(part)) for name, part in exact.items()}
    for name in sorted(exact, key=lambda name: int(exact[name]) - exact[name]):
        if sum(found.values()) < total:
            found[name] += 1
    return found


def walked(task: Task, count: int, seed: int, judge: PlanJudge | None, threads: int) -> list[Parent]:
    """The first kernel, then ends of random walks of 1 to DEEPEST steps in turn: distinct kernels that pass the probe.

    Fewer than `count` where the rewriter does not reach so many.
    """
    rng = np.random.default_rng([seed, int.from_bytes(task.name.encode()[:4], "big")])
    coder, card, first = RewriteCoder(), task.card(), first_kernel(task)
    made: dict[str, tuple[Strategy, ...]] = {first.text: ()}
    for number in range(TRIES * count):
        if len(made) == count:
            break
        walk = _walk(coder, card, first, 1 + number % DEEPEST, rng)
        if walk is not None and walk[0] not in made:
            made[walk[0]] = walk[1]
    if judge is not None:
        with ThreadPoolExecutor(threads) as pool:
            verdicts = list(pool.map(lambda text: judge.evaluate(Source(text), Purpose.PROBE), made))
        for text, verdict in zip(list(made), verdicts, strict=True):
            if not verdict.passed:
                print(f"    left out: {verdict.status}: {verdict.reason[:150]}", flush=True)
                del made[text]
    return [Parent(f"{task.name}.{n}", task.name, path, text) for n, (text, path) in enumerate(made.items())]


def _walk(coder: RewriteCoder, card, first: Source, depth: int, rng) -> tuple[str, tuple[Strategy, ...]] | None:
    """A kernel `depth` steps away; None where the walk ends before."""
    source, path = first, ()
    for _ in range(depth):
        offers = [one for one in coder.offer(source, card) if one.key not in {s.key for s in path}]
        if not offers:
            return None
        chosen = offers[int(rng.integers(len(offers)))]
        try:
            source = Source(coder.implement(source, chosen, card, rng))
        except OperatorFailed:
            return None
        path = (*path, chosen)
    return source.text, path


def categories_by_task(tasks: list[Task], total: int) -> dict[str, list[str]]:
    """Which faults each task gets: as many of each category, spread over the tasks in turn.

    A launch that does not fit into shared memory needs a kernel that uses some: those with a contraction.
    """
    wanted: dict[str, list[str]] = {task.name: [] for task in tasks}
    contractions = [task.name for task in tasks if "tl.dot" in first_kernel(task).text]
    for at, category in enumerate(CATEGORIES):
        able = contractions if category == "launch" else list(wanted)
        for number in range(_part(total, len(CATEGORIES), at) if able else 0):
            wanted[able[(number + 3 * at) % len(able)]].append(category)
    return wanted


def plant(task: Task, parents: list[Parent], wanted: list[str], judge: PlanJudge, seed: int) -> list[Planted]:
    """Kernels with one fault each, of the wanted categories, mutations as varied as the kernels allow."""
    rng = np.random.default_rng([seed, 1, int.from_bytes(task.name.encode()[:4], "big")])
    made: list[Planted] = []
    used: Counter[str] = Counter()
    for number, category in enumerate(wanted):
        found = _planted(task, parents, category, used, judge, rng)
        if found is None:
            print(f"    no {category} fault in {task.name}", flush=True)
            continue
        used[found.mutation] += 1
        made.append(replace(found, id=f"{task.name}.{category}.{number}"))
    return made


def _planted(
    task: Task, parents: list[Parent], category: str, used: Counter[str], judge: PlanJudge, rng: np.random.Generator
) -> Planted | None:
    """One more, by a mutation that was used least so far on this task."""
    tried = 0
    for position in rng.permutation(len(parents)):
        parent = parents[int(position)]
        options = list(planting.variants(parent.text, category))
        order = sorted(rng.permutation(len(options)), key=lambda at: used[options[int(at)][0]])
        names: Counter[str] = Counter()
        for at in order:
            mutation, text = options[int(at)]
            names[mutation] += 1
            if names[mutation] > 2:
                continue
            tried += 1
            verdict = judge.evaluate(Source(text), Purpose.PROBE)
            if _is_of(verdict, category):
                right = planting.plain(parent.text)
                return Planted(
                    "", category, mutation, task.name, parent.id, text, right, str(verdict.status), verdict.reason
                )
            if tried >= TRIES:
                return None
    return None


def _is_of(verdict: Evaluation, category: str) -> bool:
    fault = fault_of(verdict)
    return fault is not None and str(fault) == category


def _part(total: int, count: int, position: int) -> int:
    """The share of one of `count`, whole numbers that add up to `total`."""
    return total * (position + 1) // count - total * position // count


if __name__ == "__main__":
    main()
