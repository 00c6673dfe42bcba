"""Where the time to a verdict goes: `verify` of a task's first kernel, phase by phase, beside the import of torch.

    python -m benchmarks.phases softmax rmsnorm

Each row is a whole process: wall seconds from its start to the end of each phase, and processor seconds of all its
processes together. `again` finds what the first one remembered (evo_kernel/user_cache.py); `first` finds nothing.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from evo_kernel.app import early_start
from evo_kernel.processes import adopt_orphans

PHASES = ("imports", "judge", "recorded", "examined", "verdict", "closed")
RUNS = 3


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2], float(sys.argv[3]))
        return
    adopt_orphans()  # what outlives its parent is waited for, and so counted, by this process
    tasks = sys.argv[1:] or ["softmax", "rmsnorm"]
    imported = [_timed([sys.executable, "-c", "import torch, triton"]) for _ in range(RUNS)]
    wall_s, cpu_s = (statistics.median(column) for column in zip(*[one[:2] for one in imported], strict=True))
    print(f"import torch, triton: {wall_s:.2f} s, {cpu_s:.2f} s of processors; load {os.getloadavg()[0]:.1f}\n")
    print(f"| task | {' | '.join(PHASES)} | imports of torch | processor s | imports of torch |")
    print(f"| --- |{' --- |' * (len(PHASES) + 3)}")
    for task in tasks:
        with tempfile.TemporaryDirectory() as folder:
            first = _timed(_command(task), folder)
            again = [_timed(_command(task), folder) for _ in range(RUNS)]
        middle = sorted(again)[len(again) // 2]
        for name, (whole_s, spent_s, said) in ((f"{task}, first", first), (f"{task}, again", middle)):
            ends = json.loads(said.splitlines()[-1])
            cells = " | ".join(f"{ends[phase]:.2f}" for phase in PHASES)
            print(f"| {name} | {cells} | {whole_s / wall_s:.1f} | {spent_s:.2f} | {spent_s / cpu_s:.1f} |")


def _command(task: str) -> list[str]:
    return [sys.executable, "-P", "-m", "benchmarks.phases", "--child", task, str(time.time())]


def _timed(command: list[str], cache: str = "") -> tuple[float, float, str]:
    """Wall and processor seconds of a command and all that it starts, and what it prints."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = os.environ | {"PYTHONPATH": path} | ({"XDG_CACHE_HOME": cache} if cache else {})
    before, began = _spent_s(), time.perf_counter()
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(done.stderr)
    said = done.stdout
    wall_s = time.perf_counter() - began
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return wall_s, _spent_s() - before, said


def _spent_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _child(name: str, began: float) -> None:
    """What `verify` does, with the ends of its phases as a line of JSON."""
    ends: dict[str, float] = {}

    def end(phase: str) -> None:
        ends[phase] = time.time() - began

    early_start.begin(name, "auto")
    from evo_kernel.fitness.grading import Grader
    from evo_kernel.fitness.judge import JudgeSettings, open_judge
    from evo_kernel.tasks.first import first_kernel
    from evo_kernel.tasks.loading import load
    from evo_kernel.types import Purpose

    def told(method: str, phase: str) -> None:
        whole: Callable[..., object] = getattr(Grader, method)

        def traced(*args: object, **kwargs: object) -> object:
            found = whole(*args, **kwargs)
            end(phase)
            return found

        setattr(Grader, method, traced)

    for method, phase in (("record", "recorded"), ("ask", "examined")):
        told(method, phase)
    task = load(name)
    end("imports")
    with open_judge(task, settings=JudgeSettings(tune_plans=0), score_soon=True) as judge:
        end("judge")
        evaluation = judge.evaluate(first_kernel(task), Purpose.SCORE)
        end("verdict")
    end("closed")
    assert evaluation.passed, evaluation.reason
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
