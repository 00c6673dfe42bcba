"""A child that answers requests: what a deadline counts, and what becomes of a process that is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evo_kernel.tasks.helper_process import HelperLost, HelperProcess, answered

ECHO = "from evo_kernel.tasks.helper_process import answer_requests; answer_requests(eval)"


def spin() -> bool:
    sum(range(200_000))
    return False


def test_a_deadline_counts_processor_time_and_an_answer_ends_it() -> None:
    assert not answered(os.getpid(), 0.05, spin)
    assert answered(os.getpid(), 0.0, lambda: True)
    assert not answered(1, 0.02, lambda: False)  # it does nothing: then the clock has the last word


def test_a_lost_process_is_told_and_the_next_request_starts_another() -> None:
    process = HelperProcess(ECHO)
    with pytest.raises(HelperLost) as lost:
        process.ask("__import__('os')._exit(7)", 60.0)
    assert lost.value.code == 7
    assert process.ask("print('unheard') or 1 + 1", 60.0) == 2
    with pytest.raises(HelperLost) as late:
        process.ask("__import__('time').sleep(60)", 0.02)
    assert late.value.code is None
    process.end()


OWNER = f"""
from evo_kernel.tasks.helper_process import HelperProcess
process = HelperProcess({ECHO!r}, caches=("CACHE",))
print(process.ask("open(__import__('os').environ['CACHE'] + '/file', 'w').name", 60.0))
"""


def test_its_folder_goes_with_its_owner(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", OWNER], env=environment, capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()).parents[1] == tmp_path
    assert not list(tmp_path.iterdir())
