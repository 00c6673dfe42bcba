"""The search state: all that `ask` and `tell` decide on, in memory. Resume is replay of the file, in the order of ids.

Texts and evaluations stay in the file. The live process and replay call the same two methods, `add` of the lineage and
`tell`, so that one equals the other. Not thread-safe: the population's lock guards it.

Slim columns indexed by candidate (ids start at 1, index 0 is nobody): about 60 bytes a candidate.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
from array import array
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from evo_kernel.types import Purpose, Status
from populations.archive import Contender, Islands, Placement, PopulationSettings
from populations.credit import CreditLedger, Earned, light_bucket
from populations.rows import loads

NAN = math.nan
STATUS_CODE = {status: code for code, status in enumerate(Status, start=1)}
STATUS_OF_CODE: dict[int, Status] = {code: status for status, code in STATUS_CODE.items()}
PASSED_CODE = STATUS_CODE[Status.PASSED]
RECENT_FAILURES = 16


class TakenVerdict(NamedTuple):
    """What the search state takes in of one evaluation; times as natural logarithms of µs."""

    candidate: int
    purpose: str
    status: str
    score: float | None
    log_us: float | None  # mean over search cases
    log_variance: float  # of log_us, by measurement noise; 0 when modeled
    light_share: float | None
    cell: str
    plan_key: str
    cost: float  # evaluations that it took, probes included
    fresh: int  # 0: every number was reused
    witnessed: int


class Lineage:
    """Who descends from whom: the same in every environment."""

    def __init__(self) -> None:
        self._columns = [array("i", [0]) for _ in range(6)]
        # Rows in attempts, sources and strategies (0: none); a root's parent is 0.
        self.attempt, self.source, self.strategy, self.parent, self.island, self.generation = self._columns
        self.youngest = array("i", [0])  # the last child recorded
        self.elder = array("i", [0])  # the sibling recorded before
        self.judged = bytearray(b"\x01")  # by anything but infra_error, in any environment
        self.witnessed = bytearray(b"\x00")
        self.roots: list[int] = []

    def __len__(self) -> int:
        return len(self.parent) - 1

    def add(self, attempt: int, source: int, strategy: int, parent: int, island: int, generation: int) -> int:
        """Take in the next candidate; returns its id."""
        candidate = len(self.parent)
        for column, value in zip(self._columns, (attempt, source, strategy, parent, island, generation), strict=True):
            column.append(value)
        self.youngest.append(0)
        self.judged.append(0)
        self.witnessed.append(0)
        if parent:
            self.elder.append(self.youngest[parent])
            self.youngest[parent] = candidate
        else:
            self.elder.append(0)
            self.roots.append(candidate)
        return candidate

    def children(self, candidate: int) -> Iterator[int]:
        """Youngest first."""
        child = self.youngest[candidate]
        while child:
            yield child
            child = self.elder[child]

    def never_judged(self) -> list[int]:
        found, at = [], self.judged.find(0)
        while at >= 0:
            found.append(at)
            at = self.judged.find(0, at + 1)
        return found

    def state(self) -> tuple[object, ...]:
        return (*(column.tobytes().hex() for column in self._columns), self.judged.hex(), self.witnessed.hex())


class Leaderboard:
    """Standings in one environment."""

    def __init__(self, settings: PopulationSettings) -> None:
        self.islands = Islands(settings)
        self.ledger = CreditLedger()
        self.times = array("d", [NAN])  # mean log µs; NaN: not passed, or not judged here
        self.scores = array("d", [NAN])
        self.status = bytearray(b"\x00")  # STATUS_CODE; 0: not judged here
        self.bucket = bytearray(b"\x00")  # of share of light
        self.cell = array("i", [-1])  # index into cell_names
        self.cell_names: list[str] = []
        self.confirmed: set[int] = set()
        self.refuted: set[int] = set()  # passed, but did not stand the hidden cases
        self.recent_failures: deque[int] = deque(maxlen=RECENT_FAILURES)
        self.passed = 0

    def tell(self, lineage: Lineage, verdict: TakenVerdict) -> tuple[list[Earned], tuple[Placement, ...]]:
        candidate, status = verdict.candidate, verdict.status
        if status == Status.INFRA_ERROR:
            return [], ()
        self.grow(len(lineage.parent))
        if verdict.purpose != Purpose.SCORE:
            if verdict.purpose == Purpose.CONFIRM and status == Status.PASSED:
                self.confirmed.add(candidate)
            elif verdict.purpose == Purpose.CONFIRM:
                self.refuted.add(candidate)
                self.islands.remove(candidate)
            return [], ()
        new = not lineage.judged[candidate]  # credit is paid once, whatever the environment
        first_here = not self.status[candidate]
        passed = status == Status.PASSED
        self.passed += passed - (self.status[candidate] == PASSED_CODE)
        self.status[candidate] = STATUS_CODE[status]  # type: ignore[index]
        lineage.judged[candidate] = 1
        if new:
            lineage.witnessed[candidate] = verdict.witnessed
        self.bucket[candidate] = light_bucket(verdict.light_share)
        timed = passed and verdict.log_us is not None
        self.times[candidate] = verdict.log_us if timed else NAN  # type: ignore[assignment]
        self.scores[candidate] = verdict.score if verdict.score is not None else NAN
        placements = self._place(lineage, verdict) if timed else ()
        if not passed:
            self.recent_failures.append(candidate)
        if not timed and self.cell[candidate] >= 0:  # it had passed before
            self.islands.remove(candidate)
        earned: list[Earned] = []
        parent = lineage.parent[candidate]
        if first_here and parent and (timed or not passed):
            bucket = self.bucket[parent]
            earned = self.ledger.judge(candidate, passed, verdict.cost, lineage.parent, self.times, bucket)
            index, island = self.cell[parent], lineage.island[candidate]
            archive = self.islands.archives[island if island < len(self.islands.archives) else 0]
            cell = archive.cells.get(self.cell_names[index]) if index >= 0 else None
            if earned and cell is not None:  # its parent's cell is told what one more try brought
                cell.tried(max(0.0, earned[0].log_gain))
        if first_here:
            placements += self.islands.tick()
        return (earned if new else []), placements

    def best(self) -> int:
        """The fastest elite, by all its scores together (archive.py); one that was refuted is none. 0 if none."""
        best = self.islands.best()
        return best.candidate if best else 0

    def leader(self) -> int:
        """The champion; the best while nothing is confirmed; 0 if none."""
        return self.champion() or self.best()

    def champion(self) -> int:
        """The fastest confirmed candidate; 0 if none."""
        standing = [(self.times[c], c) for c in self.confirmed - self.refuted if self.times[c] == self.times[c]]
        return min(standing, default=(0.0, 0))[1]

    def leaders(self) -> list[int]:
        """Candidates that passed and were not refuted, the fastest by their latest scores first."""
        timed = ((us, candidate) for candidate, us in enumerate(self.times) if not math.isnan(us))
        return [candidate for _, candidate in sorted(timed) if candidate not in self.refuted]

    def verdicts(self) -> dict[str, int]:
        """Status → how many candidates have it, in alphabetical order."""
        counts = {str(status): self.status.count(code) for code, status in STATUS_OF_CODE.items()}
        return {status: count for status, count in sorted(counts.items()) if count}

    def score(self, candidate: int) -> float | None:
        """Its latest one; None without."""
        score = self.scores[candidate] if candidate < len(self.scores) else NAN
        return None if math.isnan(score) else score

    def digest_state(self, size: int) -> tuple[object, ...]:
        self.grow(size)  # columns grow when something is told: candidates recorded since then are still missing
        columns = (self.times.tobytes().hex(), self.scores.tobytes().hex(), self.status.hex(), self.bucket.hex())
        cells = [self.cell_names[index] if index >= 0 else "" for index in self.cell]
        sets = (sorted(self.confirmed), sorted(self.refuted), list(self.recent_failures), self.passed)
        return (columns, cells, sets, self.islands.state(), self.ledger.state())

    def grow(self, size: int) -> None:
        """Columns for candidates below `size`."""
        missing = size - len(self.times)
        if missing > 0:
            self.times.extend((NAN,) * missing)
            self.scores.extend((NAN,) * missing)
            self.status.extend(bytes(missing))
            self.bucket.extend(bytes(missing))
            self.cell.extend((-1,) * missing)
            self.ledger.grow(size - 1)

    def _place(self, lineage: Lineage, verdict: TakenVerdict) -> tuple[Placement, ...]:
        candidate = verdict.candidate
        if verdict.cell not in self.cell_names:  # at most about forty
            self.cell_names.append(verdict.cell)
        self.cell[candidate] = self.cell_names.index(verdict.cell)
        if candidate in self.refuted:
            return ()
        kernel = (lineage.source[candidate], verdict.plan_key)
        contender = Contender(candidate, *kernel, self.times[candidate], verdict.log_variance)
        return self.islands.place(lineage.island[candidate], verdict.cell, contender, bool(verdict.fresh))


CANDIDATES = (
    "SELECT c.attempt, c.source, IFNULL(c.strategy, 0), IFNULL(c.parent, 0), c.island, c.generation"
    " FROM candidates c WHERE c.id > ? ORDER BY c.id"
)
EVALUATIONS = (
    "SELECT e.id, n.key, e.candidate, e.purpose, e.status, e.score, e.log_us, e.log_variance, e.light_share, e.cell,"
    " e.plan_key, e.cost, e.fresh, e.witnessed"
    " FROM evaluations e JOIN environments n ON n.id = e.environment WHERE e.id > ? AND e.id <= ? ORDER BY e.id"
)
FOREVER = 2**62
CREDITS_KEPT = 5000
"""Credits from which operators are rebuilt on resume. A policy that forgets half of what it saw in 140 credits, as the
bandit does by default, has forgotten all but 1e-10 of what came before these."""


class SearchState:
    """The lineage, and a board for every environment that judged something."""

    def __init__(self) -> None:
        self.lineage = Lineage()
        self.boards: dict[str, Leaderboard] = {}
        self.earned: deque[Earned] = deque(maxlen=CREDITS_KEPT)
        self._settings = PopulationSettings()

    def configure(self, settings: PopulationSettings) -> None:
        """A session begins under these settings."""
        self._settings = settings
        for board in self.boards.values():
            board.islands.settings = settings

    def board(self, environment: str) -> Leaderboard:
        """Standings in the environment of this key, new if it never judged anything."""
        found = self.boards.get(environment)
        if found is None:
            found = self.boards[environment] = Leaderboard(self._settings)
        return found

    def tell(self, environment: str, verdict: TakenVerdict) -> tuple[list[Earned], tuple[Placement, ...]]:
        """A verdict in the environment of this key: what it earned, and where its candidate went."""
        earned, placements = self.board(environment).tell(self.lineage, verdict)
        self.earned.extend(earned)
        return earned, placements

    def digest(self) -> str:
        """sha256 of everything here: equal digests mean equal search states."""
        boards = {
            key: board.digest_state(len(self.lineage.parent)) for key, board in self.boards.items() if any(board.status)
        }
        return hashlib.sha256(repr((self.lineage.state(), sorted(boards.items()))).encode()).hexdigest()


class Replay:
    """The search state of a file, and what was written since. For one thread; `advance` inside a transaction, where
    somebody may be writing."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.state = SearchState()
        self._connection = connection
        self._evaluation = 0  # the last one that was told

    def advance(self) -> None:
        """Take in new rows. Each session's verdicts are told under that session's settings.

        All candidates come before the first verdict: what `tell` decides does not depend on candidates recorded later.
        """
        state, connection = self.state, self._connection
        for row in connection.execute(CANDIDATES, (len(state.lineage),)):
            state.lineage.add(*row)
        sessions = connection.execute("SELECT after_evaluation, settings FROM runs ORDER BY id").fetchall()
        ends = [after for after, _ in sessions[1:]] + [FOREVER]
        for (after, settings), until in zip(sessions, ends, strict=False):
            if until > self._evaluation:
                state.configure(PopulationSettings.from_data(loads(settings)))
                rows = connection.execute(EVALUATIONS, (max(after, self._evaluation), until))
                for self._evaluation, environment, *verdict in rows:
                    state.tell(environment, TakenVerdict._make(verdict))


def replay(connection: sqlite3.Connection) -> SearchState:
    """What the last process had in memory when it told the last evaluation."""
    replayed = Replay(connection)
    replayed.advance()
    return replayed.state
