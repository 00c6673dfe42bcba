"""The tasks of a suite, and what a worker does for one: search, then ask the benchmark's own harness."""

from __future__ import annotations

import fnmatch
import json
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from evo_kernel.app.suite.harnesses import best_source, written_module
from evo_kernel.app.suite.lanes import EarlySearch, Lane, OrderEnd, run_logged
from evo_kernel.app.verdicts import own_share, torch_calls
from evo_kernel.errors import UserError
from evo_kernel.judge_place import LOCAL
from evo_kernel.observe.suites import NONE, Stock, SuiteRow, geomean, stock_of
from evo_kernel.types import Evaluation

if TYPE_CHECKING:
    from populations.reading import PopulationReader


@dataclass(frozen=True)
class SuiteTask:
    """One task of a suite."""

    spec: str
    label: str
    group: str
    note: str = ""  # what its row and the names of its files say of it

    @property
    def name(self) -> str:
        """Of its files."""
        return re.sub(r"[^A-Za-z0-9_.-]+", "_", f"{self.label} {self.note}".strip())

    @property
    def population(self) -> str:
        """Its population's file name."""
        return self.name + ".db"

    def in_ieee(self) -> SuiteTask | None:
        """The same task without TF32; None where this one does not allow it."""
        spec = self.spec.replace("@tf32", "")
        return replace(self, spec=spec, note="in IEEE float32") if spec != self.spec else None


def tasks_of(suite: str, only: Sequence[str], but: Sequence[str] = ()) -> list[SuiteTask]:
    """The tasks that a suite's name stands for. Raises UserError."""
    found = _all_of(suite)
    if only:
        found = [one for one in found if any(fnmatch.fnmatchcase(one.label, pattern) for pattern in only)]
    found = [one for one in found if not any(fnmatch.fnmatchcase(one.label, pattern) for pattern in but)]
    if not found:
        listed = "tasks list" if suite == "builtin" else f"tasks import {suite}"
        raise UserError(f"no task of {suite} fits {', '.join(only) or 'it'}; `evo-kernel {listed}` names them")
    return found


def _all_of(suite: str) -> list[SuiteTask]:
    from evo_kernel.tasks.loading import builtin_names, importer_of

    if suite == "builtin":
        return [SuiteTask(name, name, "builtin") for name in builtin_names()]
    importer = importer_of(suite)
    if importer is not None:
        return [SuiteTask(entry.spec, entry.label, entry.group) for entry in importer.entries(suite.partition(":")[2])]
    path = Path(suite).expanduser()
    if not path.is_file():
        raise UserError(
            f"there is no suite {suite!r}: name `builtin`, a benchmark's checkout such as kernelbench:PATH/level1, or "
            "a text file with a TASK a line"
        )
    try:
        lines = [line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as text ({error}): name a text file with a TASK a line") from error
    specs = list(dict.fromkeys(line for line in lines if line))
    labels = [Path(spec).stem if spec.endswith(".py") else spec for spec in specs]
    twice = [label for label in labels if labels.count(label) > 1]
    return [
        SuiteTask(spec, spec if label in twice else label, path.stem) for spec, label in zip(specs, labels, strict=True)
    ]


GRACE_S = 600.0
"""What a search may take beyond its budget: loading, the first kernel, baselines, confirming what it found."""
STOCK_S = 120.0
"""Of one answer of a benchmark's harness, by the clock."""
ENDED = ("budget", "barren")
"""Why a search ends by itself: it has then tried to confirm its best, unless it says that time did not suffice."""
WRITTEN = ("kernelbench", "tritonbench")
"""Benchmarks whose solutions a suite writes."""
ASKED = "kernelbench"
"""The benchmark whose harness is asked."""
SOLUTIONS, LOGS = "solutions", "logs"
PYTHON = (sys.executable, "-P", "-m")


@dataclass(frozen=True)
class SearchOptions:
    """How every task is searched, beside its budget."""

    config_file: str | None = None  # of new populations; those that are there keep theirs
    overrides: tuple[str, ...] = ()  # KEY=VALUE
    device: str = "auto"
    judge_at: str = LOCAL


class SuiteWorker:
    """The searches of one lane, each a process of its own. While one searches, the process of the next one starts."""

    def __init__(self, lane: Lane, folder: Path, options: SearchOptions, halt: Event) -> None:
        self._lane, self._folder, self._options, self._halt = lane, folder, options, halt
        self._early: EarlySearch | None = None

    @property
    def device(self) -> str:
        """Where kernels are judged: cpu or cuda."""
        if self._options.device != "auto":
            return self._options.device
        import torch

        return "cuda" if torch.version.cuda is not None and torch.cuda.device_count() else "cpu"

    def search(
        self, one: SuiteTask, minutes: float, evaluations: int | None, following: SuiteTask | None = None
    ) -> SuiteRow | None:
        """A task's row, from its population; None where the search was cut off before there was anything to tell.

        `following`: the next one of this lane, as far as one can tell; None: none.
        """
        population, options = self._folder / one.population, self._options
        settings = [*options.overrides, f"budget.hours={minutes / 60:.6f}"]
        if evaluations is not None:
            settings.append(f"budget.evaluations={evaluations}")
        if population.exists():  # a resume keeps its own configuration file; what was said then holds
            words = ["resume", str(population)]
        else:
            words = ["run", one.spec, "--population", str(population)]
            words += ["--config", options.config_file] if options.config_file else []
        words += ["--device", options.device] if options.judge_at == LOCAL else ["--judge", options.judge_at]
        words += ["--json", *(word for one in settings for word in ("--set", one))]
        early, self._early = self._early, None
        if early is not None and not early.alive():  # something killed it while it waited
            early.close()
            early = None
        early = early or self._start(one)
        self._early = self._start(following) if following is not None else None
        solution = None
        if benchmark_of(one) in WRITTEN:
            solution = {"spec": one.spec, "population": str(population), "device": self.device, **self._files(one)}
        ended = early.run(words, self._folder / LOGS / one.name, 60 * minutes + GRACE_S, self._halt, solution)
        return self.row(one, population, ended)

    def _files(self, one: SuiteTask) -> dict[str, str]:
        """Folder of the benchmark's file of a task, and the module that it is written around."""
        in_one = benchmark_of(one) == "tritonbench"
        folder = self._folder / SOLUTIONS / (one.name if in_one else "")
        return {"folder": str(folder), "module": str(self._folder / LOGS / f"{one.name}.module.json")}

    def _start(self, one: SuiteTask) -> EarlySearch:
        here = self._options.judge_at == LOCAL
        return EarlySearch(self._lane, self._options.device if here else "cpu", one.spec)

    def close(self) -> None:
        """End what waits for a search. Idempotent."""
        early, self._early = self._early, None
        if early is not None:
            early.close()

    def row(self, one: SuiteTask, population: Path, ended: OrderEnd) -> SuiteRow | None:
        """What a search came to, by its population and what its process said."""
        row = SuiteRow(one.spec, one.label, one.group, "failed")
        told = _told(ended)
        if population.exists():
            try:
                row = row_of(row, population)
            except Exception as error:  # noqa: BLE001  a file that cannot be read is this task's trouble alone
                row = replace(row, reason=f"{population} cannot be read: {error}")
        goes_on = "the same command goes on with it"
        if told is not None and told.get("cause") in ENDED:
            late = f"its confirmation did not fit into the time: {goes_on}"
            return replace(row, cut=True, reason=late) if row.correct and told.get("unconfirmed") else row
        if self._halt.is_set():
            if row.status == "failed":
                return None
            return replace(row, cut=True, reason=row.reason or f"interrupted: {goes_on}")
        if told is not None and not ended.late and not row.correct:
            return row
        late = f"was ended after {ended.after_s:.0f} s, long beyond its budget"
        why = late if ended.late else str(told["stopped"]) if told is not None else _why(ended.code, ended.err)
        if row.correct:
            return replace(row, cut=True, reason=f"its search did not end well: {why}; {goes_on}")
        return replace(row, reason=why, status="failed")

    def ask(self, one: SuiteTask, row: SuiteRow, stock: bool = True) -> SuiteRow:
        """The row with what the benchmark's own harness says of its kernel, which is written as the benchmark's file.

        What it said of the same kernel before is not asked again; of another, it is forgotten. Without `stock` the
        file is written, and nobody is asked.
        """
        source = best_source(self._folder / one.population) if row.correct else None
        if stock and source and row.stock and row.stock.kernel == source.sha256 and row.stock.verdict != NONE:
            return row
        row = replace(row, stock=None) if stock else row
        if source is None or self._halt.is_set():
            return row
        eager_us = row.baselines_us.get("eager", row.best_us or 0.0)
        expected_us = row.best_us + eager_us if row.measured and row.best_us else None
        files = self._files(one)
        if not stock and written_module(files["module"], source) is not None:
            return row
        order = {"spec": one.spec, "kernel": source.text, "device": self.device, "ask": stock, **files}
        ended = ask_harness(
            order | {"expected_us": expected_us}, self._lane, self._folder / LOGS / f"{one.name}.stock", self._halt
        )
        if self._halt.is_set() and not ended.out.strip():
            return row  # the same command again asks
        said = answer_of(ended, source.sha256)
        if stock:
            return replace(row, stock=said)
        why = f"its solution was not written: {said.reason}"
        return replace(row, reason=f"{row.reason}; {why}" if row.reason else why) if said.reason else row


def ask_harness(order: dict[str, Any], lane: Lane, log: Path, halt: Event, deadline_s: float = STOCK_S) -> OrderEnd:
    """Run `harnesses.asked` with these arguments in a process of its own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = log.with_name(log.name + ".json")
    file.write_text(json.dumps(order), encoding="utf-8")
    return run_logged([*PYTHON, "evo_kernel.app.suite.harnesses", str(file)], lane, log, deadline_s, halt, grace_s=0.0)


def benchmark_of(one: SuiteTask) -> str:
    """The benchmark whose problem it is; empty for a task file."""
    return "" if Path(one.spec).exists() else one.spec.partition(":")[0]


def answer_of(ended: OrderEnd, kernel: str) -> Stock:
    """What the harness's process answered of a kernel (its hash)."""
    try:
        return replace(stock_of(json.loads(ended.out.strip().splitlines()[-1])), kernel=kernel)
    except (IndexError, ValueError, TypeError, KeyError, AttributeError):
        late = f"its harness took longer than {ended.after_s:.0f} s and was ended"
        why = late if ended.late else f"its harness ended early: {_why(ended.code, ended.err)}"
        return Stock(NONE, why, kernel, seconds=ended.after_s)


def _told(ended: OrderEnd) -> dict[str, object] | None:
    """The summary that `run --json` prints last; None where it did not come to that."""
    try:
        told = json.loads(ended.out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _why(code: int, err: str) -> str:
    if code == 128 + signal.SIGKILL:
        return "its process was killed: the machine may have run out of memory"
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ")[:500] if lines else f"its process ended with code {code} and said nothing"


def row_of(row: SuiteRow, population: Path) -> SuiteRow:
    """The row with what a population file says."""
    from populations.reading import PopulationReader

    with PopulationReader(population) as reader:
        status, environment = reader.status(), reader.environment
        row = replace(row, minutes=status.wall_s / 60, evaluations=sum(status.evaluations.values()))
        if environment is None or not status.candidates:
            return replace(row, reason="its search ended before anything was judged")
        first = reader.candidate(1)
        times = [m.median_us for m in first.evaluation.measurements] if first.evaluation else []
        row = replace(
            row,
            environment=environment.label,
            measured=environment.kind == "measured",
            first=kind_of(first.proposal.source.text),
            first_us=geomean(times),
        )
        champion = reader.champion()
        best = champion or reader.best()
        judged = reader.relative(best.candidate).evaluation if best is not None else None
        own_us = own_kernel_us(reader) if judged is not None and any(map(torch_calls, judged.measurements)) else None
    if judged is None or not judged.measurements:
        why = f": the first is {first.evaluation.status} ({first.evaluation.reason})" if first.evaluation else ""
        told = f"no candidate passed{why}; `evo-kernel tree` on its population lists what became of each"
        return replace(row, status="nothing passed", reason=told)
    row = _with_best(row, judged, "confirmed" if champion is not None else "passed")
    return replace(row, own_us=own_us)


def own_kernel_us(reader: PopulationReader) -> float | None:
    """Of the fastest kernel that passed and calls no torch operation."""
    for number in reader.leaders():
        found = reader.relative(number).evaluation
        if found is not None and not any(torch_calls(case) for case in found.measurements):
            return geomean([case.median_us for case in found.measurements])
    return None


def _with_best(row: SuiteRow, judged: Evaluation, status: str) -> SuiteRow:
    cases = judged.measurements
    names = set.intersection(*(set(case.baselines_us) for case in cases))
    lights = [case.light_share for case in cases if case.light_share is not None]
    operations = sorted({name for case in cases for name in torch_calls(case)})
    shares = [own_share(case) for case in cases if torch_calls(case)]
    return replace(
        row,
        status=status,
        reason="",
        best_us=geomean([case.median_us for case in cases]),
        baselines_us={name: geomean([case.baselines_us[name] for case in cases]) or 0.0 for name in sorted(names)},
        light_share=geomean(lights) if len(lights) == len(cases) and all(lights) else None,
        own_share=1.0 if not operations else min((one for one in shares if one is not None), default=None),
        torch_operations=tuple(name.removeprefix("aten.") for name in operations),
    )


def kind_of(text: str) -> str:
    """What a first kernel is: kernels, mixed (some operations stay PyTorch's) or torch."""
    if "torch.ops.aten." not in text:
        return "kernels"
    return "mixed" if "@triton.jit" in text else "torch"
