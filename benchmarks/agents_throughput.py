"""Attempts at the door to models: the share of the ideal throughput that 64 at once reach, and memory over 2,048 calls.

    python -m benchmarks.agents_throughput [--attempts 64] [--calls 2048] [--delay 1.0]

A local server, in a process of its own, answers each call after --delay seconds. Ideal: calls ÷ attempts × delay. Each
call carries a prompt of --prompt bytes, as agents' do, and its row is packed for the database. The process has to hold
its memory between the first quarter of the calls and the last.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from operators.llm.base import Message
from operators.llm.door import LiteLLMModel
from operators.llm.wire import load_litellm

TARGET = 0.95


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--attempts", type=int, default=64, help="at once")
    options.add_argument("--calls", type=int, default=2048)
    options.add_argument("--delay", type=float, default=1.0, help="seconds until the server answers")
    options.add_argument("--prompt", type=int, default=20_000, help="bytes")
    options.add_argument("--json", type=Path, help="write the figures there too")
    chosen = options.parse_args()
    command = [sys.executable, "-P", "-m", "tests.support.chat_server", "--delay", str(chosen.delay)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            figures = measured(server.stdout.readline().strip(), chosen)
        finally:
            server.terminate()
    titles = ("attempts", "calls", "wall s", "ideal s", "share", "CPU ms/call", "p99 s", "RSS MB")
    print("{:>8}{:>7}{:>9}{:>9}{:>8}{:>13}{:>7}{:>17}".format(*titles))
    row = "{attempts:>8}{calls:>7}{wall_s:>9.2f}{ideal_s:>9.2f}{share:>8.1%}{cpu_ms:>13.2f}{p99_s:>7.2f}"
    print(row.format(**figures) + "{:>9.1f} → {:>5.1f}".format(*figures["rss_mb"]))
    print(f"share of the ideal: {'reached' if figures['share'] >= TARGET else 'MISSED'} (at least {TARGET:.0%})")
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=1) + "\n")


def measured(url: str, chosen: argparse.Namespace) -> dict[str, Any]:
    load_litellm()  # its import is no part of the throughput
    model = LiteLLMModel("anything", base_url=url)
    text = "for (int i = 0; i < n; ++i) acc += a[i] * b[i];\n" * (chosen.prompt // 48)
    model.complete([Message("user", text)])
    seconds, memory, lock = [], [], threading.Lock()

    def attempt(number: int) -> None:
        began = time.perf_counter()
        model.complete([Message("system", text, stable=True), Message("user", f"attempt {number}")])
        took = time.perf_counter() - began
        with lock:
            seconds.append(took)
            memory.append(rss_mb())

    cpu, began = time.process_time(), time.perf_counter()
    with ThreadPoolExecutor(chosen.attempts) as pool:
        list(pool.map(attempt, range(chosen.calls)))
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    ideal_s = chosen.calls / chosen.attempts * chosen.delay
    quarter = max(1, len(memory) // 4)
    return {
        "attempts": chosen.attempts,
        "calls": chosen.calls,
        "wall_s": wall_s,
        "ideal_s": ideal_s,
        "share": ideal_s / wall_s,
        "cpu_ms": 1e3 * cpu_s / chosen.calls,
        "p99_s": statistics.quantiles(seconds, n=100)[98],
        "rss_mb": (max(memory[:quarter]), max(memory[-quarter:])),
        "load": os.getloadavg()[0],
    }


def rss_mb() -> float:
    """Resident memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
