"""Runs a script, `-m MODULE` or `-c CODE` as `python -P` does: with PyTorch, its compiler and Triton imported already
where warm.py forks it."""

import runpy
import sys

import torch._dynamo
import torch.export  # noqa: F401
import triton  # noqa: F401

from tests.support import warm


def script(*arguments: object) -> tuple[str, ...]:
    """What to start."""
    return warm.command("tests.support.scripts", *map(str, arguments))


def main() -> None:
    del sys.argv[0]
    if sys.argv[0] == "-c":
        exec(compile(sys.argv.pop(1), "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    elif sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")
