"""What a lane does for one task: search, then ask the benchmark's own harness about the kernel that was found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from evo_kernel.cli.mixed import own_share, torch_calls
from evo_kernel.cli.suite.lanes import GPU_NEXT, Child, Ended, Halt, Lane
from evo_kernel.cli.suite.tasks import Chosen
from evo_kernel.observe.protocols import NONE, Stock, stock_of
from evo_kernel.observe.suites import SuiteRow, geomean
from evo_kernel.types import Evaluation, Source

if TYPE_CHECKING:
    from populations.reading import PopulationReader

STOCK_S = 120.0
"""Of one answer of a benchmark's harness, by the clock."""
STOCK_WORTH_S = 8.0
"""With less time than that left it is not asked; the same command again asks."""
ENDED = ("budget", "barren")
"""Why a search ends by itself: it has then tried to confirm its best, unless it says that time did not suffice."""
HARNESSES = ("kernelbench", "tritonbench")
SOLUTIONS = "solutions"


@dataclass(frozen=True)
class Times:
    """Of one search, in seconds."""

    budget: float  # the population's budget, earlier sessions included
    polite: float | None  # after which it is asked to end as by ^C
    deadline: float  # after which it is killed


class Worker:
    """The processes of one lane, for one thread."""

    def __init__(self, lane: Lane, folder: Path, extra: Sequence[str], halt: Halt, device: str) -> None:
        self._lane, self._folder, self._extra, self._halt, self._device = lane, folder, tuple(extra), halt, device
        self._ready: Child | None = None  # loading for the next search, or loaded
        self._asker: Child | None = None  # the same for the harness of the task at hand

    def get_ready(self, one: Chosen) -> None:
        """Start loading for the next search, as far as nothing on the GPU is needed."""
        if self._ready is not None and not self.loads(one):
            self._ready.close()
            self._ready = None
        if self._ready is None:
            self._ready = Child(self._lane, self._words(one))

    def loads(self, one: Chosen) -> bool:
        """Whether the search of a task is loading, or loaded."""
        return self._ready is not None and self._ready.words == self._words(one)

    def get_set(self, one: Chosen) -> None:
        """Have the next search load on the GPU, too: nobody is timed there any more."""
        self.get_ready(one)
        assert self._ready is not None
        self._ready.tell(GPU_NEXT)

    def get_ready_to_ask(self, one: Chosen, ask: bool = True) -> None:
        """Start loading the harness of a task; or what writes its solution alone."""
        words = ["stock" if ask else "write", one.spec]
        if self._asker is not None and self._asker.words != tuple(words):
            self._asker.close()
            self._asker = None
        if self._asker is None and has_harness(one):
            more = {"CUDA_VISIBLE_DEVICES": ""} if self.device == "cpu" else {}
            self._asker = Child(self._lane, words, more)

    def _words(self, one: Chosen) -> tuple[str, ...]:
        return "search", one.spec, self.device

    def close(self) -> None:
        """End what is loading."""
        for child in (self._ready, self._asker):
            if child is not None:
                child.close()
        self._ready = self._asker = None

    @property
    def device(self) -> str:
        """Where kernels are judged: cpu or cuda."""
        if self._device != "auto":
            return self._device
        import torch

        return "cuda" if torch.version.cuda is not None and torch.cuda.device_count() else "cpu"

    def search(
        self, one: Chosen, times: Times, evaluations: int | None, following: Chosen | None = None
    ) -> SuiteRow | None:
        """A task's row, from its population; None where the search was cut off before there was anything to tell.

        `following`: what is searched next, if that is known; it loads meanwhile.
        """
        population = self._folder / one.population
        budget = ["--set", f"budget.hours={times.budget / 3600:.6f}"]
        if evaluations is not None:
            budget += ["--set", f"budget.evaluations={evaluations}"]
        if population.exists():  # `resume` keeps its configuration; what was said then holds
            words = ["resume", str(population), *_without_config(self._extra), *budget, "--json"]
        else:
            words = ["run", one.spec, "--population", str(population), *self._extra, *budget, "--json"]
        self.get_ready(one)
        child, self._ready = self._ready, None
        assert child is not None
        if following is not None:
            self.get_ready(following)
        try:
            ended = child.order(words, times.deadline, self._halt, times.polite)
        finally:
            child.close()
        return self._row(one, population, ended, times.polite is not None)

    def _row(self, one: Chosen, population: Path, ended: Ended, timed: bool) -> SuiteRow | None:
        """`timed`: by the time of the whole command, so that being late is nobody's fault."""
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
        if self._halt.asked.is_set():
            if row.status == "failed":
                return None
            return replace(row, cut=True, reason=row.reason or f"interrupted: {goes_on}")
        if ended.late and timed:
            over = f"the time for it was over after {ended.after_s:.0f} s: {goes_on}"
            return replace(row, cut=True, reason=over, status="waiting" if row.status == "failed" else row.status)
        if told is not None and not row.correct:
            return row
        late = f"was ended after {ended.after_s:.0f} s, long beyond its budget"
        why = late if ended.late else str(told["stopped"]) if told is not None else _why(ended.code, ended.err)
        if row.correct:
            return replace(row, cut=True, reason=f"its search did not end well: {why}; {goes_on}")
        return replace(row, reason=why, status="failed")

    def stock(self, one: Chosen, row: SuiteRow, deadline_s: float) -> SuiteRow:
        """The row with what the benchmark's own harness says of its kernel, where there is time to ask.

        What it said of the same kernel before is not asked again; of another, it is forgotten.
        """
        source = best_source(self._folder / one.population) if row.correct else None
        if source is not None and row.stock and row.stock.kernel == source.sha256 and row.stock.verdict != NONE:
            return row
        row = replace(row, stock=None)
        if source is None or self._halt.asked.is_set() or deadline_s < STOCK_WORTH_S:
            return row
        eager_us = row.baselines_us.get("eager", row.best_us or 0.0)
        expected_us = row.best_us + eager_us if row.measured and row.best_us else None
        more = {"device": self.device, "expected_us": expected_us}
        self.get_ready_to_ask(one)
        ended = self._ordered(one, source, more, deadline_s)
        if self._halt.asked.is_set() and not ended.out.strip():
            return row  # the same command again asks
        return replace(row, stock=_answer(ended, source.sha256))

    def write(self, one: Chosen, row: SuiteRow, deadline_s: float) -> SuiteRow:
        """The row as it is; its kernel is written as the benchmark's own file, and nobody is asked about it."""
        source = best_source(self._folder / one.population) if row.correct else None
        if source is None or deadline_s < STOCK_WORTH_S:
            return row
        self.get_ready_to_ask(one, ask=False)
        ended = self._ordered(one, source, {"device": self.device}, deadline_s)
        if ended.code and not self._halt.asked.is_set():
            why = f"its solution was not written: {_why(ended.code, ended.err)}"
            return replace(row, reason=f"{row.reason}; {why}" if row.reason else why)
        return row

    def _ordered(self, one: Chosen, source: Source, more: Mapping[str, object], deadline_s: float) -> Ended:
        """Have who is ready write the kernel's solution, and do what else it is for."""
        in_one = one.spec.partition(":")[0] == "tritonbench"
        order = {"kernel": source.text, "folder": str(self._folder / SOLUTIONS / (one.name if in_one else ""))}
        child, self._asker = self._asker, None
        assert child is not None
        try:
            return child.order(order | dict(more), min(STOCK_S, deadline_s), self._halt, interrupted_s=0.0)
        finally:
            child.close()


def has_harness(one: Chosen) -> bool:
    """Whether its benchmark has a harness that can be asked."""
    return one.spec.partition(":")[0] in HARNESSES and not Path(one.spec).exists()


def _answer(ended: Ended, kernel: str) -> Stock:
    try:
        return replace(stock_of(json.loads(ended.out.strip().splitlines()[-1])), kernel=kernel)
    except (IndexError, ValueError, TypeError, KeyError, AttributeError):
        late = f"its harness took longer than {ended.after_s:.0f} s and was ended"
        why = late if ended.late else f"its harness ended early: {_why(ended.code, ended.err)}"
        return Stock(NONE, why, kernel, seconds=ended.after_s)


def _without_config(extra: Sequence[str]) -> list[str]:
    kept = list(extra)
    if "--config" in kept:
        at = kept.index("--config")
        del kept[at : at + 2]
    return kept


def _told(ended: Ended) -> dict[str, object] | None:
    """The summary that `run --json` prints last; None where it did not come to that."""
    try:
        told = json.loads(ended.out.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def _why(code: int, err: str) -> str:
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
        own_us = _own_us(reader) if judged is not None and any(map(torch_calls, judged.measurements)) else None
    if judged is None or not judged.measurements:
        why = f": the first is {first.evaluation.status} ({first.evaluation.reason})" if first.evaluation else ""
        told = f"no candidate passed{why}; `evo-kernel tree` on its population lists what became of each"
        return replace(row, status="nothing passed", reason=told)
    row = _with_best(row, judged, "confirmed" if champion is not None else "passed")
    return replace(row, own_us=own_us)


def _own_us(reader: PopulationReader) -> float | None:
    """Of the fastest kernel that passed and calls no torch operation."""
    for number in reader.leaders(-1):
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


def best_source(population: Path) -> Source | None:
    """The champion's source, or the best one's, as it was scored; None where nothing passed."""
    from evo_kernel.fitness.knobs import apply_knobs
    from populations.reading import PopulationReader

    if not population.exists():
        return None
    with PopulationReader(population) as reader:
        best = reader.champion() or reader.best()
        return reader.relative(best.candidate).as_scored(apply_knobs).source if best is not None else None


def searched_s(population: Path) -> float:
    """Seconds of search that a population has had, in all sessions."""
    from populations.reading import PopulationReader

    if not population.exists():
        return 0.0
    with PopulationReader(population) as reader:
        return reader.status().wall_s


def kind_of(text: str) -> str:
    """What a first kernel is: kernels, mixed (some operations stay PyTorch's) or torch."""
    if "torch.ops.aten." not in text:
        return "kernels"
    return "mixed" if "@triton.jit" in text else "torch"
