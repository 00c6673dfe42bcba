"""`make demo`: a real search on softmax and matmul with the embedded default, in under two minutes on two cores.

Runs the command line as a user would, in a folder of its own, and prints what it found.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

TASKS = {"softmax": 40, "matmul": 50}  # seconds of search


def main() -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="evo-kernel-demo-") as folder:
        for task, seconds in TASKS.items():
            print(f"\n=== evo-kernel run {task} --for {seconds}s", flush=True)
            command = [sys.executable, "-P", "-m", "evo_kernel.cli.main", "run", task, "--for", f"{seconds}s"]
            subprocess.run(command, cwd=folder, check=True, env=_env())
    print(f"\ndemo: {time.monotonic() - began:.0f} s in all")


def _env() -> dict[str, str]:
    import os

    root = str(Path(__file__).resolve().parents[1])
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}


if __name__ == "__main__":
    main()
