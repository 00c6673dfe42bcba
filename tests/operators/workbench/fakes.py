"""A bench, a lineage, notes and knowledge in memory, over real types: what a workbench is tested with."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from evo_kernel.errors import InfraError, PopulationError, UserError
from evo_kernel.types import Brief, Evaluation, Gain, Knobs, Purpose, ScoredCandidate, Source, Status, Strategy
from evo_kernel.types.notes import Evidence, Note, Version
from evo_kernel.types.promotion import GateVerdict
from operators.knowledge.passages import Passage
from operators.workbench.tool import CompiledText
from tests.support.scripted import CARD, ENVIRONMENT, TASK, scored

KERNEL = "def run(x):\n    return x\n\ntime_us = {}\n"
PARENT = Source(KERNEL.format("100.0"))


def kernel(time_us: float, remark: str = "") -> str:
    return KERNEL.format(time_us) + remark


def time_of(source: Source) -> float:
    return float(source.text.split("time_us =")[1].split()[0])


def verdict_of(source: Source, purpose: Purpose) -> Evaluation:
    """Passed as fast as its last line says; a text with `wrong`, `crash` or `broken` in it fails so."""
    for word, status in (("wrong", Status.WRONG), ("crash", Status.RUNTIME_ERROR), ("broken", Status.BUILD_ERROR)):
        if word in source.text:
            reason = f"scripted: {word}"
            return Evaluation(
                source.sha256, TASK, purpose, ENVIRONMENT, status, reason, charged={purpose: 1}, gpu_s=0.5
            )
    found = scored(Source(f"time_us = {time_of(source)}"), purpose, gpu_s=0.5)
    plan = f"plan-{time_of(source)}"
    measured = tuple(replace(one, plan=plan, n=45) for one in found.measurements)
    return replace(found, source=source.sha256, measurements=measured, plans=(("large", (), plan),))


@dataclass
class FakeBench:
    """`best_us`: the time to beat."""

    best_us: float = 100.0
    down: bool = False
    asked: list[tuple[str, str]] = field(default_factory=list)
    profiled: list[tuple[str | None, Knobs]] = field(default_factory=list)
    knobs: Knobs = ()  # that the tuner sets
    busy: threading.Event = field(default_factory=threading.Event)  # an evaluation is under way
    free: threading.Event | None = None  # evaluations wait for it

    def evaluate(self, source: Source) -> Evaluation:
        return self._judged(source, Purpose.SCORE)

    def probe(self, source: Source) -> Evaluation:
        return self._judged(source, Purpose.PROBE)

    def profile(self, source: Source, case: str | None, knobs: Knobs = ()) -> str:
        if "broken" in source.text:
            raise UserError("build_error on large: scripted")
        self.profiled.append((case, knobs))
        return f"k  {time_of(source):.2f} µs, bound by memory"

    def compiled(self, source: Source, case: str | None, knobs: Knobs = ()) -> CompiledText:
        if "broken" in source.text:
            raise UserError("build_error: scripted")
        return CompiledText(f"k  40 registers, case {case}, {dict(knobs)}", "MOV R1, R2", "mov.u32 %r1, %r2;")

    def against_best(self, source: Source, evaluation: Evaluation) -> GateVerdict:
        gain = self.best_us / time_of(source)
        return GateVerdict(gain > 1.0, f"gain {gain:.3f}", Gain(gain, gain, gain))

    def gate(self, source: Source, evaluation: Evaluation) -> GateVerdict:
        self.asked.append(("gate", source.text))
        return replace(self.against_best(source, evaluation), charged={"score": 1, "confirm": 2}, gpu_s=1.5)

    def _judged(self, source: Source, purpose: Purpose) -> Evaluation:
        if self.down:
            raise InfraError("the runner is gone")
        self.asked.append((str(purpose), source.text))
        self.busy.set()
        if self.free is not None:
            assert self.free.wait(20)
        return replace(verdict_of(source, purpose), knobs=self.knobs)


class FakeLineage:
    def __init__(self, *sources: Source) -> None:
        self._all = {n: relative(n, source) for n, source in enumerate(sources, start=1)}

    def versions(self, limit: int, order: str = "newest", of: int | None = None) -> Sequence[Version]:
        if of is not None:
            self.version(of)
        found = [
            Version(n, n - 1 or None, "seed", "", "passed", one.evaluation.score, None) for n, one in self._all.items()
        ]
        return found[:limit]

    def version(self, number: int) -> ScoredCandidate:
        if number not in self._all:
            raise PopulationError(f"there is no candidate {number}: they are numbered 1 to {len(self._all)}.")
        return self._all[number]

    def best(self) -> ScoredCandidate | None:
        return self._all[1]


class FakeNotebook:
    def __init__(self) -> None:
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self.all: dict[int, Note] = {}

    def add(
        self, text: str, author: str, attempt: int | None, evidence: Sequence[Evidence], refutes: int | None = None
    ) -> int:
        with self._lock:
            number = next(self._numbers)
            if refutes is None:
                self.all[number] = Note(number, text, author, attempt, tuple(evidence))
            else:
                self.all[refutes] = replace(self.all[refutes], refuted=text)
            return number

    def notes(self, limit: int, query: str = "") -> Sequence[Note]:
        found = [one for one in self.all.values() if query in one.text]
        return found[::-1][:limit]

    def note(self, number: int) -> Note | None:
        return self.all.get(number)


class FakeKnowledge:
    def search(self, query: str, k: int = 4, budget_tokens: int = 2000) -> Sequence[Passage]:
        if "wgmma" not in query:
            return ()
        return (Passage("evo-kernel/wgmma.md#shapes", "wgmma › shapes", "M is 64."),)


def relative(number: int, source: Source) -> ScoredCandidate:
    return ScoredCandidate(number, source, 0, 0, verdict_of(source, Purpose.SCORE), (Strategy("split-k", "tiling"),))


def brief(attempt: int = 7, parent: Source = PARENT) -> Brief:
    return Brief(attempt, CARD, relative(1, parent), (), (), 0, (1, attempt, 1), ENVIRONMENT)
