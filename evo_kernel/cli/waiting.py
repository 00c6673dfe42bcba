"""`evo-kernel` in a process that is started before there is a command for it: `suite` starts the next search so.

A program: its arguments are a descriptor, a device and the task that is likely to come. It imports what a search
needs and waits: the command comes by the descriptor as a line of JSON, `words` and the two files for what it prints.
Where the other end is closed instead, it ends.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from evo_kernel.cli.main import main

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
    from evo_kernel.tasks.lowering import lower

    lower(load("softmax"))  # the first one fills tables


def wait() -> None:
    """Prepare, and become the command that comes. To take torch apart at the end would keep the next search waiting."""
    descriptor, device, task = sys.argv[1:]
    prepare(device, task)
    with os.fdopen(int(descriptor)) as orders:
        line = orders.readline()
    if not line:
        return
    from evo_kernel.app.session import leave_at_once

    order = json.loads(line)
    for stream, path in enumerate(order["output"], 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND), stream)
    sys.argv = ["evo-kernel", *order["words"]]
    try:
        main()
    except SystemExit as ended:
        leave_at_once(ended.code if isinstance(ended.code, int) else ended.code is not None)


if __name__ == "__main__":
    wait()
