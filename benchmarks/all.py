"""`make bench`: every benchmark that needs no GPU, one after the other. Each can be run alone and has `--help`."""

from __future__ import annotations

import subprocess
import sys

RUNS = (
    ("ask, tell, replay, memory", ["benchmarks.population", "--sizes", "1000,10000,100000"]),
    ("the dashboard on 100,000 candidates", ["benchmarks.dashboard"]),
    ("to a verdict, phase by phase", ["benchmarks.phases", "softmax", "rmsnorm"]),
    ("looks at real size", ["benchmarks.looks"]),
)


def main() -> None:
    failed = []
    for title, command in RUNS:
        print(f"\n=== {title}: python -m {' '.join(command)}", flush=True)
        if subprocess.run([sys.executable, "-m", *command], check=False).returncode:
            failed.append(title)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
