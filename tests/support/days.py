"""A long search whose machine fails again and again: real `evo-kernel run` and `resume`, a made-up model and judge.

    python -m tests.support.days DIR --hours 6      # the same DIR again goes on
    python -m tests.support.days DIR                # what was seen, hour by hour, and whether the file is sound

Every few minutes one thing goes wrong, in turn: the search is killed, the servers are killed, the spool's folder is
removed, the clock of the search jumps a day ahead or back (needs `cc`), the disk is full for a minute (only where DIR has
a file system of its own of at most 8 GB), the model's server is gone for a minute. A line a minute goes to DIR/log.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import replace
from pathlib import Path

import psutil

from evo_kernel.types import Evaluation, Purpose, Source
from tests.support.chat_server import Answer, ChatServer
from tests.support.modelled import TIME, kernel_of
from tests.support.scripted import scored
from tests.support.spool_servers import server

BETWEEN_S, OUTAGE_S, MINUTE_S = 240.0, 60.0, 60.0
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t which, struct timespec *now) {  /* CLOCK_REALTIME, seconds of the file CLOCK ahead */
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int said = real(which, now), file = which == CLOCK_REALTIME ? open(getenv("CLOCK"), O_RDONLY | O_CLOEXEC) : -1;
    char ahead[16] = "";
    if (file >= 0 && read(file, ahead, 15) > 0) now->tv_sec += atol(ahead);
    if (file >= 0) close(file);
    return said;
}
"""
CONFIG = """width = 16
[budget]
hours = 1000
dollars = 1e9
[operators]
mtmc = 0
crossover = 0
llm_mtmc = 3
llm_crossover = 0.3
[agents]
policy = "bandit"
coder = "llm"
[judge]
tune_plans = 0
[models.main]
name = "local"
base_url = "{url}"
price_in = 10
price_out = 30
"""


def answer_calls(port_file: Path) -> None:
    """The model's server: after two seconds a kernel that nobody has seen, in one of twenty answers none."""

    def say(request: object, number: int) -> Answer:
        text = kernel_of(random.uniform(50, 150), f"# {uuid.uuid4().hex}") if random.random() < 0.95 else "no"
        return Answer(f"```python\n{text}```", tokens=(3000, 500, 1000), delay_s=2.0)

    with ChatServer(say, remember=False) as chat:
        port_file.write_text(chat.url)
        signal.pause()


def verdict(source: Source, purpose: Purpose) -> Evaluation:
    """A kernel takes as long as its comment says; one without, what its hash says."""
    found = TIME.search(source.text)
    time_us = float(found[1]) if found else 50 + int(hashlib.sha256(source.text.encode()).hexdigest()[:6], 16) / 2**18
    return replace(scored(Source(f"time_us = {time_us}\n"), purpose), source=source.sha256)


def judge_requests(box: Path) -> None:
    """A server of eight slots whose judge takes a fifth of a second."""
    with tempfile.TemporaryDirectory() as scratch:
        before = lambda source: time.sleep(0.2)  # noqa: E731
        one = server(box, Path(scratch), slots=8, before=before, verdict=verdict, lease_s=30.0, beat_s=2.0)
        signal.signal(signal.SIGTERM, lambda *_: one.stop())
        one.run()


class Machine:
    """All processes, in groups of their own, and what breaks them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.box, self.population = folder, folder / "box", folder / "days.db"
        self.faults: dict[str, int] = {}
        self._alive: dict[str, subprocess.Popen[bytes]] = {}
        self._clock, self._library = folder / "clock", folder / "clock.so"
        self._clock.write_text("0")
        compile_clock = ["cc", "-shared", "-fPIC", "-O1", "-x", "c", "-", "-o", str(self._library), "-ldl"]
        subprocess.run(compile_clock, input=CLOCK, text=True, check=True)
        disk = shutil.disk_usage(folder)
        self._small = disk.total <= 8 << 30

    def keep_alive(self) -> None:
        """Start what has ended."""
        me = [sys.executable, "-m", "tests.support.days", str(self.folder), "--as"]
        url, config = self.folder / "url", self.folder / "config.toml"
        if self._start("model", [*me, "model"]):
            url.write_text("")
            while not url.read_text():
                time.sleep(0.1)
            config.write_text(CONFIG.format(url=url.read_text()))
            self._end("search", signal.SIGTERM)  # it would ask the port of before
        self._start("judge 1", [*me, "judge"])
        self._start("judge 2", [*me, "judge"])
        if self.population.exists():
            what = ["resume", str(self.population), "--set", f"models.main.base_url={url.read_text()}"]
        else:
            what = ["run", "softmax", "--population", str(self.population), "--config", str(config)]
        search = [sys.executable, "-c", "from evo_kernel.cli.main import main; main()", *what]
        self._start("search", [*search, "--judge", f"spool:{self.box}"])

    def _start(self, name: str, command: list[str]) -> bool:
        if (old := self._alive.get(name)) is not None and old.poll() is None:
            return False
        env = dict(os.environ)
        if name == "search":
            env |= {"LD_PRELOAD": str(self._library), "CLOCK": str(self._clock)}
        with (self.folder / f"{name}.out").open("ab") as out:
            self._alive[name] = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)
        return True

    def _end(self, name: str, how: signal.Signals) -> None:
        one = self._alive.pop(name, None)
        if one is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.pid, how)
        try:
            one.wait(60.0)
        except subprocess.TimeoutExpired:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()
            self.faults["did not end within a minute"] = self.faults.get("did not end within a minute", 0) + 1

    def end(self) -> None:
        for name in ("search", "judge 1", "judge 2", "model"):
            self._end(name, signal.SIGTERM)

    def fail(self, how: str) -> None:
        """One fault, which ends within a minute."""
        if how == "search killed":
            self._end("search", signal.SIGKILL)
        elif how == "servers killed":
            self._end("judge 1", signal.SIGKILL)
            self._end("judge 2", signal.SIGKILL)
        elif how == "spool removed":
            shutil.rmtree(self.box, ignore_errors=True)
        elif how == "clock jumped":
            self._clock.write_text("86400" if self._clock.read_text() == "0" else "0")
        elif how == "disk full" and self._small:
            ballast = self.folder / "ballast"
            try:
                with contextlib.suppress(OSError), ballast.open("wb") as file:
                    while True:
                        file.write(bytes(1 << 20))
                        file.flush()
                time.sleep(OUTAGE_S)
            finally:  # also when told to end
                ballast.unlink()
        elif how == "model gone":
            self._end("model", signal.SIGKILL)
            time.sleep(OUTAGE_S)
        else:
            return
        self.faults[how] = self.faults.get(how, 0) + 1

    def seen(self) -> dict[str, object]:
        """Of this minute."""
        search = self._alive.get("search")
        told: dict[str, object] = {"at": time.time(), "faults": self.faults}
        with contextlib.suppress(psutil.Error, AttributeError):
            process = psutil.Process(search.pid)  # type: ignore[union-attr]
            spent = process.cpu_times()
            told |= {"pid": process.pid, "rss_mb": process.memory_info().rss >> 20, "cpu_s": spent.user + spent.system}
            told |= {"open_files": process.num_fds(), "threads": process.num_threads()}
        with contextlib.suppress(sqlite3.Error):
            told |= counted(self.population)
        files = sum(len(files) for _, _, files in os.walk(self.box))
        mb = self.population.stat().st_size >> 20 if self.population.exists() else 0
        return told | {"spool_files": files, "file_mb": mb}


def counted(population: Path) -> dict[str, int]:
    with contextlib.closing(sqlite3.connect(f"file:{population}?mode=ro", uri=True)) as file:
        one = lambda query: int(file.execute(query).fetchone()[0])  # noqa: E731
        return {
            "attempts": one("select count(*) from attempts"),
            "candidates": one("select count(*) from candidates"),
            "verdicts": one("select count(*) from evaluations"),
            "failures": one("select count(*) from failures"),
        }


def go_on(folder: Path, hours: float) -> None:
    machine, end = Machine(folder), time.monotonic() + hours * 3600
    kinds = itertools.cycle(
        ("search killed", "clock jumped", "servers killed", "spool removed", "disk full", "model gone")
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    next_fault, next_look = time.monotonic() + BETWEEN_S, time.monotonic() + MINUTE_S
    try:
        while time.monotonic() < end:
            machine.keep_alive()
            time.sleep(1.0)
            if time.monotonic() >= next_fault:
                machine.fail(next(kinds))
                next_fault = time.monotonic() + random.uniform(0.5, 1.5) * BETWEEN_S
            if time.monotonic() >= next_look:
                with (folder / "log.jsonl").open("a") as log:
                    log.write(json.dumps(machine.seen()) + "\n")
                next_look += MINUTE_S
    except KeyboardInterrupt:
        pass
    finally:
        machine.end()


def summarise(folder: Path) -> None:
    """Prints a table of hours that were worked, and what is wrong with the file, if anything."""
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    print("| hour | attempts | MB of the search: median, most | open files | threads | spool files | file MB |")
    print("|---|---|---|---|---|---|---|")
    known = 0
    for hour, start in enumerate(range(0, len(lines), 60)):
        some = [line for line in lines[start : start + 60] if "rss_mb" in line and "attempts" in line]
        memory = sorted(line["rss_mb"] for line in some)
        most = {key: max(line[key] for line in some) for key in ("open_files", "threads", "spool_files", "file_mb")}
        done = some[-1]["attempts"] - known
        known = some[-1]["attempts"]
        print(
            f"| {hour + 1} | {done} | {memory[len(memory) // 2]}, {memory[-1]} | {' | '.join(map(str, most.values()))} |"
        )
    with contextlib.closing(sqlite3.connect(folder / "days.db")) as file:
        print("integrity:", file.execute("pragma integrity_check").fetchone()[0])
        twice = "select count(*) from (select 1 from {} group by {} having count(*) > 1)"
        print("attempts with two candidates:", file.execute(twice.format("candidates", "attempt")).fetchone()[0])
        scores = (  # roots are measured twice
            "(select candidate from evaluations e join candidates c on c.id = candidate "
            "where purpose = 'score' and fresh and parent is not null)"
        )
        print("candidates scored twice:", file.execute(twice.format(scores, "candidate")).fetchone()[0])
    print(counted(folder / "days.db"))
    errors = re.compile(r"Traceback|Error:")
    print("tracebacks:", len(errors.findall((folder / "search.out").read_text(errors="replace"))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--hours", type=float)
    parser.add_argument("--as", dest="role", choices=("model", "judge"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.dir.mkdir(parents=True, exist_ok=True)
    if options.role == "model":
        answer_calls(options.dir / "url")
    elif options.role == "judge":
        judge_requests(options.dir / "box")
    elif options.hours:
        go_on(options.dir.absolute(), options.hours)
    else:
        summarise(options.dir)


if __name__ == "__main__":
    main()
