"""What strategies have earned: in this population, and as lessons of others.

A lesson of others goes as soon as this population has tried the strategy `ENOUGH` times itself.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from evo_kernel.errors import UserError
from evo_kernel.types import Credit, Strategy, TaskCard
from operators.macro.catalogue import CATALOGUE, UNGUIDED

ENOUGH = 3  # attempts of our own that outweigh what others say of a strategy
LARGEST = 50.0  # log gain of one attempt: no kernel is made e^50 times as fast
ALIKE = 0.5  # least share of common traits of a task whose lessons are shown

_WORDS = {  # trait -> what a reference that has it calls or writes
    "contraction": r"@|\b(?:matmul|mm|bmm|addmm|linear|einsum|scaled_dot_product_attention|conv\w*|Linear|Conv\w*)\b",
    "convolution": r"\b[cC]onv(?:_transpose)?[123]d\b",
    "softmax": r"\b(?:log_)?softmax\b|\bcross_entropy\b|\blogsumexp\b|scaled_dot_product_attention",
    "attention": r"scaled_dot_product_attention|\battention\b",
    "normalisation": r"\w*norm\b|\brsqrt\b|\bvar\b|\bstd\b",
    "reduction": r"\b(?:sum|mean|amax|amin|max|min|prod|var|std|norm|softmax|logsumexp|cross_entropy)\b",
    "scan": r"\bcum(?:sum|prod|max|min)\b",
    "gather": r"\b(?:gather|embedding|index_select|take_along_dim|scatter\w*)\b",
    "activation": r"\b(?:gelu|relu|silu|sigmoid|tanh|swiglu|softplus|mish)\b",
    "exponential": r"\b(?:exp|exp2|expm1|softmax|sigmoid|logsumexp|gelu|silu|tanh)\b",
}


@dataclass(frozen=True)
class Lesson:
    """What came of a strategy on a task. `log_gain`: sum over attempts, natural logarithm; 0 for one that failed."""

    task: str
    traits: tuple[str, ...]
    strategy: str
    times: int
    witnessed: int
    log_gain: float

    @property
    def mean(self) -> float:
        return self.log_gain / self.times

    def __post_init__(self) -> None:
        if self.times < 1 or not 0 <= self.witnessed <= self.times or not abs(self.log_gain) <= LARGEST * self.times:
            raise ValueError(f"a lesson rests on at least one attempt, and witnesses are among them: {self}")


_LESSON = TypeAdapter(Lesson)


@dataclass
class _Earned:
    strategy: Strategy
    times: int = 0
    witnessed: int = 0
    log_gain: float = 0.0


class StrategyMemory:
    """Thread-safe. Several policies may share one: a candidate counts once."""

    def __init__(self, lessons: Iterable[Lesson] = ()) -> None:
        self._foreign = tuple(lessons)
        self._lock = threading.Lock()
        self._earned: dict[str, _Earned] = {}
        self._counted: set[int] = set()

    def learn(self, credit: Credit) -> None:
        if credit.decision is None or credit.depth != 0 or not math.isfinite(credit.log_gain):
            return
        strategy = credit.decision.offered[credit.decision.chosen]
        with self._lock:
            if credit.candidate in self._counted:
                return
            self._counted.add(credit.candidate)
            earned = self._earned.setdefault(strategy.name, _Earned(strategy))
            earned.times += 1
            earned.witnessed += credit.witnessed
            earned.log_gain += credit.log_gain

    def own(self, most: int) -> list[Strategy]:
        """Strategies that policies of this population made up, those that earned most first."""
        with self._lock:
            made_up = [e for name, e in self._earned.items() if name not in CATALOGUE and name != UNGUIDED.name]
        best = sorted(made_up, key=lambda earned: -earned.log_gain / earned.times)
        return [earned.strategy for earned in best[:most]]

    def lessons(self, task: TaskCard) -> tuple[Lesson, ...]:
        """What was learnt in this population, those that moved most first; strategies that were made up left out."""
        seen = traits(task)
        with self._lock:
            found = [
                Lesson(task.name, seen, name, e.times, e.witnessed, e.log_gain)
                for name, e in self._earned.items()
                if name in CATALOGUE
            ]
        return tuple(sorted(found, key=lambda lesson: -abs(lesson.mean)))

    def paid(self) -> list[str]:
        """A line a strategy of this population, those that moved most first."""
        with self._lock:
            earned = [
                Lesson("", (), name, e.times, e.witnessed, e.log_gain)
                for name, e in self._earned.items()
                if name != UNGUIDED.name
            ]
        return [_line(lesson) for lesson in sorted(earned, key=lambda lesson: -abs(lesson.mean))]

    def told(self, task: TaskCard) -> list[str]:
        """A line a lesson of others on tasks like this one, the most similar task first, then what moved most."""
        here = traits(task)
        with self._lock:
            settled = {name for name, earned in self._earned.items() if earned.times >= ENOUGH}
        ranked = [(alike(here, lesson.traits), lesson) for lesson in self._foreign if lesson.strategy not in settled]
        ranked = [(share, lesson) for share, lesson in ranked if share >= ALIKE]
        ranked.sort(key=lambda pair: (-pair[0], -abs(pair[1].mean), pair[1].strategy))
        return [f"{_line(lesson)}, on {lesson.task} ({share:.0%} alike)" for share, lesson in ranked]


def traits(task: TaskCard) -> tuple[str, ...]:
    """What kind of task it is: words of its reference, dtypes and ranks of its inputs, its contract. Sorted."""
    code = re.sub(
        r"#.*|\"\"\".*?\"\"\"|'''.*?'''", "", task.reference, flags=re.DOTALL if '"""' in task.reference else 0
    )
    found = {trait for trait, words in _WORDS.items() if re.search(words, code)}
    if not found & {"contraction", "reduction", "scan", "gather"}:
        found.add("elementwise")
    for case in task.cases:
        found |= {f"dtype {dtype}" for dtype, _shape, _strides in case.inputs}
        found |= {f"rank {len(shape)}" for _dtype, shape, _strides in case.inputs[:1]}
    return tuple(sorted(found))


def alike(ours: Sequence[str], theirs: Sequence[str]) -> float:
    """Share of common traits (Jaccard), in [0, 1]."""
    both = set(ours) | set(theirs)
    return len(set(ours) & set(theirs)) / len(both) if both else 0.0


def write_lessons(path: Path, lessons: Iterable[Lesson]) -> None:
    """One JSON object a line."""
    lines = [json.dumps(dataclasses.asdict(lesson)) for lesson in lessons]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_lessons(path: Path) -> tuple[Lesson, ...]:
    """What `write_lessons` wrote. Raises UserError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return tuple(_lesson(line) for line in lines if line.strip())
    except OSError as error:
        raise UserError(f"{path}: the lessons cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{path}: this is no file of lessons ({error}). Write one anew from its population.") from None


def _lesson(line: str) -> Lesson:
    """Raises ValueError."""
    found = _LESSON.validate_json(line, strict=True)
    if found.strategy not in CATALOGUE:
        raise ValueError(f"{found.strategy!r} is no strategy of the catalogue")
    return dataclasses.replace(found, task=" ".join(found.task.split())[:60])  # it is shown in prompts


def _line(lesson: Lesson) -> str:
    gain = (math.exp(lesson.mean) - 1) * 100
    # A strategy that was made up has no sign: "seen 0 times" would speak against it.
    seen = f", seen in the plan {_times(lesson.witnessed)}" if lesson.strategy in CATALOGUE else ""
    return f"- {lesson.strategy}: {_times(lesson.times)}{seen}, {gain:+.1f} % speed on average"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
