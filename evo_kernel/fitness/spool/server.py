"""A server of a spool: claims requests, has them judged side by side, and leaves the verdicts."""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.spool.folder import CLAIMED, LEASE_S, REQUESTS, SERVERS, VERDICTS, Heartbeats, SpoolFolder
from evo_kernel.fitness.spool.messages import Announcement, Malformed, SpoolAnswer, SpoolRequest, told_by
from evo_kernel.types import Environment, Status

BEAT_S = 2.0
LISTED_S = 1.0
"""A list of requests is used for so long, or until all in it are claimed."""
FASTEST_S, SLOWEST_S = 0.005, 0.5
"""Between two looks at an empty spool: at once after news, less and less often later."""
GRACE_S = 10.0
"""What is under way may finish within so many seconds once the server is told to end; the rest is given back."""
TRIES, TRY_AGAIN_S, PAUSES_OF_REFUSAL = 3, 5.0, 12
"""So often a request at which this machine fails is tried, with pauses; then it is left to others for some more."""
IN_TURN = ("confirm", "profile")
"""Purposes of which there is one at a time, as in a local search."""
REFUSALS = 200
"""That are announced, at most."""


@dataclass
class Served:
    """What a server has done."""

    judged: Counter[str] = field(default_factory=Counter)  # by status; profiles apart
    given_back: int = 0
    elsewhere: int = 0  # requests for other environments, when last looked
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.judged.most_common())
        parts = [f"judged {sum(self.judged.values())}" + (f" ({counts})" if counts else "")]
        parts += [f"gave back {self.given_back}"] if self.given_back else []
        parts += [f"refused {len(self.refused)}"] if self.refused else []
        parts += [f"{self.elsewhere} wait for other environments"] if self.elsewhere else []
        return ", ".join(parts)

    def as_data(self) -> dict[str, Any]:
        """One JSON object."""
        return {
            "judged": dict(self.judged),
            "given_back": self.given_back,
            "refused": self.refused,
            "for_other_environments": self.elsewhere,
        }


def server_name() -> str:
    """Unlike any other server's."""
    host = re.sub(r"[^A-Za-z0-9]+", "-", socket.gethostname()).strip("-")[:40] or "host"
    return f"{host}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


class Answers(Protocol):
    """See WarmJudges."""

    def answer(self, request: SpoolRequest, server: str, environment: Environment) -> SpoolAnswer: ...

    def close(self) -> None: ...


class SpoolServer:
    """`run` once. `stop` from any thread or signal handler."""

    def __init__(
        self,
        folder: SpoolFolder,
        judges: Answers,
        announcement: Announcement,
        say: Callable[[str], None],
        lease_s: float = LEASE_S,
        beat_s: float = BEAT_S,
        grace_s: float = GRACE_S,
        try_again_s: float = TRY_AGAIN_S,
    ) -> None:
        self._folder, self._judges, self._say = folder, judges, say
        self._told, self._name = announcement, announcement.server
        self._environment: Environment = announcement.environment
        self._beats, self._beat_s, self._lease_s = Heartbeats(folder, lease_s), beat_s, lease_s
        self._grace_s, self._try_again_s = grace_s, try_again_s
        self._hands: dict[Future[None], str] = {}  # stems under way
        self._listed: list[str] = []
        self._listed_at = self._looked_at = -1e9
        self._held: dict[str, list[str]] = {}  # claims of living servers
        self._failed: dict[str, tuple[int, float]] = {}  # stem → failures, not before
        self._lock, self._stopped, self._ended = threading.Lock(), threading.Event(), threading.Event()
        self.served = Served()

    def stop(self) -> None:
        """Claim nothing more; finish or give back what is in hand within GRACE_S."""
        self._stopped.set()

    def give_all_back(self) -> None:
        """What is in hand, at once."""
        for future, stem in list(self._hands.items()):
            if not future.done():
                self.served.given_back += self._folder.give_back(stem, self._name)

    def run(self, until_empty: bool = False, for_s: float | None = None) -> Served:
        """Serve until told to stop, or until the spool is empty or the time is up. Closes the judges."""
        until = None if for_s is None else time.monotonic() + for_s
        self._folder.prepare()
        self._announce()
        for name, one in self._folder.announcements().items():  # ours says all that they did
            if one.ended and one.environment.key == self._environment.key and name != self._name:
                self._folder.remove(SERVERS, f"{name}.json")
        beating = threading.Thread(target=self._beat, daemon=True)
        beating.start()
        threads = ThreadPoolExecutor(self._told.slots)
        pause = FASTEST_S
        try:
            while not self._stopped.is_set() and (until is None or time.monotonic() < until):
                finished = any(future.done() for future in self._hands)
                claimed = self._claim(threads)
                if until_empty and not claimed and not self._hands and self._is_empty():
                    break
                pause = FASTEST_S if claimed or finished else min(1.5 * pause, SLOWEST_S)
                if len(self._hands) >= self._told.slots:
                    wait(self._hands, pause, return_when="FIRST_COMPLETED")
                else:
                    self._stopped.wait(pause)
        finally:
            self._finish(threads)
            self._ended.set()
            beating.join()
            with contextlib.suppress(InfraError):
                self._announce(ended=True)
        return self.served

    # ---- claiming ---------------------------------------------------------------------------------------------------

    def _claim(self, threads: ThreadPoolExecutor) -> int:
        """Fill the free slots; how many were filled."""
        for done in [future for future in self._hands if future.done()]:
            del self._hands[done]
        fresh = self._look()
        claimed = self._claim_listed(threads)
        if not claimed and not fresh and len(self._hands) < self._told.slots:  # others were first: see what is new
            self._listed_at = -1e9
            self._look()
            claimed = self._claim_listed(threads)
        return claimed

    def _claim_listed(self, threads: ThreadPoolExecutor) -> int:
        claimed, left = 0, list[str]()
        while self._listed and len(self._hands) < self._told.slots:
            stem = self._listed.pop()
            if not self._may(stem):
                left.append(stem)
            elif not self._judged_before(stem) and self._folder.claim(stem, self._name):
                self._hands[threads.submit(self._serve, stem)] = stem
                claimed += 1
        self._listed += left
        return claimed

    def _look(self) -> bool:
        """List what waits, and free what dead servers had; both now and then. Whether it was listed now."""
        now = time.monotonic()
        if now - self._looked_at >= min(self._beat_s, self._lease_s / 4):
            self._looked_at = now
            self._beats.look()
            self._held = {}
            for stem, servers in self._folder.claims().items():
                for server in servers:
                    if server == self._name:
                        if stem not in self._hands.values():  # carried here after it was done
                            self._folder.give_back(stem, server)
                    elif self._beats.is_dead(server):
                        self._say(f"{server} is gone: what it had is judged again")
                        self._folder.give_back(stem, server)
                        self._listed_at = -1e9
                    else:
                        self._held.setdefault(stem, []).append(server)
        if self._listed and now - self._listed_at < LISTED_S:
            return False
        self._listed_at = now
        every = self._folder.waiting()
        ours = [stem for stem in every if told_by(stem)[0] == self._environment.key]
        self.served.elsewhere = len(every) - len(ours)
        with self._lock:
            for stem in [stem for stem in self.served.refused if now >= self._failed[stem][1]]:
                del self.served.refused[stem], self._failed[stem]  # the machine may be well again
            self._listed = [stem for stem in ours if stem not in self.served.refused and stem not in self._held]
        self._listed.sort(key=self._order)
        return True

    def _order(self, stem: str) -> tuple[bool, int]:
        """What is claimed first comes last: the tasks at hand, then in an order of this server's own, so that several
        seldom reach for the same."""
        tasks = {told_by(one)[1] for one in self._hands.values()}
        return told_by(stem)[1] in tasks, hash((self._name, stem))

    def _may(self, stem: str) -> bool:
        """Whether it may begin now."""
        if told_by(stem)[2] in IN_TURN and any(told_by(one)[2] in IN_TURN for one in self._hands.values()):
            return False
        with self._lock:
            if stem in self.served.refused or time.monotonic() < self._failed.get(stem, (0, 0.0))[1]:
                return False
        return stem not in self._held and stem not in self._hands.values()

    def _judged_before(self, stem: str) -> bool:
        """Whether there is a verdict: a request may come twice, by rsync, or after a server that was only slow."""
        name = f"{stem}.json"
        try:
            data = self._folder.read(VERDICTS, name)
            if data is None:
                return False
            SpoolAnswer.from_bytes(data)
        except Malformed as error:
            self._folder.set_aside(VERDICTS, name, str(error))
            return False
        self._folder.remove(REQUESTS, name)
        return True

    def _is_empty(self) -> bool:
        """Nothing waits for this server, and nothing that others hold may come back."""
        with self._lock:
            mine = [stem for stem in self._folder.waiting() if told_by(stem)[0] == self._environment.key]
            open_ones = [stem for stem in mine if stem not in self.served.refused and not self._held.get(stem)]
        at_work = {one.server for one in self._beats.at_work()}
        unsure = [stem for stem, servers in self._folder.claims().items()
                  if told_by(stem)[0] == self._environment.key and not at_work.intersection(servers)]  # fmt: skip
        return not open_ones and not unsure

    # ---- one request ------------------------------------------------------------------------------------------------

    def _serve(self, stem: str) -> None:
        claim = f"{stem}@{self._name}.json"
        try:
            request = self._folder.request(stem, self._name)
            if request is None:
                return
            answer = self._judges.answer(request, self._name, self._environment)
            if answer.evaluation is not None and answer.evaluation.status is Status.INFRA_ERROR:
                raise InfraError(answer.evaluation.reason)
            self._folder.write(VERDICTS, f"{stem}.json", answer.as_bytes())
        except UserError as error:
            self._give_back(stem, str(error), for_good=True)
        except InfraError as error:
            self._give_back(stem, f"the machine failed: {error}")
        # A bug of ours is no verdict on anybody's kernel.
        except Exception as error:  # noqa: BLE001
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._give_back(stem, f"{type(error).__name__}: {error} ({where.filename}, line {where.lineno})")
        else:
            self._folder.remove(CLAIMED, claim)
            status = str(answer.evaluation.status) if answer.evaluation is not None else "profiles"
            with self._lock:
                self.served.judged[status] += 1

    def _give_back(self, stem: str, why: str, for_good: bool = False) -> None:
        """Others may judge it, or this server later."""
        with self._lock:
            if not self._stopped.is_set():
                failures = self._failed.get(stem, (0, 0.0))[0] + 1
                pauses = failures
                if for_good or failures >= TRIES:
                    pauses = math.inf if for_good else PAUSES_OF_REFUSAL
                    self.served.refused[stem] = why[:500]
                    self._say(f"left to others: {told_by(stem)[2]} of task {told_by(stem)[1]}: {why}")
                self._failed[stem] = failures, time.monotonic() + self._try_again_s * pauses
            self.served.given_back += self._folder.give_back(stem, self._name)

    # ---- being there ------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        while not self._ended.wait(self._beat_s):
            with contextlib.suppress(InfraError):  # a full disk: others take over, and we go on where it has room
                self._announce()

    def _announce(self, ended: bool = False) -> None:
        with self._lock:
            refuses = dict(list(self.served.refused.items())[-REFUSALS:])
            self._told = self._told.model_copy(update={"beat": self._told.beat + 1, "ended": ended, "refuses": refuses})
        self._folder.write(SERVERS, f"{self._name}.json", self._told.as_bytes())

    def _finish(self, threads: ThreadPoolExecutor) -> None:
        """Let what is under way finish for a while, and give the rest back."""
        wait(self._hands, self._grace_s)
        self._stopped.set()
        self.give_all_back()
        threads.shutdown(wait=False, cancel_futures=True)
        self._judges.close()
