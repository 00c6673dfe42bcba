"""A warm process of a suite: it loads what searches need once, and forks for each order that it reads.

Orders are lines of JSON on standard input, one at a time: `search` with the arguments of `_search`; or those of
`harnesses.asked`. While one is under way, `interrupt` and `kill` are about it. The answer is its exit code, a line on
standard output. At the end of standard input the process ends, with all that it started. Argument: cores ("0,1", or
empty).
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evo_kernel.app.suite.lanes import INTERRUPT
from evo_kernel.processes import adopt_orphans, end_descendants, kill_tree

REAPED_WITHIN_S = 5.0
"""A killed process may take so long to end: the driver frees its GPU memory first."""


def main() -> None:
    adopt_orphans()
    cores = sys.argv[1]
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in cores.split(",")])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # a process with threads cannot be forked
    from evo_kernel.app import session  # noqa: F401

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
        end_descendants(REAPED_WITHIN_S)  # what it left when it ended by itself: ours since then
        print(code, flush=True)  # noqa: T201


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
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.exit(_search(**order["search"]))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _ask(**order)


def _search(task: str, population: str, config_file: str | None, device: str, overrides: Sequence[str]) -> int:
    """Run, or resume a population that is there: its summary as a line of JSON on standard output; its exit code.

    A resume keeps its own configuration file; what was said then holds.
    """
    from evo_kernel.app import early_start, session
    from evo_kernel.app.run_config import ModelOptions, run_config
    from evo_kernel.errors import EvoKernelError

    began, path, asking = time.monotonic(), Path(population), ModelOptions()
    named = {"device": device}
    try:
        if path.exists():
            early_start.begin(None, device)
            return session.resume(path, overrides, named, asking, as_json=True, began=began)
        named |= {"task": task, "population": path}
        config = run_config(Path(config_file) if config_file else None, overrides, named)
        early_start.begin(config.task, config.device)
        return session.run(config, asking.traffic(), dry=False, as_json=True, began=began)
    except EvoKernelError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _ask(**order: Any) -> None:
    """One line of JSON on standard output, of `harnesses.asked`; what others print goes to the errors."""
    from evo_kernel.errors import EvoKernelError
    from evo_kernel.tasks.importers.kernelbench_harness import Heard

    answer = os.dup(1)
    os.dup2(2, 1)
    if order["device"] == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    began = time.monotonic()
    try:
        from evo_kernel.app.suite.harnesses import asked

        heard = asked(**order)
    except EvoKernelError as error:
        heard = Heard("no verdict", str(error))
    except Exception as error:  # noqa: BLE001  somebody else's harness may raise anything: that is no verdict
        heard = Heard("no verdict", f"its harness failed: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    told = asdict(heard) | {"seconds": time.monotonic() - began}
    os.write(answer, json.dumps(told).encode() + b"\n")
    sys.stderr.flush()
    os._exit(0)  # threads of the harness, and a context that a kernel has broken, are not waited for


if __name__ == "__main__":
    main()
