"""Trusted Triton kernels over CPU tensors, in a process that executes every launch."""

from __future__ import annotations

import json
import subprocess

from tests.fitness.ir import jitted
from tests.fitness.ir.jitted import NOT_TRITON
from tests.support.launch_kinds import KINDS
from tests.support.scripts import script


def test_launches_run_over_cpu_tensors(tmp_path):
    command = script(jitted.__file__, tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: why for name, why in found.items() if why} == {}
    assert KINDS.keys() - NOT_TRITON < found.keys() and len(found) == len(KINDS) - len(NOT_TRITON) + 6
