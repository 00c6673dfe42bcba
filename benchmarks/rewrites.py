"""How good the offline rewriter's offers are: correct, compiled, and really another plan.

    python -m benchmarks.rewrites [--tasks softmax,matmul] [--depth-two 60] [--walks 0] [--seed 0] [--no-compile]

On the first kernels of the built-in tasks and of a few lowered references, every offered rewrite is made once, and a
random sample of pairs of rewrites. Each result is executed without a GPU on the task's check cases against
float64 references, and recorded and compiled for sm_90, to see whether
its plans differ from its parent's on some search case (changed), whether the sign of the strategy shows in the plan
(witnessed), and how many of the other strategies would be believed if they were claimed (mistaken).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks import FIGURES_OF
from evo_kernel.fitness.compiling.compiler import Compiler
from evo_kernel.fitness.features import plan_features
from evo_kernel.fitness.plan import CompiledPlan
from evo_kernel.fitness.record.cases import record_case
from evo_kernel.fitness.record.recorder import Recorder
from evo_kernel.fitness.targets import target_for
from evo_kernel.tasks.first import first_kernel
from evo_kernel.tasks.loading import builtin_names, load
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind, Source, Strategy
from operators.macro import signs
from operators.macro.catalogue import CATALOGUE
from operators.micro.module import KernelModule, SourceError
from operators.micro.rewrites import REWRITES, RewriteFailed

HERE = Path(__file__).resolve()
LOWERED = {
    "scaled_softmax": (
        "def inputs(case, generator, device):\n"
        "    draw = lambda *s: torch.randn(*s, generator=generator, device=device)\n"
        "    return draw(case['m'], case['n']), draw(case['n']), draw(case['n'])\n\n\n"
        "def reference(x, w, b):\n    return torch.softmax(torch.relu(x * w + b) * 0.5 + x, -1)\n"
    ),
    "centred_norm": (
        "def inputs(case, generator, device):\n"
        "    return (torch.randn(case['m'], case['n'], generator=generator, device=device),)\n\n\n"
        "def reference(x):\n    y = x - x.mean(-1, keepdim=True)\n"
        "    return y / (y.abs().sum(-1, keepdim=True) + 1.0)\n"
    ),
}
LOWERED["half_rms"] = (
    "def inputs(case, generator, device):\n"
    "    draw = lambda *s: torch.randn(*s, generator=generator, device=device).bfloat16()\n"
    "    return draw(case['m'], case['n']), draw(case['n'])\n\n\n"
    "def reference(x, w):\n    y = torch.sigmoid(x) * x\n"
    "    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6) * w\n"
)
LOWERED["linear_relu"] = (
    "def inputs(case, generator, device):\n"
    "    draw = lambda *s: torch.randn(*s, generator=generator, device=device).half()\n"
    "    return draw(case['m'], 64), draw(64, case['n']), draw(case['n'])\n\n\n"
    "def reference(x, w, b):\n    return torch.relu(x @ w + b) * 2.0\n"
)
CASES = (
    "import torch\n\nCASES = {'check': [{'m': 1, 'n': 1}, {'m': 5, 'n': 127}, {'m': 7, 'n': 512}],"
    " 'search': [{'m': 4096, 'n': 4096}, {'m': 8192, 'n': 1000}]}\n\n\n"
)


FIGURES = ("correct", "compiled", "changed", "witnessed", "mistaken")


@dataclass
class Made:
    """One rewritten source and what came of it."""

    task: str
    path: tuple[Strategy, ...]
    text: str
    parent: str  # text
    depth: int
    error: str = ""
    correct: bool = False
    compiled: bool = False
    changed: bool = False
    witnessed: bool = False  # its plan shows the sign of the strategy
    mistaken: float = 0.0  # share of the other strategies whose signs the plan shows too
    details: dict[str, str] = field(default_factory=dict)


def tasks_of(names: list[str], folder: Path) -> dict[str, Path | str]:
    """Task name → what `load` takes."""
    found: dict[str, Path | str] = {name: name for name in builtin_names()}
    for name, text in LOWERED.items():
        path = folder / f"{name}.py"
        path.write_text(CASES + text)
        found[name] = path
    return {name: spec for name, spec in found.items() if name in (names or (*FIGURES_OF, *LOWERED))}


def offers_of(text: str, task: Task) -> list[Strategy]:
    module, card = KernelModule.parse(text), task.card()
    return [strategy for rewrite in REWRITES.values() for strategy in rewrite.offers(module, card)]


def rewritten(name: str, text: str, strategy: Strategy, path: tuple[Strategy, ...]) -> Made:
    made = Made(name, (*path, strategy), "", text, len(path) + 1)
    try:
        made.text = REWRITES[strategy.name].apply(KernelModule.parse(text), strategy)
        KernelModule.parse(made.text)
    except (RewriteFailed, SourceError) as error:
        made.error = f"{type(error).__name__}: {error}"
    return made


def all_made(tasks: dict[str, Task], pairs: int, generator: np.random.Generator) -> list[Made]:
    """Every rewrite once, then a random sample of second rewrites on the first ones' results."""
    found = [
        rewritten(name, text, strategy, ())
        for name, task in tasks.items()
        for text in [first_kernel(task).text]
        for strategy in offers_of(text, task)
    ]
    firsts = [made for made in found if made.text]
    for _ in range(pairs if firsts else 0):
        first = firsts[int(generator.integers(len(firsts)))]
        offered = offers_of(first.text, tasks[first.task])
        if offered:
            strategy = offered[int(generator.integers(len(offered)))]
            found.append(rewritten(first.task, first.text, strategy, first.path))
    return found


def walks(tasks: dict[str, Task], count: int, depth: int, generator: np.random.Generator) -> list[Made]:
    """Random walks of up to `depth` rewrites; only their ends are looked at."""
    found, names = [], list(tasks)
    for number in range(count):
        name = names[number % len(names)]
        made = Made(name, (), first_kernel(tasks[name]).text, "", 0)
        while made.depth < depth and made.text and (offered := offers_of(made.text, tasks[name])):
            strategy = offered[int(generator.integers(len(offered)))]
            made = rewritten(name, made.text, strategy, made.path)
        found.append(made)
    return [made for made in found if made.path]


def check(made: list[Made], specs: dict[str, Path | str], deadline_s: float) -> None:
    """Execute each without a GPU, in one child (again for the rest, when one takes the child down)."""
    todo = [one for one in made if one.text]
    while todo:
        answers = _child([(one.text, str(specs[one.task])) for one in todo], deadline_s)
        for one, (correct, reason) in zip(todo, answers, strict=False):
            one.correct, one.error = correct, reason
        if len(answers) < len(todo):
            todo[len(answers)].error = "the child ended on it"
        todo = todo[len(answers) + 1 :]


def _child(jobs: list[tuple[str, str]], deadline_s: float) -> list[tuple[bool, str]]:
    with tempfile.TemporaryDirectory() as folder:
        listing = Path(folder) / "jobs.json"
        listing.write_text(json.dumps(jobs))
        answers = Path(folder) / "answers.jsonl"
        subprocess.run(
            [sys.executable, "-m", "benchmarks.rewrites_child", str(listing), str(answers)],
            cwd=HERE.parents[1],
            timeout=deadline_s,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
        )
        lines = answers.read_text().splitlines() if answers.exists() else []
        return [tuple(json.loads(line)) for line in lines]


class Plans:
    """Plans of texts, through the recorder."""

    def __init__(self) -> None:
        self.compiler = Compiler(90, 120.0)
        self.recorder = Recorder(self.compiler, 90, 60.0)
        self.known: dict[str, dict[str, CompiledPlan] | str] = {}

    def of(self, text: str, task: Task) -> dict[str, CompiledPlan] | str:
        """The plan of each search case, or why there is none."""
        if text not in self.known:
            cases = [record_case(task, case) for case in task.cases_of(CaseKind.SEARCH)]
            recording = self.recorder.record(Source(text), cases, ((),))
            plans = {case: plan for (case, _), plan in recording.plans.items() if isinstance(plan, CompiledPlan)}
            self.known[text] = recording.fault.reason if recording.fault is not None else plans
        return self.known[text]


def compile_all(made: list[Made], tasks: dict[str, Task]) -> None:
    plans = Plans()
    plans.compiler.start()
    plans.recorder.start()
    for one in made:
        if one.text:
            mine, parents = plans.of(one.text, tasks[one.task]), plans.of(one.parent, tasks[one.task])
            one.compiled = not isinstance(mine, str)
            if isinstance(mine, str):
                one.details["compile"] = mine[-600:]
            elif not isinstance(parents, str):
                one.changed = any(mine[case].hash != parents[case].hash for case in mine)
                witness(one, parents, mine)
    plans.recorder.close()
    plans.compiler.close()


def witness(one: Made, parents: dict[str, CompiledPlan], mine: dict[str, CompiledPlan]) -> None:
    """Which strategies' signs show on any search case, as `catalogue.witnessed` asks."""
    pairs = [
        tuple(plan_features(plans[case], None, target_for(90)) for plans in (parents, mine))
        for case in mine
        if mine[case].hash != parents[case].hash
    ]
    name = one.path[-1].name
    others = [spec for spec in CATALOGUE.values() if spec.name != name and spec.witness is not signs.changed]
    one.witnessed = any(CATALOGUE[name].witness(*pair) for pair in pairs)
    one.mistaken = sum(any(spec.witness(*pair) for pair in pairs) for spec in others) / len(others)


def table(made: list[Made], compiled: bool) -> str:
    """One line a strategy (the last of each path) and one in all."""
    groups: dict[str, list[Made]] = defaultdict(list)
    for one in made:
        groups[one.path[-1].name].append(one)
        groups[f"all, depth {one.depth}"].append(one)
    lines = [f"{'strategy':20} {'offered':>8} " + " ".join(f"{what:>9}" for what in FIGURES)]
    for name, group in sorted(groups.items(), key=lambda item: (item[0].startswith("all"), item[0])):
        shares = [f"{100 * sum(getattr(m, what) for m in group) / len(group):.0f}%" for what in FIGURES]
        if not compiled:
            shares[1:] = ["-"] * (len(FIGURES) - 1)
        lines.append(f"{name:20} {len(group):8} " + " ".join(f"{share:>9}" for share in shares))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="", help="comma-separated names; all if not given")
    parser.add_argument("--depth-two", type=int, default=60, help="how many random pairs")
    parser.add_argument("--walks", type=int, default=0, help="how many random walks, instead of the two depths")
    parser.add_argument("--depth", type=int, default=6, help="how deep the walks go")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--only", default="", help="only these strategies as the last step, comma-separated")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        specs = tasks_of([name for name in options.tasks.split(",") if name], Path(folder))
        tasks = {name: load(spec) for name, spec in specs.items()}
        generator = np.random.default_rng(options.seed)
        if options.walks:
            made = walks(tasks, options.walks, options.depth, generator)
        else:
            made = all_made(tasks, options.depth_two, generator)
        if options.only:
            made = [one for one in made if one.path[-1].name in options.only.split(",")]
        check(made, specs, 1800.0)
        if not options.no_compile:
            compile_all(made, tasks)
    for one in made:
        where = f"{one.task}: {' then '.join(s.key for s in one.path)}"
        if not one.correct:
            print(f"WRONG    {where}\n         {one.error}")
        if not options.no_compile and one.text and not one.compiled:
            print(f"BROKEN   {where}\n         {one.details.get('compile', '')}")
        elif not options.no_compile and one.text and not one.changed:
            print(f"SAME     {where}")
        elif not options.no_compile and one.text and not one.witnessed:
            print(f"UNSEEN   {where}")
    print(table(made, not options.no_compile))
    print(f"{len(made)} rewrites in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
