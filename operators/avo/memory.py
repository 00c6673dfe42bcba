"""What earlier attempts of a run tried and what came of it: bounded, shared by all attempts, survives a restart."""

from __future__ import annotations

import re
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from evo_kernel.types.protocols import TurnStore

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
