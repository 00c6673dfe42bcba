"""The files of a spool: written whole, read bounded, claimed by renaming; and who of its servers is alive."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.spool.messages import MOST_BYTES, SERVER, STEM, Announcement, Malformed, SpoolRequest
from evo_kernel.types import escaped

REQUESTS, CLAIMED, VERDICTS, TAKEN, SERVERS, ASIDE = "requests", "claimed", "verdicts", "taken", "servers", "aside"
LEASE_S = 90.0
"""A server whose counter stood still for so long, by the clock of whoever looks, is dead. Longer than an NFS client
keeps what it knows of a file (60 s)."""
_REQUEST, _CLAIM = re.compile(rf"({STEM})\.json"), re.compile(rf"({STEM})@({SERVER})\.json")
_SERVER = re.compile(rf"({SERVER})\.json")


class SpoolFolder:
    """Thread-safe, and safe beside any number of processes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self) -> None:
        """Make what is missing. Raises UserError."""
        try:
            for name in (REQUESTS, CLAIMED, VERDICTS, TAKEN, SERVERS, ASIDE):
                (self.path / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{self.path} cannot be used as a spool ({reason}): name a folder to write in") from error

    # ---- files ------------------------------------------------------------------------------------------------------

    def write(self, kind: str, name: str, data: bytes) -> None:
        """A file that is seen whole or not at all; instead of an older one. Raises InfraError."""
        place = self.path / kind
        hidden = place / f".{uuid.uuid4().hex}"
        try:
            try:
                hidden.write_bytes(data)
                hidden.rename(place / name)
            except FileNotFoundError:  # the folder was lost on the way
                place.mkdir(parents=True, exist_ok=True)
                hidden.write_bytes(data)
                hidden.rename(place / name)
        except OSError as error:
            with contextlib.suppress(OSError):
                hidden.unlink()
            raise InfraError(f"{place} takes no file: {error.strerror or error}") from error

    def read(self, kind: str, name: str) -> bytes | None:
        """None where there is no such file. Raises Malformed for what is no plain file, or too large."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            with open(self.path / kind / name, "rb", opener=lambda path, _: os.open(path, flags)) as file:
                about = os.fstat(file.fileno())
                if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
                    raise Malformed(f"it is no plain file of at most {MOST_BYTES} bytes")
                data = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:  # also a link, a folder, and a file that NFS lost while it was read
            raise Malformed(f"it cannot be read: {error.strerror}") from error
        if len(data) > MOST_BYTES:
            raise Malformed(f"it is longer than {MOST_BYTES} bytes")
        return data

    def has(self, kind: str, name: str) -> bool:
        return os.path.lexists(self.path / kind / name)

    def remove(self, kind: str, name: str) -> None:
        with contextlib.suppress(OSError):
            (self.path / kind / name).unlink()

    def set_aside(self, kind: str, name: str, reason: str) -> None:
        """Out of everybody's way, with its reason."""
        aside = f"{kind}-{name}"
        with contextlib.suppress(OSError):
            (self.path / ASIDE).mkdir(parents=True, exist_ok=True)
            (self.path / kind / name).rename(self.path / ASIDE / aside)
            (self.path / ASIDE / f"{aside}.reason").write_text(
                reason + "\n", encoding="utf-8", errors="backslashreplace"
            )

    def why_aside(self, stem: str) -> str:
        """Why a server set a request aside; empty where none did, or its reason cannot be read."""
        begins = f"{CLAIMED}-{stem}@"
        with contextlib.suppress(OSError, Malformed):
            for name in os.listdir(self.path / ASIDE):
                if name.startswith(begins) and name.endswith(".reason"):
                    return escaped((self.read(ASIDE, name) or b"").decode(errors="replace").strip()[:500])
        return ""

    def mark_taken(self, stem: str) -> bool:
        """Whether nobody had taken this answer before. Raises InfraError."""
        place = self.path / TAKEN / stem
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        except OSError as error:
            raise InfraError(f"{place} cannot be written: {error.strerror}") from error
        return True

    # ---- requests and claims ----------------------------------------------------------------------------------------

    def waiting(self) -> list[str]:
        """Stems of requests that nobody has claimed."""
        return [found[1] for found in self._matching(REQUESTS, _REQUEST)]

    def claims(self) -> dict[str, list[str]]:
        """Stem → servers that have it."""
        held: dict[str, list[str]] = {}
        for found in self._matching(CLAIMED, _CLAIM):
            held.setdefault(found[1], []).append(found[2])
        return held

    def claim(self, stem: str, server: str) -> bool:
        """Take a request in hand; False where another server was faster."""
        mine = f"{stem}@{server}.json"
        try:
            (self.path / CLAIMED).mkdir(parents=True, exist_ok=True)
            (self.path / REQUESTS / f"{stem}.json").rename(self.path / CLAIMED / mine)
        except FileNotFoundError:  # perhaps it was ours: NFS may lose the answer to a rename, and ask again
            return self.has(CLAIMED, mine)
        except OSError:
            return False
        return True

    def give_back(self, stem: str, server: str) -> bool:
        """Whether the server still had it."""
        try:
            (self.path / REQUESTS).mkdir(parents=True, exist_ok=True)
            (self.path / CLAIMED / f"{stem}@{server}.json").rename(self.path / REQUESTS / f"{stem}.json")
        except OSError:
            return False
        return True

    def request(self, stem: str, server: str) -> SpoolRequest | None:
        """What a claim holds; None where it is gone, or was set aside."""
        name = f"{stem}@{server}.json"
        try:
            data = self.read(CLAIMED, name)
            if data is None:
                return None
            found = SpoolRequest.from_bytes(data)
            if found.stem != stem:
                raise Malformed("its name is not that of what it holds")
        except Malformed as error:
            self.set_aside(CLAIMED, name, str(error))
            return None
        return found

    def carried(self) -> tuple[int, int]:
        """Files and bytes of requests that wait."""
        sizes = [
            (self.path / REQUESTS / f"{stem}.json").stat().st_size
            for stem in self.waiting()
            if self.has(REQUESTS, f"{stem}.json")
        ]
        return len(sizes), sum(sizes)

    def announcements(self) -> dict[str, Announcement]:
        """By server; what is torn is passed over until it is whole."""
        told: dict[str, Announcement] = {}
        for found in self._matching(SERVERS, _SERVER):
            with contextlib.suppress(Malformed):
                data = self.read(SERVERS, found[0])
                one = Announcement.from_bytes(data) if data is not None else None
                if one is not None and one.server == found[1]:
                    told[one.server] = one
        return told

    def _matching(self, kind: str, form: re.Pattern[str]) -> Iterator[re.Match[str]]:
        """Other names are passed over: of files on their way, by us or by rsync."""
        try:
            names = os.listdir(self.path / kind)
        except OSError:  # it may be there again
            return
        yield from filter(None, map(form.fullmatch, names))


class Heartbeats:
    """Which servers live, by the clock of whoever looks. Thread-safe."""

    def __init__(
        self, folder: SpoolFolder, lease_s: float = LEASE_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._lease_s, self._clock = folder, lease_s, clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[int, float, bool]] = {}  # counter, since when it is that, whether it ever moved
        self.told: dict[str, Announcement] = {}

    def look(self) -> None:
        """Read what all servers announce."""
        told, now = self._folder.announcements(), self._clock()
        with self._lock:
            self.told = told
            for name, one in told.items():
                beat = self._seen[name][0] if name in self._seen else -1
                if beat != one.beat:
                    self._seen[name] = one.beat, now, beat >= 0

    def is_dead(self, server: str) -> bool:
        """It said so, or its counter has stood still for a lease since it was first asked about."""
        with self._lock:
            _, since, _ = self._seen.setdefault(server, (-1, self._clock(), False))
            ended = server in self.told and self.told[server].ended
            return ended or self._clock() - since >= self._lease_s

    def at_work(self) -> list[Announcement]:
        """Servers whose counters were seen to move, and not too long ago."""
        with self._lock:
            moving = {name for name, (_, since, moved) in self._seen.items()
                      if moved and self._clock() - since < self._lease_s}  # fmt: skip
            return [one for name, one in self.told.items() if name in moving and not one.ended]
