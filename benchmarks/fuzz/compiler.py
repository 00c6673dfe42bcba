"""The child that compiles programs by their seeds."""

from __future__ import annotations

from collections.abc import Callable

import triton

from benchmarks.fuzz.compiling import compiled
from benchmarks.fuzz.generate import from_seed
from benchmarks.fuzz.stored import Case, case_of


def answering() -> Callable[[int], tuple[Case | None, str]]:
    return answer


def answer(seed: int) -> tuple[Case | None, str]:
    program = from_seed(seed)
    # A generated program that Triton refuses is counted and left out, whatever it raises.
    try:
        return case_of(program, compiled(program), triton.__version__), ""
    except Exception as error:  # noqa: BLE001
        text = str(error.__cause__ or error).strip().splitlines()
        return None, f"{type(error).__name__}: {text[-1] if text else ''}"
