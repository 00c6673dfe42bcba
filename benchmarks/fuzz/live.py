"""New programs by Hypothesis, which shrinks what disagrees: compiled, launched where a GPU is, and executed."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, replace

import triton
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from triton.compiler.errors import CompilationError

from benchmarks.fuzz.comparing import judged
from benchmarks.fuzz.compiling import compiled
from benchmarks.fuzz.farm import LAUNCH_S, gpu_child
from benchmarks.fuzz.generate import generate
from benchmarks.fuzz.programs import Program
from benchmarks.fuzz.stored import case_of
from evo_kernel.tasks.helper_process import HelperProcess

_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much, HealthCheck.large_base_example)


@dataclass(frozen=True)
class Drawn:
    data: st.DataObject

    def integer(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))


class Disagreement(AssertionError):
    """The message holds the smallest program that was found."""


def fuzz(examples: int) -> None:
    """Raises Disagreement. Without a GPU: each program must be executed, and nothing be found in it."""
    gpu = gpu_child() if has_gpu() else None

    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=_SLOW)
    @given(st.data())
    def search(data: st.DataObject) -> None:
        program = generate(Drawn(data))
        problem = disagreement(program, gpu)
        if problem:
            raise Disagreement(f"{problem}\ngrid {program.grid}, arguments {program.args}\n{program.source}")

    try:
        search()
    finally:
        if gpu:
            gpu.end()


def disagreement(program: Program, gpu: HelperProcess | None) -> str:
    """What is wrong between the executor and the compiled program, empty if nothing."""
    try:
        case = case_of(program, compiled(program, until="cubin" if gpu else "ttir"), triton.__version__)
    except CompilationError:
        reject()  # another version of Triton than the generator was written for
    if gpu:
        results, problem = gpu.ask(case, LAUNCH_S)
        if results is None:
            return problem
        case = replace(case, results=tuple(results))
    verdict = judged(case)
    return "" if verdict.kind == "same" else f"{verdict.kind}: {verdict.detail}"


def has_gpu() -> bool:
    try:
        return ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
    except OSError:
        return False
