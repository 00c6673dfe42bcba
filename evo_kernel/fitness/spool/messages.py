"""What lies in a spool, as data: requests, answers, announcements. Anybody may have written what is read here."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from evo_kernel.deadline import LONGEST_S
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.profiling.profiler import CaseProfile
from evo_kernel.types import CaseKind, Environment, Evaluation, Knobs, Source, content_hash, escaped
from evo_kernel.types.comparisons import geometric_mean
from evo_kernel.types.limits import MOST_AMOUNT, MOST_NUMBER, beyond

FORMAT = 1
"""Raised when what is written can no longer be read by an earlier version."""
MOST_BYTES = 16 * 2**20
"""Of one file."""
MOST_FILES, MOST_PLANS = 64, 64
PROFILE = "profile"
What = Literal["probe", "score", "confirm", "profile"]
MOST_INTEGER = 2**63 - 1
MAY_BE_INFINITE = ("error",)
"""Fields whose numbers need not be finite: the error of an output that is not."""

_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Environment = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]
_Name = Annotated[str, Field(pattern=r"^[^./\\\x00-\x1f][^/\\\x00-\x1f]{0,99}$")]
_Path = Annotated[str, Field(pattern=r"^[^./\\\x00-\x1f][^/\\\x00-\x1f]*(/[^./\\\x00-\x1f][^/\\\x00-\x1f]*)*$")]
_Time = Annotated[float, Field(ge=1 / MOST_AMOUNT, le=MOST_AMOUNT)]
_Text = Annotated[str, AfterValidator(escaped)]


class Malformed(ValueError):
    """A file of the spool that is torn, or is not what its name says. The reason may be printed."""

    def __init__(self, reason: str) -> None:
        super().__init__(escaped(reason))


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Message(_Part):
    format: Literal[1] = FORMAT

    def as_bytes(self) -> bytes:
        return json.dumps(self.model_dump(mode="json"), separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Raises Malformed."""
        try:
            _refuse_numbers(json.loads(data))
            return cls.model_validate_json(data, strict=True)
        except (ValueError, SyntaxError, RecursionError) as error:  # SyntaxError: of a `Source` that is no text
            raise Malformed(" ".join(str(error).split())[:500]) from error


def _refuse_numbers(value: Any, name: str = "") -> None:
    match value:
        case dict():
            for key, one in value.items():
                _refuse_numbers(one, key)
        case list():
            for one in value:
                _refuse_numbers(one, name)
        case float() if not math.isfinite(value) and name not in MAY_BE_INFINITE:
            raise ValueError(f"{name} is {value}, which is no finite number")
        case float() if abs(value) > MOST_NUMBER and name not in MAY_BE_INFINITE:
            raise ValueError(f"{name} is {value}, which is beyond {MOST_NUMBER:g}")
        case int() if abs(value) > MOST_INTEGER:
            raise ValueError(f"{name} is an integer of more than 64 bits")


def _unprintable(value: Any) -> str | None:
    """The first text anywhere in it that is not printed as it is."""
    if isinstance(value, str):
        return None if escaped(value) == value and "\n" not in value else value
    parts = list[Any]()
    match value:
        case Mapping():
            parts = [*value, *value.values()]
        case tuple() | list():
            parts = list(value)
        case _ if is_dataclass(value):
            parts = [getattr(value, one.name) for one in fields(value) if one.name != "reason"]
    return next((found for found in map(_unprintable, parts) if found is not None), None)


class TaskText(_Part):
    """A task on its way. `files`: texts beside the task file that it needs, by path; of a built-in task only the
    name and the identity travel. `case`: the only search case of a task that was narrowed to it."""

    name: _Name
    identity: _Hex
    builtin: bool = False
    text: str = ""
    files: Annotated[Mapping[_Path, str], Field(max_length=MOST_FILES)] = {}
    case: str = ""

    @property
    def key(self) -> str:
        return content_hash(self.model_dump(mode="json"))[:32]


class ProfileWanted(_Part):
    """What `PlanJudge.profile` takes besides the source."""

    knobs: Knobs = ()
    kinds: tuple[CaseKind, ...]
    counters: bool | None = None
    case: str | None = None


class SpoolRequest(_Message):
    """All that a verdict depends on. `turn`: how often the same was asked and answered before, of what is to be
    measured anew each time."""

    environment: _Environment
    task: TaskText
    what: What
    source: Source
    settings: JudgeSettings
    remeasure: bool = False
    against: Source | None = None
    effort: Annotated[int, Field(ge=1, le=MOST_PLANS)] = 1
    profile: ProfileWanted | None = None
    turn: Annotated[int, Field(ge=0, lt=10**6)] = 0

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        settings = self.settings
        if not 0 < settings.deadline_s <= LONGEST_S or not 0 <= settings.tune_plans <= MOST_PLANS:
            raise ValueError(f"deadline_s is at most {LONGEST_S:g}, tune_plans at most {MOST_PLANS}")
        if settings.unconfined or settings.assembler != JudgeSettings().assembler:
            raise ValueError("confinement and the assembler are for the server to say")
        if (self.what == PROFILE) != (self.profile is not None):
            raise ValueError("`profile` belongs to what is profiled")
        return self

    @property
    def stem(self) -> str:
        """Its name in the spool. Takes a fraction of a millisecond."""
        told = content_hash(self.model_dump(mode="json", exclude={"turn"}))[:32]
        return f"{self.environment}-{self.task.identity[:12]}-{self.what}-{told}-{self.turn}"


STEM = r"[0-9a-f]{16}-[0-9a-f]{12}-(?:probe|score|confirm|profile)-[0-9a-f]{32}-[0-9]{1,6}"
SERVER = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


def told_by(stem: str) -> tuple[str, str, str]:
    """Environment, task and purpose that a request's name begins with."""
    environment, task, what, *_ = stem.split("-")
    return environment, task, what


class SpoolAnswer(_Message):
    """A verdict, or a profile, or why there is no profile. `baselines`: what the judge holds the task's cases against,
    as far as it knows by now; `faults`: why others could not be timed, both by case and name."""

    request: str
    server: str
    evaluation: Evaluation | None = None
    profiles: Mapping[str, CaseProfile] | None = None
    fault: _Text = ""
    baselines: Mapping[str, Mapping[str, _Time]] = {}
    faults: Mapping[str, Mapping[str, _Text]] = {}

    def refuse_for(self, request: SpoolRequest) -> None:
        """Raises Malformed where it is no answer to the request."""
        if self.request != request.stem:
            raise Malformed(f"it answers {self.request}")
        profiled = list(self.profiles or ())
        names = [self.evaluation, profiled, self.baselines, *self.faults, *map(list, self.faults.values())]
        if (name := _unprintable(names)) is not None:
            raise Malformed(f"it holds the name {name[:100]!r}, which may not be printed")
        if (wanted := request.profile) is not None:
            if not profiled and not self.fault:
                raise Malformed("it holds no profile")
            if profiled and wanted.case not in (None, *profiled):
                raise Malformed(f"it holds no profile of {wanted.case}")
            return
        found = self.evaluation
        if found is None:
            raise Malformed("it holds no verdict")
        told = {"source": found.source, "task": found.task, "purpose": str(found.purpose)}
        wanted = {"source": request.source.sha256, "task": request.task.identity, "purpose": request.what}
        told["environment"], wanted["environment"] = found.environment.key, request.environment
        if wrong := [name for name in told if told[name] != wanted[name]]:
            raise Malformed(f"its verdict is on another {' and '.join(wrong)} than was asked for")
        if found.passed and not all(check.passed for check in found.checks):
            raise Malformed("it passed, and a check of it did not")
        if any(one.low_us > one.high_us for one in found.measurements):
            raise Malformed("it holds intervals that end before they begin")
        if fault := beyond(found):
            raise Malformed(fault)
        cases, speedups = [one.case for one in found.measurements], [one.speedup for one in found.measurements]
        if len(set(cases)) < len(cases):
            raise Malformed("it times a case twice")
        follows = geometric_mean(speedups) if speedups and min(speedups) > 0 else math.nan
        if found.score is not None and not math.isclose(found.score, follows, rel_tol=1e-6):
            raise Malformed(f"its score of {found.score:g} does not follow from its times")


class Announcement(_Message):
    """A server, as others see it. `beat` counts up while it lives. `refuses`: requests that it gave back for good, and
    why."""

    server: Annotated[str, Field(pattern=f"^{SERVER}$")]
    beat: Annotated[int, Field(ge=0)]
    ended: bool = False
    environment: Environment
    ceilings: Mapping[str, float] = {}
    cards: int = 0  # GPUs; 0 where times are modeled
    slots: int = 1  # requests side by side
    refuses: Mapping[str, _Text] = {}
