"""TritonBench's own metric: does a solution's script run, and does it print what the reference's prints?

Its first step counts scripts that end with 0 (call accuracy), its second those that print the same text as the
reference's (execution accuracy): EVAL/eval_*/0_call_acc.py and 1_exe_acc.py. Eight of its 350 tests print anything; for
the others the second step says nothing. Seeds stay as the scripts set them. On a GPU the scripts run as they are;
without one "cuda" becomes "cpu" in both, and the IR of Triton's kernels is executed.
"""

from __future__ import annotations

import ast
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evo_kernel.errors import TaskError
from evo_kernel.tasks.helper_process import NO_GPU, PATIENCE
from evo_kernel.tasks.interpreted import CHILD
from evo_kernel.tasks.scripts import rewritten

DEADLINE_S = 120.0
"""Of processor time for one script."""
PRINTED_BYTES = 64 << 20
"""Of what one script may print, and write to one file."""
CARRIED = "_reference"
"""The function of a solution that returns the text of the reference's module (evo_kernel/export/tritonbench.py)."""
EXECUTOR = "evo_kernel.fitness.ir.programs"
"""What executes a solution's launches without a GPU, where it is loaded (evo_kernel/export/shipped/_launch.py)."""
_TOLD = 200


@dataclass(frozen=True)
class Printed:
    """What the benchmark's two steps say of a solution."""

    runs: bool  # its script ends with 0
    same: bool  # it prints what the reference's script prints
    prints: bool  # the reference's script prints anything at all
    steady: bool  # the reference's script prints the same twice: where not, not even the reference passes
    reason: str = ""  # the last line of what went wrong

    @property
    def sentence(self) -> str:
        call = "its script runs" if self.runs else f"its script fails ({self.reason})"
        if not self.steady:
            return f"{call}; the reference itself prints something else every time, so that nothing can pass"
        if not self.prints:
            return f"{call}; the test prints nothing, so that any script that runs passes"
        return f"{call} and prints {'what' if self.same else 'something else than'} the reference's prints"


@dataclass(frozen=True)
class _Ran:
    """One script that ended: 0 or not, what it printed, and the last line of its faults."""

    code: int
    text: str
    fault: str


def printed(reference: Path, solutions: Sequence[Path], device: str, deadline_s: float = DEADLINE_S) -> list[Printed]:
    """Run the problem's own file twice, and each solution's file: what is said of each solution. Raises TaskError.

    A solution's Python runs here as the benchmark's harness would run it: unconfined.
    """
    with tempfile.TemporaryDirectory(prefix="evo-kernel-") as folder:
        copies = []
        for number, path in enumerate((reference, reference, *solutions)):
            copies.append(Path(folder) / str(number) / path.name)
            copies[-1].parent.mkdir()
            text = path.read_text(encoding="utf-8")
            copies[-1].write_text(text if device == "cuda" else _for_a_cpu(text), encoding="utf-8")
        first, second, *theirs = (_on_gpu if device == "cuda" else _on_cpu)(copies, deadline_s)
    if first.code != 0:
        fit = "a machine that it was made for" if device == "cuda" else "a GPU (--device cuda)"
        raise TaskError(f"{reference}: its own script does not run here: {first.fault}. Its own check needs {fit}.")
    steady = first.text == second.text
    return [
        Printed(mine.code == 0, steady and mine.text == first.text, bool(first.text), steady, mine.fault)
        for mine in theirs
    ]


def _for_a_cpu(text: str) -> str:
    """A script for the device at hand, and the reference that a solution carries as text too."""
    tree = rewritten(text, seeds=True)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == CARRIED:
            returned = node.body[-1]
            if isinstance(returned, ast.Return) and isinstance(returned.value, ast.Constant):
                returned.value.value = ast.unparse(rewritten(str(returned.value.value), seeds=True))
    return f"import {EXECUTOR}\n{ast.unparse(tree)}"


def _on_cpu(files: Sequence[Path], deadline_s: float) -> list[_Ran]:
    """All from one process that forks: it loads Triton and PyTorch once."""
    limit = int(deadline_s) + 1

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_FSIZE, (PRINTED_BYTES, PRINTED_BYTES))

    command = [sys.executable, "-P", "-m", CHILD, *map(str, files)]
    subprocess.run(command, env=os.environ | NO_GPU, preexec_fn=limited, check=True)
    found = []
    for file in files:
        ended = file.with_name("code")
        code = int(ended.read_text()) if ended.is_file() else 1
        late = "" if ended.is_file() else f"it took more than {deadline_s:g} s of processor time, or crashed"
        out, err = (file.with_name(name).read_text(errors="replace") for name in ("out", "err"))
        found.append(_Ran(code, out, late or _last(err)))
    return found


def _on_gpu(files: Sequence[Path], deadline_s: float) -> list[_Ran]:
    found = []
    for file in files:
        command = [sys.executable, "-P", str(file)]
        try:
            ran = subprocess.run(command, capture_output=True, timeout=PATIENCE * deadline_s, check=False)
        except subprocess.TimeoutExpired:
            found.append(_Ran(1, "", f"it took longer than {PATIENCE * deadline_s:g} s"))
            continue
        found.append(
            _Ran(ran.returncode, ran.stdout.decode(errors="replace"), _last(ran.stderr.decode("utf-8", "replace")))
        )
    return found


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_TOLD] if lines else "it said nothing"
