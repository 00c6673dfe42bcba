"""A search by operators with a model, around the real engine, population, ledger and door; only the judge is made up.

    python -m tests.support.modelled FILE --url URL         a process to be killed

How busy one process keeps many conversations of agents, with the model and the search in two shells:

    python -m tests.support.modelled --serve 30 --converse
    python -m tests.support.modelled FILE --url URL --agents 512 --seconds 150
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from evo_kernel.app import compose
from evo_kernel.app.operator_factory import operating
from evo_kernel.config import Config, config_from
from evo_kernel.deadline import Deadline
from evo_kernel.engine import Engine, EngineSettings, RunSummary
from evo_kernel.errors import UserError
from evo_kernel.fitness.profiling.compile_report import CompileReport
from evo_kernel.fitness.stages import Stages
from evo_kernel.types import CaseKind, Evaluation, Knobs, Purpose, Source, Status
from populations.population import LineagePopulation, open_population
from tests.support.chat_server import Answer, ChatServer
from tests.support.scripted import CARD, ENVIRONMENT, TASK, Notebook, scored

FIRST = Source("import triton\n\nBLOCK = 128\n\n\ndef run(x):\n    return x  # time_us = 100.0\n")
ROUNDS = 8  # answers in a conversation
TIME = re.compile(r"time_us = ([\d.]+)")


@dataclass
class CommentJudge:
    """A kernel takes as long as its comment says; one without is wrong."""

    environment = ENVIRONMENT
    charge: bool = True  # whether a verdict is charged
    asked: list[tuple[str, Purpose]] = field(default_factory=list)
    before: Any = None  # called with (source, purpose)

    def evaluate(
        self,
        source: Source,
        purpose: Purpose,
        remeasure: bool = False,
        against: Source | None = None,
        deadline: Deadline | None = None,
        effort: int = 1,
    ) -> Evaluation:
        del remeasure, against, deadline, effort
        if self.before is not None:
            self.before(source, purpose)
        self.asked.append((source.sha256, purpose))
        charged = {str(purpose): 1} if self.charge else {}
        found = TIME.search(source.text)
        if found is None:
            reason = "no element is right"
            return Evaluation(source.sha256, TASK, purpose, ENVIRONMENT, Status.WRONG, reason, charged=charged)
        told = scored(Source(f"time_us = {found[1]}\n# {source.sha256}"), purpose, charged)
        return Evaluation(
            source.sha256,
            TASK,
            purpose,
            ENVIRONMENT,
            Status.PASSED,
            score=told.score,
            measurements=told.measurements,
            plans=told.plans,
            checks=told.checks,
            charged=charged,
        )

    def profile(
        self, source: Source, knobs: Knobs, kinds: Sequence[CaseKind], counters: bool | None, case_name: str | None
    ) -> Mapping[str, Any]:
        raise UserError("a made-up kernel has no profile")

    def compiled(self, source: Source, case_name: str | None = None) -> CompileReport:
        return CompileReport(case_name or "large", fault="a made-up kernel is not compiled")

    def close(self) -> None: ...


def kernel_of(time_us: float, note: str = "") -> str:
    return f"import triton\n\nBLOCK = 128\n\n\ndef run(x):\n    return x  # time_us = {time_us} {note}\n"


def faster(request: Mapping[str, Any], number: int) -> Answer:
    """What a model answers: a choice where it is asked for JSON, else a whole file that is a little faster."""
    del request
    return Answer(f"```python\n{kernel_of(100.0 - 50.0 * number / (number + 20))}```", tokens=(3000, 500, 1000))


def conversing(request: Mapping[str, Any], number: int) -> Answer:
    """What an agent answers in a conversation of ROUNDS answers: write, probe, evaluate, look, and at last a commit."""
    done = sum(message["role"] == "assistant" for message in request["messages"])
    time_us = 100.0 - 50.0 * number / (number + 2000)
    write = ("write_file", json.dumps({"path": "kernel.py", "text": kernel_of(time_us, f"# {number}")}))
    rounds = {
        0: (("list_files", "{}"), ("lineage", "{}")),
        1: (write, ("probe", "{}")),
        2: (("evaluate", json.dumps({"idea": f"idea {number}"})),),
        3: (("read_file", json.dumps({"path": "kernel.py"})),),
    }
    submit = ("submit", json.dumps({"idea": f"step {number}", "strategy": f"step-{number}", "family": "tiling"}))
    last = (write, submit, ("give_up", json.dumps({"reason": "nothing left"})))
    return Answer("", tool_calls=last if done >= ROUNDS - 1 else rounds[done % 4], tokens=(3000, 500, 1000))


def config_for(url: str | None, **changes: Any) -> Config:
    """One model at `url` that costs 10 and 30 dollars a million tokens, no offline operators."""
    model = {"name": "local", "base_url": url, "price_in": 10, "price_out": 30, "price_cached": 1}
    data: dict[str, Any] = {
        "seed": 5,
        "width": 1,
        "models": {"main": model} if url else {},
        "operators": {"use": ["llm-mtmc"]},
        "agents": {"hierarchy": False, "knowledge": False},
    }
    return config_from(data | changes, "test")


@dataclass
class Ended:
    summary: RunSummary
    heard: list[str]
    judge: CommentJudge


def search(
    file: Path,
    config: Config,
    judge: CommentJudge | None = None,
    stop: threading.Event | None = None,
) -> Ended:
    judge, heard = judge or CommentJudge(), Notebook()
    with opened(file, config) as population:
        population.plant(FIRST)
        ledger = compose.ledger_of(config, population)
        with operating(config, population, judge, ledger, heard.trouble, Stages(), stop) as operator:
            settings = EngineSettings(width=config.width, remeasured=0.0, barren=20)
            ended = Engine(population, operator, judge, ledger, settings, heard).run()
    return Ended(ended, heard.lines, judge)


def opened(file: Path, config: Config) -> LineagePopulation:
    return open_population(
        file,
        task=CARD,
        task_identity=TASK,
        environment=ENVIRONMENT,
        seed=config.seed,
        run=config.model_dump(mode="json"),
    )


def keep_busy(file: Path, url: str, agents: int, seconds: float) -> None:
    """Prints the share of agents × wall time that was spent in calls, start included, and what it cost."""
    stop = threading.Event()
    threading.Timer(seconds, stop.set).start()
    config = config_for(url, width=agents, operators={"use": ["avo"]}, budget={"hours": 1})
    began, spent = time.perf_counter(), time.process_time()
    search(file, config, stop=stop)
    wall_s, spent_s = time.perf_counter() - began, time.process_time() - spent
    with closing(sqlite3.connect(file)) as population:
        calls, in_calls_s = population.execute("select count(*), sum(wall_s) from calls").fetchone()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"{calls} calls in {wall_s:.0f} s: {in_calls_s / agents / wall_s:.1%} busy; {spent_s:.0f} s of a processor, "
        f"{1e3 * spent_s / calls:.1f} ms a call; at most {peak_mb} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--url")
    parser.add_argument("--serve", type=float, metavar="SECONDS", help="answer, so late, until it is ended")
    parser.add_argument("--converse", action="store_true", help="answer as an agent with tools")
    parser.add_argument("--agents", type=int, help="conversations at once")
    parser.add_argument("--seconds", type=float, default=150.0)
    options = parser.parse_args()
    if options.serve is not None:
        say = conversing if options.converse else faster
        with ChatServer(lambda *asked: replace(say(*asked), delay_s=options.serve), remember=False) as server:
            print(server.url, flush=True)
            threading.Event().wait()
    if options.agents:
        keep_busy(options.file, options.url, options.agents, options.seconds)
        return
    print("ready", flush=True)
    search(options.file, config_for(options.url, width=4, budget={"hours": 1}))


if __name__ == "__main__":
    main()
