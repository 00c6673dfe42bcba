"""The process in which the references that are Triton kernels run on a CPU: Triton's interpreter, mended, unconfined.

Started by evo_kernel/tasks/interpreted.py and printing.py. What is trusted here is the user's checkout, so accesses are
not checked: kernels that read past an end, as many published ones do, find the zeros around each tensor.
"""

from __future__ import annotations

import builtins
import os
import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter

from evo_kernel.fitness.interpreting.emulation import Builder, Memory, install
from evo_kernel.tasks.interpreted import serve, tune_nothing

DEFAULT_SEED = 67280421310721
"""PyTorch's, for generators on GPUs that nobody seeds: scripts without seeds draw the same there every time."""


class Unchecked(Builder):
    """The judge's builder, without its bounds."""

    def access(self, ptrs: Any, mask: np.ndarray | None, what: str) -> None:
        """Anything goes."""


class _Grids(interpreter.GridExecutor):
    """Grids may be lists, as they may be on a GPU."""

    def __init__(self, fn: Any, arg_names: Any, grid: Any, *hooks: Any) -> None:
        def sizes(meta: Any) -> tuple[int, ...]:
            return tuple(grid(meta) if callable(grid) else grid)  # pyright: ignore[reportArgumentType]

        super().__init__(fn, arg_names, sizes, *hooks)


def main(files: Sequence[str]) -> None:
    """Run scripts that were rewritten for a CPU, each in a fork; without any, serve until nobody asks any more."""
    np.seterr(all="ignore")
    install(Unchecked(Memory([], [])))
    interpreter.GridExecutor = _Grids
    tune_nothing()
    torch.set_num_threads(1)
    for file in files:
        child = os.fork()
        if child == 0:
            _script(Path(file))
        os.waitpid(child, 0)
    if not files:
        serve()


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
