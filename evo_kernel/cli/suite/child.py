"""A process of a suite: it loads what it needs, waits for its order on standard input, and does that one thing.

It is started while another still works, so that loading (seconds) is not waited for. It ends with whoever started it,
its own children with it: when standard input ends. Arguments: cores ("0,1", or empty), then `search` with the TASK to
come and its device, or `stock` or `write` and a TASK. The order is one line: the words of a command (`search`), or the
kernel that is to be written as the benchmark's own file, and asked about (`stock`). Before it, a search may be told
that the GPU is its own next, since nobody is timed there any more: then it loads what it needs there, too.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evo_kernel.cli.suite.lanes import GPU_NEXT, kill_tree

if TYPE_CHECKING:
    from evo_kernel.export.kernelbench import Solution
    from evo_kernel.tasks.kernelbench_harness import Heard

_ORDERS: queue.SimpleQueue[str] = queue.SimpleQueue()


def main() -> None:
    cores, role, *named = sys.argv[1:]
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # nothing is under way yet that would have to be kept
    threading.Thread(target=_read, daemon=True).start()
    if role == "search":
        _search(*named)
    elif role == "stock":
        _stock(named[0])
    else:
        writer, order = _asker(named[0]), _ordered()
        writer.write(_module(named[0], order), order["folder"])


def _read() -> None:
    """Take the order; at the end of standard input nobody is left to hear the answer: end all that was started.

    Not the kernel's PR_SET_PDEATHSIG: it would end this process alone, before it can end those that it started.
    """
    order = b""
    while read := os.read(0, 1 << 16):  # not by sys.stdin: its lock, held here, would abort the interpreter at its end
        order += read
        if order.endswith(b"\n"):
            _ORDERS.put(order.decode())
            order = b""
    kill_tree(os.getpid())


def _ordered() -> Any:
    return json.loads(_ORDERS.get())


def _search(spec: str, device: str) -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from evo_kernel.cli import ahead

    ahead.begin(None, device)
    from evo_kernel.cli import compose, main, notifying, operating, search, summary  # noqa: F401
    from evo_kernel.errors import EvoKernelError
    from evo_kernel.tasks.loading import load
    from evo_kernel.tasks.surveying import warm_up

    warm_up()
    with contextlib.suppress(EvoKernelError):  # the search will say it
        load(spec)  # what takes time of it is remembered
    words = _ordered()
    if words == GPU_NEXT:
        if device == "cuda":
            from evo_kernel.fitness.runners.process import load_ahead

            load_ahead(spec)
        words = _ordered()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["evo-kernel", *words]
    main.main()


def _stock(spec: str) -> None:
    """Ask the benchmark's own harness. One line of JSON on standard output; what others print goes to the errors."""
    answer = os.dup(1)
    os.dup2(2, 1)
    from evo_kernel.errors import EvoKernelError
    from evo_kernel.tasks.kernelbench_harness import Heard

    ask: Any = None
    fault = ""
    try:
        ask = _asker(spec)
        ask.load()
    except EvoKernelError as error:
        fault = str(error)
    order = _ordered()
    began = time.monotonic()
    try:
        if ask is not None:
            order["kernel"] = _module(spec, order)
            ask.write(order["kernel"], order["folder"])
        heard = ask(**order) if ask is not None and not fault else Heard("no verdict", fault)
    except EvoKernelError as error:
        heard = Heard("no verdict", str(error))
    except Exception as error:  # noqa: BLE001  somebody else's harness may raise anything: that is no verdict
        heard = Heard("no verdict", f"its harness failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    told = asdict(heard) | {"seconds": time.monotonic() - began}
    os.write(answer, json.dumps(told).encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)  # threads of the harness, and a context that a kernel has broken, are not waited for


def _module(spec: str, order: dict[str, Any]) -> str:
    """What the benchmark's file is written around: the launches of the kernel that is ordered."""
    from evo_kernel.cli.importing import solution_text
    from evo_kernel.types import Source

    return solution_text(spec, Source(order["kernel"]), order["device"])


def _asker(spec: str) -> _Kernelbench | _Tritonbench:
    return _Kernelbench(spec) if spec.startswith("kernelbench:") else _Tritonbench(spec)


class _Kernelbench:
    """KernelBench's file of a kernel, and its harness."""

    def __init__(self, spec: str) -> None:
        from evo_kernel.tasks.kernelbench import problem_of

        self._spec = spec
        self._entry, self._source = problem_of(spec.partition(":")[2])
        self._harness: Any = None

    def load(self) -> None:
        from evo_kernel.tasks.kernelbench_harness import harness_of, home_of

        self._harness = harness_of(home_of(self._entry.path))

    def write(self, kernel: str, folder: str) -> None:
        solution = self._solution(kernel)
        path = Path(folder) / solution.file_name(0)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(solution.text(), encoding="utf-8")

    def __call__(self, kernel: str, folder: str, device: str, expected_us: float | None) -> Heard:
        from evo_kernel.tasks.kernelbench import skeleton
        from evo_kernel.tasks.kernelbench_harness import at_sizes, hear, timed_within

        del folder
        solution = self._solution(kernel)
        if device == "cuda":
            return hear(self._harness, self._source, solution.text(), device, timed_within(expected_us))
        from evo_kernel.fitness.ir import programs  # noqa: F401  the file's launches are executed by it

        small = at_sizes(self._source, str(self._entry.path), self._small())
        made = replace(solution, skeleton=skeleton(small))
        return hear(self._harness, small, made.text(), device)

    def _solution(self, kernel: str) -> Solution:
        from evo_kernel.export.kernelbench import Solution
        from evo_kernel.tasks.kernelbench import places, skeleton

        return Solution(self._entry.level, self._entry.number, kernel, skeleton(self._source), places(self._spec))

    def _small(self) -> Any:
        from evo_kernel.tasks.loading import load
        from evo_kernel.types import CaseKind

        return load(self._spec).cases_of(CaseKind.CHECK)[0].sizes


class _Tritonbench:
    """TritonBench's two steps: the script runs (call), and prints what the reference's prints (execution)."""

    def __init__(self, spec: str) -> None:
        from evo_kernel.tasks.tritonbench import problem_of

        self._rest = spec.partition(":")[2]
        self._path = problem_of(self._rest)[0].path
        self._notes: list[str] = []

    def load(self) -> None:
        from evo_kernel.tasks import printing, tritonbench_solved  # noqa: F401

    def write(self, kernel: str, folder: str) -> None:
        from evo_kernel.cli.importing import export_tritonbench
        from evo_kernel.export.tritonbench import PREDICTIONS

        for name in (self._path.name, PREDICTIONS):  # of an earlier kernel
            (Path(folder) / name).unlink(missing_ok=True)
        export_tritonbench(self._rest, kernel, Path(folder), self._notes)

    def __call__(self, kernel: str, folder: str, device: str, expected_us: float | None) -> Heard:
        from evo_kernel.tasks.kernelbench_harness import Heard
        from evo_kernel.tasks.printing import printed

        del kernel, expected_us
        path, notes = self._path, self._notes
        written = Path(folder) / f"{path.stem}.py"
        (found,) = printed(path, [written], device)
        if not found.steady:
            return Heard("no verdict", found.sentence, notes=tuple(notes))
        right = found.runs and (found.same or not found.prints)
        notes += [found.sentence] if right and not found.prints else []
        return Heard("correct" if right else "wrong", "" if right else found.sentence, notes=tuple(notes))


if __name__ == "__main__":
    main()
