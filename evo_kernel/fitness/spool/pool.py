"""Judges on hosts that a transport reaches, in the place of servers: each is served from here, by a SpoolServer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Protocol

from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.spool.client import LONELY_S, SpoolJudge, of_environment
from evo_kernel.fitness.spool.folder import SpoolFolder
from evo_kernel.fitness.spool.messages import Announcement, SpoolAnswer, SpoolRequest
from evo_kernel.fitness.spool.server import SpoolServer
from evo_kernel.scratch import Scratch
from evo_kernel.tasks.task import Task
from evo_kernel.types import Environment

LOOK_S = 1.0
"""Between two looks at the hosts."""
HANG_STEPS = 20
"""A request that takes so many times the deadline of one of its steps hangs; twice as many after each loss."""
MOST_LOSSES = 8
"""Hosts that are lost over one request, before it is given to no other."""
TRIES = 3
"""So often a host that does not open is tried, with pauses, before somebody is told, or nobody waits for a first one.
Also how often limits are doubled, and pauses twice as often."""


class HostLost(InfraError):
    """It does not answer any more: it died, hangs, or cannot be reached."""


class JudgeHost(Protocol):
    """Judges on one host. Thread-safe."""

    announcement: Announcement

    def answer(self, request: bytes, within_s: float) -> bytes:
        """A SpoolAnswer to a SpoolRequest. Raises HostLost, also where it takes longer; else as WarmJudges.answer."""
        ...

    def is_alive(self) -> bool:
        """False where it has died, or was silent for a lease. Returns at once."""
        ...

    def close(self) -> None:
        """End it; what it has under way is lost. Idempotent."""
        ...


class Hosts(Protocol):
    """A transport."""

    place: str  # as people write it

    def names(self) -> Mapping[str, str]:
        """Hosts that are there and may judge: what tells them apart → how people call them. Raises InfraError."""
        ...

    def open(self, host: str, wanted: Callable[[], bool]) -> JudgeHost:
        """Blocks until its judges are ready, or nobody has `wanted` them any more. Raises HostLost, InfraError,
        UserError where it is of no use."""
        ...

    def close(self) -> None: ...


class HostPool:
    """Keeps a server for each host of one environment: `choice`, `known` (see `open_spool_judge`), else the first.
    A host that joins is taken in, one that was lost is opened anew."""

    def __init__(self, hosts: Hosts, known: Environment | None, choice: str, say: Callable[[str], None]) -> None:
        self._hosts, self._known, self._choice, self.say = hosts, known, choice, say
        self.place = hosts.place
        self._scratch = Scratch("pool")
        self.folder = SpoolFolder(self._scratch.path / "spool")
        self._changed = threading.Condition()  # its lock guards all that follows
        self._first: Announcement | None = None
        self._threads: dict[str, threading.Thread] = {}  # by host
        self._refused: dict[str, str] = {}  # host → why
        self._serving: dict[SpoolServer, JudgeHost] = {}
        self._losses: Counter[str] = Counter()  # by stem
        self._closed = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def first(self) -> Announcement:
        """What tells the environment, once there is one. Raises UserError where no host that is there will do."""
        telling = time.monotonic() + LONELY_S
        with self._changed:
            while self._first is None:
                if self._refused and self._refused.keys() == self._threads.keys():
                    raise UserError(f"no judge of {self.place} will do: {'; '.join(self._refused.values())}")
                self._changed.wait(LOOK_S)
                if time.monotonic() >= telling:
                    self.say(f"waiting for a judge of {self.place}: {len(self._threads)} hosts start, or are busy")
                    telling += LONELY_S
            return self._first

    def close(self) -> None:
        """End all hosts. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._watcher.join()  # nobody is added any more
        with self._changed:
            threads = [*self._threads.values()]
            for server in self._serving:
                server.stop()
        for thread in threads:
            thread.join()
        self._hosts.close()
        self._scratch.close()

    # ---- hosts ------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_S):
            with self._changed:
                silent = [server for server, host in self._serving.items() if not host.is_alive()]
            for server in silent:
                server.stop()
            with contextlib.suppress(InfraError):
                names = self._hosts.names()
                with self._changed:  # all of them are there before one can be the only one, and refused
                    new = {
                        host: threading.Thread(target=self._keep, args=(host, name), daemon=True)
                        for host, name in names.items() if host not in self._threads
                    }  # fmt: skip
                    self._threads |= new
                for thread in new.values():
                    thread.start()

    def _keep(self, host: str, name: str) -> None:
        """Serve a host for as long as it is there."""
        in_vain = 0
        while not self._closed.is_set():
            try:
                opened = self._hosts.open(host, lambda: not self._closed.is_set())
                try:
                    if reason := self._unlike(opened.announcement):
                        return self._refuse(host, f"{name} is left alone: {reason}")
                    in_vain = 0 if self._serve(opened) else in_vain + 1
                finally:
                    opened.close()
                if not self._closed.is_set():
                    self.say(f"{name} is lost: what it had is judged again")
            except HostLost:
                with self._changed:
                    del self._threads[host]  # where it comes back, it is new
                return
            except (UserError, InfraError) as error:
                in_vain, reason = in_vain + 1, f"{name} does not judge: {error}"
                if isinstance(error, UserError) or (in_vain >= TRIES and self._first is None):
                    return self._refuse(host, reason)
                if in_vain == TRIES:
                    self._tell(reason)
            self._closed.wait(LOOK_S * (2 ** min(in_vain, 2 * TRIES) - 1))

    def _serve(self, host: JudgeHost) -> int:
        """Until it is lost, or the end; how much it has judged."""
        judges = _HostJudges(host, self._losses)
        server = SpoolServer(self.folder, judges, host.announcement, self._tell, grace_s=0.0)
        judges.lost = server.stop
        with self._changed:
            if self._closed.is_set():
                return 0
            self._serving[server] = host
        try:
            return server.run().judged.total()
        finally:
            with self._changed:
                del self._serving[server]

    def _unlike(self, told: Announcement) -> str:
        """Why its times do not compare with the others'; the first whose do decides."""
        with self._changed:
            if self._first is None and of_environment(told.environment, self._known, self._choice):
                self._first = told
                self._changed.notify_all()
            first, own = self._first, told.environment
            if first is not None and first.environment.key == own.key:
                return ""
        wanted = first.environment if first is not None else self._known
        label = f"{wanted.label} ({wanted.key})" if wanted is not None else repr(self._choice)
        return f"its times are {own.label} ({own.key}), and wanted are {label}"

    def _tell(self, line: str) -> None:
        self.say(line)  # whoever hears it by then

    def _refuse(self, host: str, reason: str) -> None:
        with self._changed:
            self._refused[host] = reason
            self._changed.notify_all()
        self.say(reason)


class _HostJudges:
    """Answers of a host, for its SpoolServer. `losses`: by stem, of all hosts; `lost` is called when it is lost."""

    def __init__(self, host: JudgeHost, losses: Counter[str]) -> None:
        self._host, self._losses = host, losses
        self.lost: Callable[[], None] = lambda: None

    def answer(self, request: SpoolRequest, server: str, environment: Environment) -> SpoolAnswer:
        """See WarmJudges.answer."""
        losses = self._losses[request.stem]
        if losses >= MOST_LOSSES:
            raise UserError(f"{losses} judges were lost while they had it")
        steps = HANG_STEPS * request.effort * 2 ** min(losses, TRIES)
        try:
            return SpoolAnswer.from_bytes(self._host.answer(request.as_bytes(), steps * request.settings.deadline_s))
        except HostLost:
            self._losses[request.stem] += 1
            self.lost()
            raise

    def close(self) -> None:
        self._host.close()


class PooledJudge(SpoolJudge):
    """A SpoolJudge whose servers are a pool's, which ends with it."""

    def __init__(self, pool: HostPool, task: Task, settings: JudgeSettings) -> None:
        """Waits for the first host. Raises UserError."""
        self._pool = pool
        try:
            first = pool.first()
            super().__init__(pool.folder, task, first.environment, settings, first.ceilings, pool.say)
        except BaseException:
            pool.close()
            raise
        self._lonely = f"no judge of {pool.place} is at work: {first.environment.label} is waited for"
        pool.say = self._tell

    def close(self) -> None:
        super().close()
        self._pool.close()
