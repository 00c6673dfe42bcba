"""Scripts of an agent, and the parts of an operator around it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from evo_kernel.types import Evaluation, Source
from operators.avo.attempt import AvoSettings
from operators.avo.operator import AvoOperator
from operators.llm.base import Message, ToolCall
from operators.llm.models import Asked, ScriptedModel
from operators.workbench.tool import WorkbenchDeps
from tests.operators.avo.forgetful import Forgetful
from tests.operators.workbench.fakes import PARENT, FakeBench, FakeKnowledge, FakeLineage, FakeNotebook, kernel


def no_probe(source: Source) -> Evaluation:
    raise AssertionError("the engine's probe is not used")


def does(*calls: tuple[str, object], say: str = "") -> Message:
    """An answer that makes these tool calls; arguments as data, or as raw text."""
    made = [
        ToolCall(f"c{n}", name, given if isinstance(given, str) else json.dumps(given))
        for n, (name, given) in enumerate(calls)
    ]
    return Message("assistant", say, tuple(made))


def writes(time_us: float, remark: str = "") -> tuple[str, object]:
    return ("write_file", {"path": "kernel.py", "text": kernel(time_us, remark)})


def submits(strategy: str = "split-k") -> tuple[str, object]:
    return ("submit", {"idea": f"try {strategy}", "strategy": strategy, "family": "tiling"})


def evaluates(idea: str) -> tuple[str, object]:
    return ("evaluate", {"idea": idea})


def script(*answers: Message | str) -> Callable[[Asked], Message | str]:
    """One answer after the other; afterwards it gives up."""
    left: Iterator[Message | str] = iter(answers)
    return lambda asked: next(left, does(("give_up", {"reason": "the script is over"})))


class Turns(Forgetful):
    """A store that keeps everything in memory, and can be cut off after any turn."""

    keeps_calls = True

    def __init__(self, most: int = 1000) -> None:
        super().__init__(most)
        self.kept: dict[int, list[tuple[str, str]]] = {}
        self.calls: dict[int, list] = {}
        self.charged: dict[str, int] = {}

    def append(self, attempt, kind, data, calls=(), charged=None, gpu_s=0.0) -> None:
        self.kept.setdefault(attempt, []).append((kind, json.dumps(data)))
        self.calls.setdefault(attempt, []).extend(calls)
        for purpose, count in (charged or {}).items():
            self.charged[purpose] = self.charged.get(purpose, 0) + count

    def turns(self, attempt):
        for kind, data in list(self.kept.get(attempt, ())):
            yield kind, json.loads(data)


def rooms(bench: FakeBench | None = None) -> WorkbenchDeps:
    return WorkbenchDeps(
        bench or FakeBench(), FakeLineage(PARENT, Source(kernel(90.0))), FakeKnowledge(), FakeNotebook()
    )


def operator(
    folder: Path,
    answers: Sequence[Message | str] | Callable[[Asked], Message | str] | ScriptedModel,
    store: Forgetful | None = None,
    settings: AvoSettings | None = None,
    given: WorkbenchDeps | None = None,
    **rest,
) -> AvoOperator:
    if isinstance(answers, ScriptedModel):
        model = answers
    else:
        model = ScriptedModel(answers if callable(answers) else script(*answers))
    rest.setdefault("clock", time.time)
    return AvoOperator(model, given or rooms(), store or Turns(), folder, settings, **rest)
