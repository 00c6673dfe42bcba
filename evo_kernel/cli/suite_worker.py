"""A warm process of a suite: it loads what searches need once, and forks for each order that it reads.

Orders are lines of JSON on standard input, one at a time: `search` with the words of a command; or a TASK (`spec`) and
its kernel, to be written as the benchmark's own file and, with `ask`, held up to the benchmark's harness. While one is
under way, `interrupt` and `kill` are about it. The answer is its exit code, a line on standard output. At the end of
standard input the process ends, with all that it started. Argument: cores ("0,1", or empty).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo_kernel.app.suite.lanes import INTERRUPT, adopt_orphans, kill_descendants, kill_tree

if TYPE_CHECKING:
    from evo_kernel.export.kernelbench import KernelBenchSolution
    from evo_kernel.tasks.importers.kernelbench_harness import Heard

REAPED_WITHIN_S = 5.0
"""A killed process may take so long to end: the driver frees its GPU memory first."""


def main() -> None:
    adopt_orphans()
    cores = sys.argv[1]
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process with threads cannot be forked
    from evo_kernel.app import compose, notifications, operator_factory, summary  # noqa: F401
    from evo_kernel.cli import main, run  # noqa: F401

    orders = open(0, "rb", buffering=0, closefd=False)  # noqa: SIM115  unbuffered: select sees what is left
    while order := orders.readline():
        pid = os.fork()
        if not pid:
            _do(json.loads(order))
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if select.select([orders], [], [], 0.05)[0]:
                _obey(orders.readline(), pid)
        kill_tree(pid)  # what it left; it is not reaped yet, so that its group's number is nobody else's
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _kill_orphans()
        print(code, flush=True)  # noqa: T201


def _kill_orphans() -> None:
    """What an order's process left behind when it ended by itself: ours since then. Waits seconds at most."""
    until = time.monotonic() + REAPED_WITHIN_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            kill_descendants(os.getpid())
            if not os.waitpid(-1, os.WNOHANG)[0]:
                time.sleep(0.01)


def _obey(line: bytes, pid: int) -> None:
    if not line:  # nobody is left to hear the answer
        kill_tree(os.getpid())
    elif line == INTERRUPT:
        os.kill(pid, signal.SIGINT)
    else:
        kill_tree(pid)


def _do(order: dict[str, Any]) -> None:
    """In a fork of its own session, which it does not leave."""
    os.setsid()
    for number, path, mode in ((0, os.devnull, os.O_RDONLY), (1, order.pop("out"), None), (2, order.pop("err"), None)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC if mode is None else mode, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    if "search" in order:
        from evo_kernel.cli import main

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["evo-kernel", *order["search"]]
        main.main()
        sys.exit()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _ask(**order)


def _ask(spec: str, kernel: str, folder: str, device: str, ask: bool, expected_us: float | None = None) -> None:
    """Write the kernel as the benchmark's own file into `folder`; then, if wanted, ask its harness.

    One line of JSON on standard output; what others print goes to the errors.
    """
    from evo_kernel.cli.import_tasks import solution_text
    from evo_kernel.errors import EvoKernelError
    from evo_kernel.tasks.importers.kernelbench_harness import Heard
    from evo_kernel.types import Source

    answer = os.dup(1)
    os.dup2(2, 1)
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    began = time.monotonic()
    try:
        asker = _Kernelbench(spec) if spec.startswith("kernelbench:") else _Tritonbench(spec)
        module = solution_text(spec, Source(kernel), device)  # what the file is written around: its launches
        asker.write(module, folder)
        heard = asker.ask(module, folder, device, expected_us) if ask else Heard("no verdict")
    except EvoKernelError as error:
        heard = Heard("no verdict", str(error))
    except Exception as error:  # noqa: BLE001  somebody else's harness may raise anything: that is no verdict
        heard = Heard("no verdict", f"its harness failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    told = asdict(heard) | {"seconds": time.monotonic() - began}
    os.write(answer, json.dumps(told).encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)  # threads of the harness, and a context that a kernel has broken, are not waited for


class _Kernelbench:
    """KernelBench's file of a kernel, and its harness."""

    def __init__(self, spec: str) -> None:
        from evo_kernel.tasks.importers.kernelbench import problem_of

        self._spec = spec
        self._entry, self._source = problem_of(spec.partition(":")[2])

    def write(self, kernel: str, folder: str) -> None:
        solution = self._solution(kernel)
        path = Path(folder) / solution.file_name(0)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(solution.text(), encoding="utf-8")

    def ask(self, kernel: str, folder: str, device: str, expected_us: float | None) -> Heard:
        from evo_kernel.tasks.importers.kernelbench import skeleton
        from evo_kernel.tasks.importers.kernelbench_harness import at_sizes, harness_of, hear, home_of, timed_within

        del folder
        harness, solution = harness_of(home_of(self._entry.path)), self._solution(kernel)
        if device == "cuda":
            return hear(harness, self._source, solution.text(), device, timed_within(expected_us))
        from evo_kernel.fitness.ir import programs  # noqa: F401  the file's launches are executed by it

        small = at_sizes(self._source, str(self._entry.path), self._small())
        return hear(harness, small, replace(solution, skeleton=skeleton(small)).text(), device)

    def _solution(self, kernel: str) -> KernelBenchSolution:
        from evo_kernel.export.kernelbench import KernelBenchSolution
        from evo_kernel.tasks.importers.kernelbench import places, skeleton

        return KernelBenchSolution(
            self._entry.level, self._entry.number, kernel, skeleton(self._source), places(self._spec)
        )

    def _small(self) -> Any:
        from evo_kernel.tasks.loading import load
        from evo_kernel.types import CaseKind

        return load(self._spec).cases_of(CaseKind.CHECK)[0].sizes


class _Tritonbench:
    """TritonBench's two steps: the script runs (call), and prints what the reference's prints (execution)."""

    def __init__(self, spec: str) -> None:
        from evo_kernel.tasks.importers.tritonbench import problem_of

        self._rest = spec.partition(":")[2]
        self._path = problem_of(self._rest)[0].path
        self._notes: list[str] = []

    def write(self, kernel: str, folder: str) -> None:
        from evo_kernel.cli.import_tasks import export_tritonbench
        from evo_kernel.export.tritonbench import PREDICTIONS

        for name in (self._path.name, PREDICTIONS):  # of an earlier kernel
            (Path(folder) / name).unlink(missing_ok=True)
        export_tritonbench(self._rest, kernel, Path(folder), self._notes)

    def ask(self, kernel: str, folder: str, device: str, expected_us: float | None) -> Heard:
        from evo_kernel.tasks.importers.kernelbench_harness import Heard
        from evo_kernel.tasks.importers.stdout_metric import printed

        del kernel, expected_us
        path, notes = self._path, self._notes
        (found,) = printed(path, [Path(folder) / f"{path.stem}.py"], device)
        if not found.steady:
            return Heard("no verdict", found.sentence, notes=tuple(notes))
        right = found.runs and (found.same or not found.prints)
        notes += [found.sentence] if right and not found.prints else []
        return Heard("correct" if right else "wrong", "" if right else found.sentence, notes=tuple(notes))


if __name__ == "__main__":
    main()
