"""How long the light commands take to start: whole processes, median of nine."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def main() -> None:
    print(f"{'command':<12}{'median s':>10}")
    for arguments in (["--help"], ["status", "--help"], ["show", "--help"], ["run", "--help"]):
        times = []
        for _ in range(9):
            began = time.perf_counter()
            command = [sys.executable, "-P", "-m", "evo_kernel.cli.main", *arguments]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - began)
        print(f"{arguments[0]:<12}{statistics.median(times):>10.3f}")


if __name__ == "__main__":
    main()
