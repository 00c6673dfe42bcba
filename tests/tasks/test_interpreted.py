"""The interpreting child: what a deadline counts, and what becomes of a process that is lost."""

from __future__ import annotations

import os

import pytest

from evo_kernel.tasks.interpreted import _Gone, _Interpreter, answered


def spin() -> bool:
    sum(range(200_000))
    return False


def test_a_deadline_counts_processor_time_and_an_answer_ends_it() -> None:
    assert not answered(os.getpid(), 0.05, spin)
    assert answered(os.getpid(), 0.0, lambda: True)
    assert not answered(1, 0.02, lambda: False)  # it does nothing: then the clock has the last word


def test_a_lost_process_is_told_and_forgotten() -> None:
    interpreter = _Interpreter()
    process = interpreter._started()
    process.kill()
    process.wait()
    with pytest.raises(_Gone, match="ended"):
        interpreter.ask(({}, "effects", ()))
    assert interpreter._process is None
