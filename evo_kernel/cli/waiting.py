"""`evo-kernel` in a process that is started before there is a command for it: `suite` starts the next search so.

A program: its arguments are a descriptor, a device and the task that is likely to come. It imports what a search
needs and waits: the command comes by the descriptor as a line of JSON, `words` and the two files for what it prints.
With `solution`, it then writes the benchmark's file of the best kernel (app/suite/harnesses.py), since it has imported
what that takes. Where the other end is closed instead, it ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys

from evo_kernel.cli.main import main
from evo_kernel.errors import UserError

NEEDED = (
    "torch", "triton", "torch._dynamo", "torch.export", "evo_kernel.cli.run", "evo_kernel.app.session",
    "evo_kernel.fitness.runners.cpu_runner", "evo_kernel.tasks.lowering.lower",
)  # fmt: skip


def prepare(device: str, task: str) -> None:
    """Start the judge's processes, and import."""
    from evo_kernel.app import early_start

    early_start.begin(task, device, now=False)  # another search has the GPU
    for module in NEEDED:
        importlib.import_module(module)
    from evo_kernel.tasks.loading import load
    from evo_kernel.tasks.lowering.lower import lower

    lower(load("softmax"))  # the first one fills tables
    from evo_kernel.tasks.compiled.child import baseline_ahead

    with contextlib.suppress(UserError):  # the search says what is wrong with its task
        baseline_ahead(load(task))  # kept for the search: a root of it, and seconds of another process


def wait() -> None:
    """Prepare, and become the command that comes. To take torch apart at the end would keep the next search waiting."""
    descriptor, device, task = sys.argv[1:]
    prepare(device, task)
    with os.fdopen(int(descriptor)) as orders:
        line = orders.readline()
    if not line:
        return
    from evo_kernel.app.suite.harnesses import write_best
    from evo_kernel.processes import leave_at_once

    order = json.loads(line)
    for stream, path in enumerate(order["output"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    sys.argv = ["evo-kernel", *order["words"]]
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    try:
        if order["solution"]:
            write_best(**order["solution"])
    finally:  # what it raises is no fault of the search
        leave_at_once(code)


if __name__ == "__main__":
    wait()
