"""The processes of `train collect`, one a GPU: they share problems out among themselves, with nobody to lead them."""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from evo_kernel.app.train.collector import Grower, Want
from evo_kernel.app.train.problems import rows_of
from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.gpus import usable_cores
from operators.learning.pack_tree import read_rows
from operators.learning.tree import Tree

NARROWED = 0.6  # of the time that a whole task gets
DRAIN_S = 25.0  # for what is in flight at the end of a slice
WORTH_S = 15.0  # no problem is opened for less
GRACE_S = 12.0  # after the end, before a process is killed
OPENINGS = 6  # that may fail before a process gives up
FREE, TAKEN, DONE = 0, 1, 2


@dataclass(frozen=True)
class Order:
    """What to do: problems in their order, until `end` (of time.monotonic, which processes of a machine share)."""

    problems: tuple[str, ...]
    folder: Path
    processes: int
    slice_s: float
    end: float


class ProblemBoard:
    """Who is at which problem, and what each has had. Shared by processes; a lost one leaves its problem taken."""

    def __init__(self, problems: tuple[str, ...], spent_s: list[float], context: Any) -> None:
        self._problems = problems
        self._lock = context.Lock()
        self._state = context.Array("i", [FREE] * len(problems), lock=False)
        self._spent_s = context.Array("d", spent_s, lock=False)

    def take(self) -> str | None:
        """The free problem that is furthest behind; None where all are taken or done."""
        with self._lock:
            free = [at for at in range(len(self._problems)) if self._state[at] == FREE]
            if not free:
                return None
            at = min(free, key=lambda at: self._spent_s[at] / (NARROWED if "@" in self._problems[at] else 1.0))
            self._state[at] = TAKEN
            return self._problems[at]

    def put(self, problem: str, seconds: float, more: bool) -> None:
        at = self._problems.index(problem)
        with self._lock:
            self._spent_s[at] += seconds
            self._state[at] = FREE if more else DONE


def send(order: Order, want: Want) -> None:
    """Start the processes, and wait until the time is over or nothing is left."""
    context = multiprocessing.get_context("spawn")
    spent = [read_rows(rows_of(order.folder, name)).seconds for name in order.problems]
    board = ProblemBoard(order.problems, spent, context)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(order.processes)))).split(",")
    cores, each = sorted(os.sched_getaffinity(0)), max(1, usable_cores() // order.processes)
    processes = []
    for number in range(order.processes):
        own = cores[number * len(cores) // order.processes :][:each]
        gpu = gpus[number] if number < len(gpus) else str(number)
        wanted = replace(want, threads=want.threads or len(own) + 2)
        processes.append(context.Process(target=_work, args=(number, gpu, own, order, wanted, board), daemon=False))
        processes[-1].start()
    try:
        for process in processes:
            process.join(max(1.0, order.end + GRACE_S - time.monotonic()))
    finally:
        for process in processes:
            if process.is_alive():
                _say(f"process {process.pid} did not end in time: terminated")
                process.terminate()
                process.join(3.0)
            if process.is_alive():  # or the interpreter would wait for it for ever at its own end
                process.kill()
                process.join()


def _say(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()


def _work(number: int, gpu: str, cores: list[int], order: Order, want: Want, board: ProblemBoard) -> None:
    """The life of a process."""
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        _Worker(number, order, want, board).run()
    except Exception:  # noqa: BLE001 (the other processes' rows are still wanted)
        _say(f"[{number}] failed\n{traceback.format_exc()}")
    sys.stdout.flush()
    os._exit(0)  # threads that are cut off in the middle of something are not waited for


class _Worker:
    """Slices of problems, one after another; the next is opened while the last kernels of one are still judged."""

    def __init__(self, number: int, order: Order, want: Want, board: ProblemBoard) -> None:
        self._number, self._order, self._want, self._board = number, order, want, board
        self._pool = ThreadPoolExecutor(1)
        self._failed = 0
        self._ceilings: Mapping[str, float] = {}

    def run(self) -> None:
        opened = self._next().result()
        while opened is not None:
            grower, began, opening_s = opened
            more = True
            slice_s = self._order.slice_s * (NARROWED if "@" in grower.problem else 1.0)
            grower.know(self._ceilings)
            try:
                more = grower.grow(min(time.monotonic() + slice_s, self._order.end - 2.0))
                self._ceilings = self._ceilings or grower.ceilings
            except InfraError as error:
                grower.trouble.append(str(error))
            following = self._next()
            clean = grower.drain(min(time.monotonic() + DRAIN_S, self._order.end))
            seconds = time.monotonic() - began
            grower.close(seconds)
            self._board.put(grower.problem, seconds, more)
            self._tell(grower, seconds, opening_s, more, clean)
            opened = following.result() or self._next().result()  # what was at hand is free by now

    def _next(self) -> Future[tuple[Grower, float, float] | None]:
        return self._pool.submit(self._open)

    def _open(self) -> tuple[Grower, float, float] | None:
        """Another problem, when its opening began and how many seconds it took; None where there is none, or no
        time."""
        while time.monotonic() < self._order.end - WORTH_S and self._failed < OPENINGS:
            name = self._board.take()
            if name is None:
                return None
            began = time.monotonic()
            try:
                path = rows_of(self._order.folder, name)
                grower = Grower(name, self._want, path, self._baselines(name))
                return grower, began, time.monotonic() - began
            except Exception as error:  # noqa: BLE001 (another may open)
                self._failed += 1
                self._board.put(name, 0.0, more=False)
                where = "" if isinstance(error, UserError) else f"\n{traceback.format_exc()[-1500:]}"
                _say(f"[{self._number}] {name} does not open: {error}{where}")
        return None

    def _baselines(self, name: str) -> dict[str, dict[str, float]]:
        """Of the whole task, also for problems that are narrowed to one of its cases."""
        return read_rows(rows_of(self._order.folder, name.partition("@")[0])).baselines

    def _tell(self, grower: Grower, seconds: float, opening_s: float, more: bool, clean: bool) -> None:
        rows = grower.rows
        passed = sum(row["status"] == "passed" for row in rows.candidates.values())
        _say(
            f"[{self._number}] {grower.name}: {passed} of {len(rows.candidates)} kernels pass, {len(rows.edges)} edges,"
            f" {rows.settings} settings judged; {seconds:.0f} s, {opening_s:.0f} of it to open"
            f"{'' if more else '; exhausted'}{'' if clean else '; some were cut off'}"
            + "".join(f"\n    trouble: {one}" for one in grower.trouble[:3])
            + (f"\n    {len(grower.trouble)} troubles" if len(grower.trouble) > 3 else "")
        )


def print_problems(tree: Tree, folder: Path) -> None:
    """A line a problem."""
    titles = ("problem", "split", "kernels", "states", "edges", "settings", "depth", "best gain", "seconds")
    click.echo("{:<34}{:<10}{:>8}{:>8}{:>8}{:>10}{:>7}{:>11}{:>9}".format(*titles))
    roots = {one.task: one for one in tree.roots()}
    every = {rows.problem.name: rows for rows in map(read_rows, sorted(folder.glob("*.jsonl"))) if rows.problem}
    for name, problem in sorted(tree.problems.items()):
        states = [one for one in tree.states.values() if one.task == name]
        rows = every[name]
        gain = f"{math.exp(tree.best_gain(roots[name].id)):.3f}x" if name in roots else "-"
        click.echo(
            f"{name[:33]:<34}{problem.split:<10}{len(rows.candidates):>8}{len(states):>8}"
            f"{sum(len(tree.edges(one.id)) for one in states):>8}{rows.settings:>10}"
            f"{max((one.depth for one in states), default=0):>7}{gain:>11}{rows.seconds:>9.0f}"
        )
