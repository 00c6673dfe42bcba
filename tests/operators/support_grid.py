"""What the tests of grid rewrites share: seeds, task cards, and child processes that run or compile many sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from evo_kernel.types import CaseCard, CaseKind, TaskCard
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite

ROOT = Path(__file__).resolve().parents[2]
CHILD = Path(__file__).resolve().parent / "grid_child.py"
FP32_ERROR = 2e-5  # of sums of up to 129 fp32 products, relative to the largest value


def seed(name: str) -> str:
    return (ROOT / "evo_kernel/tasks/builtin" / name / "seed.py").read_text()


def card(dtype: str = "bfloat16", inputs: int = 2, precision: str = "ieee") -> TaskCard:
    tensors = tuple((dtype, (4096, 4096), (4096, 1)) for _ in range(inputs))
    return TaskCard("sample", "", "kernels", precision, False, (CaseCard("large", CaseKind.SEARCH, {}, tensors),))


def applied(text: str, *rewrites: Rewrite, task: TaskCard | None = None) -> str:
    """The text after each rewrite at its first place."""
    for rewrite in rewrites:
        module = KernelModule.parse(text)
        offers = rewrite.offers(module, task or card())
        assert offers, f"{rewrite.name} is not offered on\n{text}"
        text = rewrite.apply(module, offers[0])
    return text


def answers(how: str, sources: list[tuple[str, str]], deadline_s: float = 120.0) -> list:
    """[value, reason] of each (source, task name): see grid_child."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = []
        for number, (text, name) in enumerate(sources):
            path = Path(folder) / f"source_{number}.py"
            path.write_text(text)
            jobs.append((str(path), name))
        listing = Path(folder) / "jobs.json"
        listing.write_text(json.dumps(jobs))
        settings = {"TRITON_INTERPRET": "1"} if how == "interpret" else {"TRITON_CACHE_DIR": f"{folder}/cache"}
        done = subprocess.run(
            [sys.executable, str(CHILD), how, str(listing)],
            capture_output=True,
            text=True,
            timeout=deadline_s,
            env={**os.environ, "OMP_NUM_THREADS": "1", **settings},
            check=False,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
        assert lines, f"the child gave no answer: {done.stderr[-2000:]}"
        return json.loads(lines[-1].removeprefix("ANSWER"))
