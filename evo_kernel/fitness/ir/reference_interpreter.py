"""The process in which references that are Triton kernels run on a CPU: the executor of Triton IR, unconfined.

Started by evo_kernel/tasks/interpreted.py and importers/stdout_metric.py. What is trusted here is the user's checkout,
so accesses are not checked: kernels that read past an end, as many published ones do, find the zeros around each
tensor.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import torch

from evo_kernel.fitness.ir.jit import install
from evo_kernel.tasks.helper_process import answer_requests
from evo_kernel.tasks.interpreted import answer_of

DEFAULT_SEED = 67280421310721
"""PyTorch's, for generators on GPUs that nobody seeds: scripts without seeds draw the same there every time."""


def serve() -> None:
    """Answer `Interpreted`'s requests until nobody asks any more."""
    install()
    torch.set_num_threads(1)
    answer_requests(answer_of())


def main(files: Sequence[str]) -> None:
    """Run scripts that were rewritten for a CPU, each in a fork."""
    install()
    torch.set_num_threads(1)
    for file in files:
        child = os.fork()
        if child == 0:
            _script(Path(file))
        os.waitpid(child, 0)


def _script(file: Path) -> None:
    """What it prints goes to `out` beside it, its faults to `err`, and `code` is there once it ended by itself."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(file.parent / name, os.O_WRONLY | os.O_CREAT), number)
    torch.manual_seed(DEFAULT_SEED)
    builtins.__dict__["_device"] = "cpu"  # what was rewritten asks for it
    code = 1
    try:
        runpy.run_path(str(file), run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001  whatever ends a script, its last words are told
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        (file.parent / "code").write_text(str(code))
        os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
