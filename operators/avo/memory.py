"""Memory of what earlier attempts of a run tried, and the supervisor, which reviews it when they get nowhere.

The memory is bounded, shared by all attempts, and survives a restart. The review is asked of the model; where it
fails, it is made by rule.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from evo_kernel.types import Brief, Call
from evo_kernel.types.protocols import TurnStore
from operators.llm.base import Message, Model, ModelFailed
from operators.macro.catalogue import CATALOGUE, FAMILIES
from operators.prompts.evidence import version_line
from operators.workbench.tool import WorkbenchLineage

ATTEMPTS = 200  # that are remembered in full
TRIED = 24  # evaluations of an attempt that its record holds, the latest
SHOWN_BYTES = 9000
_WORDS = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True)
class AgentEvaluation:
    idea: str
    status: str
    fault: str = ""
    plan: str = ""
    score: float | None = None
    refused: str = ""  # why the gate turned it down
    gain: float | None = None  # over the version to beat

    @property
    def failed(self) -> bool:
        return self.status != "passed" or bool(self.refused) or (self.gain is not None and self.gain <= 1.0)


@dataclass(frozen=True)
class Record:
    attempt: int
    parent: int
    ended: str  # a sentence
    committed: bool
    strategy: str = ""
    gain: float | None = None  # over the version to beat, as the gate found it
    tried: tuple[AgentEvaluation, ...] = ()
    at: float = 0.0  # Unix time

    def as_data(self) -> dict[str, Any]:
        tried = [
            [one.idea[:120], one.status, one.fault, one.plan, one.score, one.refused[:160], one.gain]
            for one in self.tried[-TRIED:]
        ]
        return {
            "parent": self.parent, "ended": self.ended[:300], "committed": self.committed, "strategy": self.strategy,
            "gain": self.gain, "tried": tried,
        }  # fmt: skip

    @staticmethod
    def from_data(attempt: int, data: Mapping[str, Any], at: float) -> Record:
        tried = tuple(AgentEvaluation(*one) for one in data["tried"])
        return Record(
            attempt, data["parent"], data["ended"], data["committed"], data["strategy"], data["gain"], tried, at
        )


@dataclass(frozen=True)
class Review:
    """What the supervisor said after an attempt, and which directions it gave."""

    attempt: int  # the attempt that was about to begin
    why: str
    directions: tuple[str, ...]
    repeated: tuple[str, ...] = ()  # ideas and plans whose repetition it was about
    at: float = 0.0

    def as_data(self) -> dict[str, Any]:
        return {"why": self.why, "directions": list(self.directions), "repeated": list(self.repeated)}


ATTEMPT, REVIEW = "attempt", "review"


class AgentMemory:
    """Thread-safe. `store` keeps it; what it held is read at once."""

    def __init__(self, store: TurnStore) -> None:
        self._store, self._lock = store, threading.Lock()
        self._records: deque[Record] = deque(maxlen=ATTEMPTS)
        self._review: Review | None = None
        self._failed = Counter[str]()  # since the last commit or review
        self._since_commit = self._since_review = 0
        self._last_commit: float | None = None
        self._first: float | None = None
        for attempt, kind, data, at in store.memories(ATTEMPTS * 4):
            if kind == ATTEMPT:
                self._take(Record.from_data(attempt, data, at))
            elif kind == REVIEW:
                said = Review(attempt, data["why"], tuple(data["directions"]), tuple(data["repeated"]), at)
                self._take_review(said)

    def begin(self, now: float) -> None:
        """An attempt starts at this Unix time: the first one starts the clock of the supervisor."""
        with self._lock:
            self._first = now if self._first is None else self._first

    def end(self, record: Record) -> None:
        """Keep what came of an attempt: in the file first."""
        self._store.remember(record.attempt, ATTEMPT, record.as_data())
        with self._lock:
            if all(one.attempt != record.attempt for one in self._records):
                self._take(record)

    def reviewed(self, review: Review) -> None:
        self._store.remember(review.attempt, REVIEW, review.as_data())
        with self._lock:
            self._take_review(review)

    # ---- what is known --------------------------------------------------------------------------------------------

    def records(self) -> Sequence[Record]:
        """The latest, oldest first."""
        with self._lock:
            return tuple(self._records)

    def review(self) -> Review | None:
        """The directions that hold: none once something was committed since."""
        with self._lock:
            return self._review

    def barren(self) -> tuple[int, float | None]:
        """(attempts without a commit, Unix time from which the hours count) since the last commit or review."""
        with self._lock:
            known = [self._first, self._last_commit, self._review.at if self._review else None]
            since = max((at for at in known if at is not None), default=None)
            return min(self._since_commit, self._since_review), since

    def repeated(self, times: int) -> list[str]:
        """Ideas and plans that failed so often since the last review, most often first."""
        with self._lock:
            return [key for key, count in self._failed.most_common(8) if count >= times]

    def warning(self, idea: str, plan: str) -> str:
        """A sentence where this has failed before in other attempts; empty where it has not."""
        with self._lock:
            failed = [(record.attempt, one) for record in self._records for one in record.tried if one.failed]
        for attempt, one in reversed(failed):
            same_kernel = bool(plan) and one.plan == plan
            if same_kernel or same_idea(one.idea) == same_idea(idea):
                what = "The same kernel" if same_kernel else "The same idea"
                said = one.refused or ("no gain" if one.status == "passed" else f"{one.status} {one.fault}".strip())
                return f"{what} failed in attempt {attempt} already ({one.idea}): {said}"
        return ""

    def text(self) -> str:
        """For a prompt: the latest attempts, newest last, within bounds."""
        blocks = [_told(record) for record in reversed(self.records())]
        ends = accumulate(len(block.encode()) + 1 for block in blocks)
        return "\n".join(reversed([block for block, end in zip(blocks, ends, strict=True) if end <= SHOWN_BYTES]))

    # ---- within ---------------------------------------------------------------------------------------------------

    def _take(self, record: Record) -> None:
        self._records.append(record)
        self._first = record.at if self._first is None else self._first
        if record.committed:
            self._since_commit = self._since_review = 0
            self._last_commit, self._review = record.at, None
            self._failed.clear()
            return
        self._since_commit += 1
        self._since_review += 1
        failed = [one for one in record.tried if one.failed]
        self._failed.update({f"idea {same_idea(one.idea)}" for one in failed})
        self._failed.update({f"plan {one.plan}" for one in failed if one.plan})

    def _take_review(self, review: Review) -> None:
        self._review, self._since_review = review, 0
        self._failed.clear()


def same_idea(text: str) -> str:
    """Words in any order, numbers left out: "Split K by 8" and "split-k by 4" are one."""
    return " ".join(sorted({word for word in _WORDS.findall(text.lower()) if not word.isdigit()}))[:120]


def _told(record: Record) -> str:
    fate = f"committed {record.strategy}" + (f", gain {record.gain:.3f}x" if record.gain else "")
    head = f"- attempt {record.attempt} from C{record.parent}: {fate if record.committed else record.ended}"
    tried = []
    for one in record.tried[-6:]:
        score = f" {one.score:.3f}" if one.score is not None else f" {one.fault}"
        why = f" ({one.refused[:80]})" if one.refused else ""
        tried.append(f"{one.idea[:80]} [{one.status}{score}{why}]")
    return head + (f"\n  tried: {'; '.join(tried)}" if tried else "")


MAX_TOKENS = 2048
DIRECTION = 600  # characters
SYSTEM = (
    "You supervise a coding agent that makes GPU kernels faster. It has got stuck. Read what it tried and what came of "
    "it, say in a sentence why it is stuck, and give it new directions: each a different idea that it has not tried, "
    "concrete enough to begin with (what to change, where, which sign shows that it works, what to give up early). "
    "Do not repeat what failed. An earlier version may be a better start than the latest."
)


@dataclass(frozen=True)
class SupervisorLimits:
    """When the trajectory is reviewed. A review starts both counts anew, and so does a commit."""

    attempts: int = 6  # in a row without a commit
    hours: float = 3.0  # without a commit
    repeats: int = 3  # times that the same idea or the same kernel has failed
    directions: int = 4  # asked for


class Supervisor:
    """Thread-safe: of attempts that begin together one is held up by a review, the others go on."""

    def __init__(self, limits: SupervisorLimits, model: Model, lineage: WorkbenchLineage) -> None:
        self._limits, self._model, self._lineage = limits, model, lineage
        self._busy = threading.Lock()

    def look(self, memory: AgentMemory, brief: Brief, now: float) -> tuple[Call, ...]:
        """Review the trajectory where that is due before this attempt begins: what it cost. `now`: Unix time."""
        if not self._busy.acquire(blocking=False):
            return ()
        try:
            why, repeated = self.stuck(memory, now)
            return self._review(memory, brief, now, why, repeated) if why else ()
        finally:
            self._busy.release()

    def stuck(self, memory: AgentMemory, now: float) -> tuple[str, list[str]]:
        """(the sign in a sentence, "" where there is none; the ideas and plans that were repeated)."""
        repeated = memory.repeated(self._limits.repeats)
        if repeated:
            named = ", ".join(repeated[:3])
            return f"the same thing failed {self._limits.repeats} times or more: {named}", repeated
        attempts, since = memory.barren()
        if attempts >= self._limits.attempts:
            return f"no commit in {attempts} attempts", []
        hours = (now - since) / 3600 if since is not None else 0.0
        if attempts and hours >= self._limits.hours:
            return f"no commit in {hours:.1f} hours", []
        return "", []

    def _review(
        self, memory: AgentMemory, brief: Brief, now: float, why: str, repeated: Sequence[str]
    ) -> tuple[Call, ...]:
        directions, calls = self._asked(memory, brief, why)
        if not directions:
            directions = by_rule(memory.records(), brief, self._limits.directions)
        review = Review(brief.attempt, why, tuple(one[:DIRECTION] for one in directions), tuple(repeated), now)
        memory.reviewed(review)
        return calls

    def _asked(self, memory: AgentMemory, brief: Brief, why: str) -> tuple[list[str], tuple[Call, ...]]:
        """The model's directions; none where there is no answer that can be used."""
        wanted = self._limits.directions
        schema = {
            "type": "object",
            "properties": {
                "diagnosis": {"type": "string", "maxLength": 600},
                "directions": {
                    "type": "array", "minItems": min(2, wanted), "maxItems": wanted,
                    "items": {"type": "string", "minLength": 10, "maxLength": DIRECTION},
                },
            },
            "required": ["diagnosis", "directions"],
            "additionalProperties": False,
        }  # fmt: skip
        task = brief.task
        lineage = "\n\n## Best versions\n" + "\n".join(map(version_line, self._lineage.versions(12, "best")))
        text = (
            f"## Task {task.name}\n{task.description}\n\n## Why you are asked\n{why}{lineage}\n\n## Attempts\n"
            f"{memory.text()}\n\nGive {wanted} directions."
        )
        question = (Message("system", SYSTEM, stable=True), Message("user", text))
        try:
            reply = self._model.complete(question, schema=schema, max_tokens=MAX_TOKENS)
        except ModelFailed as failure:
            return [], failure.calls
        try:
            data = json.loads(reply.message.content)
            found = [one for one in data["directions"] if same_idea(one)]
            return found[:wanted], reply.calls
        except (ValueError, KeyError, TypeError):  # a model that is not held to schemas: the rule does it
            return [], reply.calls


def by_rule(records: Sequence[Record], brief: Brief, count: int) -> list[str]:
    """Directions that need no model: different from each other, and from what was tried most."""
    words = [same_idea(one.idea) for record in records for one in record.tried]
    words += [same_idea(record.strategy) for record in records if record.strategy]
    words += [same_idea(one.name) for one in brief.parent.strategies]
    said = [set(one.split()) for one in words]
    families = {family: [name for name, spec in CATALOGUE.items() if spec.family == family] for family in FAMILIES}
    keys = {family: [set(same_idea(name).split()) for name in names] for family, names in families.items()}
    used = {family: sum(any(key <= one for key in found) for one in said) for family, found in keys.items()}
    least = sorted(FAMILIES, key=lambda family: used[family])
    found = [
        "Profile the best version on its slowest case first, name the one limit that the table shows, and change only "
        "what moves that limit.",
        "Start from an earlier version of a different structure (lineage, show_version with save_to), bring what was "
        "learnt since to it, and compare the two.",
    ]
    for family in least:
        names = ", ".join(families[family][:4])
        if names and family != "repair":
            found.append(f"Leave what was tried; work on {family} (for instance {names}), which was tried least.")
    start = len(records) % max(len(found), 1)
    return [*found[start:], *found[:start]][:count]
