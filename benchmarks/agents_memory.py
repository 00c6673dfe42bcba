"""Whole attempts by operators with a model: throughput of 64 at once, and memory over 2,000 of them.

    python -m benchmarks.agents_memory [--attempts 2000] [--width 64] [--delay 1.0]

The engine, population, ledger, door and coder are real; a local server in a process of its own answers each call after
--delay seconds, and the judge is made up (it takes no time). An attempt is one call. Ideal: attempts ÷ width × delay.
Memory has to hold between the first quarter of the attempts and the last; what a population of that many candidates
keeps in memory is part of it, and is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.agents_throughput import TARGET, rss_mb
from evo_kernel.types import Purpose, Source
from operators.llm.wire import load_litellm
from tests.support.modelled import CommentJudge, config_for, search

NUMBER = re.compile(r"time_us = ([\d.]+)")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--attempts", type=int, default=2000)
    options.add_argument("--width", type=int, default=64, help="attempts at once")
    options.add_argument("--delay", type=float, default=1.0, help="seconds until the server answers")
    options.add_argument("--json", type=Path, help="write the figures there too")
    chosen = options.parse_args()
    command = [sys.executable, "-P", "-m", "tests.support.modelled", "--serve", str(chosen.delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            figures = measured(server.stdout.readline().strip(), chosen)
        finally:
            server.terminate()
    titles = ("attempts", "width", "wall s", "ideal s", "share", "CPU ms each", "RSS MB")
    print("{:>8}{:>7}{:>9}{:>9}{:>8}{:>13}{:>17}".format(*titles))
    row = "{attempts:>8}{width:>7}{wall_s:>9.2f}{ideal_s:>9.2f}{share:>8.1%}{cpu_ms:>13.2f}"
    print(row.format(**figures) + "{:>9.1f} → {:>5.1f}".format(*figures["rss_mb"]))
    print(f"share of the ideal: {'reached' if figures['share'] >= TARGET else 'MISSED'} (at least {TARGET:.0%})")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")


def measured(url: str, chosen: argparse.Namespace) -> dict[str, Any]:
    load_litellm()  # its import is no part of the throughput
    memory: list[float] = []

    def before(source: Source, purpose: Purpose) -> None:
        if purpose is Purpose.SCORE:
            memory.append(rss_mb())

    judge = CommentJudge(before=before)
    budget = {"evaluations": 2 * chosen.attempts}  # a probe and a score each
    config = config_for(url, width=chosen.width, budget=budget, search={"open_islands_after": 10**6})
    with tempfile.TemporaryDirectory() as folder:
        cpu, began = time.process_time(), time.perf_counter()
        ended = search(Path(folder) / "a.db", config, judge)
        wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    attempts = ended.summary.attempts
    ideal_s = attempts / chosen.width * chosen.delay
    quarter = max(1, len(memory) // 4)
    return {
        "attempts": attempts,
        "width": chosen.width,
        "wall_s": wall_s,
        "ideal_s": ideal_s,
        "share": ideal_s / wall_s,
        "cpu_ms": 1e3 * cpu_s / attempts,
        "rss_mb": (max(memory[:quarter]), max(memory[-quarter:])),
    }


if __name__ == "__main__":
    main()
