"""Whole attempts by operators with a model: throughput of 64 at once, and memory over 2,048 of them.

    python -m benchmarks.agents_memory [--operator llm-mtmc|avo] [--attempts 2048] [--width 64] [--delay 1.0]

The engine, population, ledger, door and operator are real; a local server in a process of its own answers each call
after --delay seconds, and the judge is made up (it takes no time). An attempt of llm-mtmc is one call, one of avo a
conversation of eight with ten tool calls. Ideal: calls ÷ width × delay, from the first call asked to the run's end;
`steady` is the share over the middle 80 % of the calls, without the first wave's rush and the last one's wait. Memory
has to hold between the first quarter of the attempts and the last; what a population of that many candidates keeps in
memory is part of it. `server` is the CPU that answering took, on the same cores: no cost of the product.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from evo_kernel.app.call_accounting import KeptModel
from operators.llm.base import Message
from operators.llm.litellm_model import LiteLLMModel
from operators.llm.litellm_request import load_litellm
from tests.support.modelled import config_for, search

TARGET = 0.95  # of the ideal
COLUMNS = (
    ("operator", "{:>9}"), ("attempts", "{:>9}"), ("calls", "{:>6}"), ("wall_s", "{:>8.2f}"), ("ideal_s", "{:>8.2f}"),
    ("share", "{:>7.1%}"), ("steady", "{:>7.1%}"), ("cpu_ms", "{:>12.2f}"), ("server_ms", "{:>10.2f}"),
    ("rss_mb", "{:>16}"), ("load", "{:>6.1f}"),
)  # fmt: skip
TITLES = ("operator", "attempts", "calls", "wall s", "ideal s", "share", "steady", "CPU ms/call", "server ms", "RSS MB",
          "load")  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--operator", choices=("llm-mtmc", "avo"), default="llm-mtmc")
    options.add_argument("--attempts", type=int, default=2048)
    options.add_argument("--width", type=int, default=64, help="attempts at once")
    options.add_argument("--delay", type=float, default=1.0, help="seconds until the server answers")
    chosen = options.parse_args()
    command = [sys.executable, "-P", "-m", "tests.support.modelled", "--serve", str(chosen.delay)]
    command += ["--converse"] * (chosen.operator == "avo")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            figures = measured(server.stdout.readline().strip(), server.pid, chosen)
        finally:
            server.terminate()
    widths = [form.split(">")[1].split(".")[0].rstrip("}") for _, form in COLUMNS]
    print("".join(f"{title:>{width}}" for title, width in zip(TITLES, widths, strict=True)))
    shown = figures | {"rss_mb": "{:.1f} → {:.1f}".format(*figures["rss_mb"])}
    print("".join(form.format(shown[name]) for name, form in COLUMNS))
    print(f"share of the ideal: {'reached' if figures['share'] >= TARGET else 'MISSED'} (at least {TARGET:.0%})")


def measured(url: str, server: int, chosen: argparse.Namespace) -> dict[str, Any]:
    load_litellm()  # neither its import nor what its first answer loads is part of the throughput
    LiteLLMModel("warming-up", base_url=url).complete([Message("user", "ready?")])
    watch = Watch()
    changes = {"operators": {"use": [chosen.operator]}, "search": {"open_islands_after": 10**6}}
    config = config_for(url, width=chosen.width, **changes)
    with tempfile.TemporaryDirectory() as folder, watch:
        cpu, others = time.process_time(), cpu_s(server)
        ended = search(Path(folder) / "a.db", config, attempts=chosen.attempts)
        done, cpu, others = time.monotonic(), time.process_time() - cpu, cpu_s(server) - others
    calls = len(watch.answered)
    wall_s, ideal_s = done - watch.asked, calls / chosen.width * chosen.delay
    return {
        "operator": chosen.operator,
        "attempts": ended.summary.attempts,
        "candidates": sum(ended.summary.statuses.values()),
        "calls": calls,
        "width": chosen.width,
        "wall_s": wall_s,
        "ideal_s": ideal_s,
        "share": ideal_s / wall_s,
        "steady": watch.rate() * chosen.delay / chosen.width,
        "cpu_ms": 1e3 * cpu / calls,
        "server_ms": 1e3 * others / calls,
        "rss_mb": watch.quarters(),
        "load": os.getloadavg()[0],
    }


class Watch:
    """Notes when calls are asked and answered, and what memory the process has by then."""

    def __init__(self) -> None:
        self.asked, self.answered = 0.0, list[float]()
        self._memory, self._lock, self._real = list[float](), threading.Lock(), KeptModel.answer

    def __enter__(self) -> Watch:
        watch = self

        def answer(self: KeptModel, *given: Any, **named: Any) -> Any:
            watch.asked = watch.asked or time.monotonic()
            reply = watch._real(self, *given, **named)
            with watch._lock:
                watch.answered.append(time.monotonic())
                if len(watch.answered) % 16 == 0:
                    watch._memory.append(rss_mb())
            return reply

        KeptModel.answer = answer
        return self

    def __exit__(self, *_: object) -> None:
        KeptModel.answer = self._real

    def rate(self) -> float:
        """Answers a second over the middle 80 %: the slope of a line through them, for they come in waves."""
        tenth = len(self.answered) // 10
        middle = sorted(self.answered)[tenth : len(self.answered) - tenth]
        return float(np.polyfit(middle, np.arange(len(middle)), 1)[0]) if len(middle) > 1 else 0.0

    def quarters(self) -> tuple[float, float]:
        """The most memory in the first and in the last quarter of the calls, MiB."""
        quarter = max(1, len(self._memory) // 4)
        return max(self._memory[:quarter], default=0.0), max(self._memory[-quarter:], default=0.0)


def rss_mb() -> float:
    """Resident memory of this process now."""
    return psutil.Process().memory_info().rss / 2**20


def cpu_s(process: int) -> float:
    """Seconds of CPU that a process has had."""
    times = psutil.Process(process).cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
