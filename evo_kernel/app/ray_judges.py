"""Judges as Ray actors: one a GPU, with its share of the host's cores, or one a host without GPUs.

One process with two GPUs would judge hardly more than with one. The transport beneath fitness/spool/pool.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from typing import Any

from evo_kernel import processes
from evo_kernel.errors import InfraError, UserError
from evo_kernel.fitness.doctor import Diagnosis
from evo_kernel.fitness.judge import JudgeSettings
from evo_kernel.fitness.spool.folder import LEASE_S
from evo_kernel.fitness.spool.messages import Announcement, SpoolRequest
from evo_kernel.fitness.spool.pool import HostLost
from evo_kernel.fitness.spool.warm_judges import WarmJudges
from evo_kernel.judge_place import RAY, ray_address
from evo_kernel.scratch import Scratch

MISSING = "--judge ray needs Ray: pip install 'evo-kernel[ray]', at the same version on all hosts"
STORE_BYTES = 80_000_000  # of the object store: requests and verdicts are small; Ray's least is 75 MiB
REACH_S, START_S, GOODBYE_S, LOOK_S = 10.0, 60.0, 3.0, 0.5
SPARE_THREADS = 4
_PASSED_ON = re.compile(
    r"PATH|HOME|USER|LOGNAME|LANG|LC_\w+|TZ|TMPDIR|VIRTUAL_ENV|LD_LIBRARY_PATH|XDG_CACHE_HOME|PYTHON\w+|RAY_AUTH_\w+"
    r"|(CUDA|NVIDIA|TRITON|TORCH|TORCHINDUCTOR|OMP|MKL|OPENBLAS)_\w+"
)
"""Environment variables that a cluster which is started here gets. No others: keys of models are among them."""


def ray_module() -> Any:
    """Raises UserError where it is missing."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", ".")  # it prints to our standard output
    try:
        import ray  # pyright: ignore[reportMissingImports]
        import ray.exceptions  # pyright: ignore[reportMissingImports]
        import ray.util.scheduling_strategies  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(MISSING) from error
    return ray


# ---- on a host ------------------------------------------------------------------------------------------------------


class JudgeActor:
    """The judges of one GPU or host, in a process that Ray starts there. Thread-safe."""

    def __init__(self) -> None:
        self._scratch = Scratch("ray")
        self._judges: WarmJudges | None = None

    def start(self, device: str, own: JudgeSettings, number: int, of: int) -> bytes:
        """What it is, as an Announcement. `number`, `of`: which of so many on the host that share its cores."""
        from evo_kernel.app import early_start, judge_server

        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number * len(cores) // of : (number + 1) * len(cores) // of] or cores)
        early_start.begin(None, device)
        self._told, self._judges = judge_server.machine_judges(device, "all", own, self._scratch.path)
        return self._told.as_bytes()

    def answer(self, request: bytes) -> bytes:
        """See WarmJudges.answer."""
        assert self._judges is not None, "it was started"
        asked = SpoolRequest.from_bytes(request)
        return self._judges.answer(asked, self._told.server, self._told.environment).as_bytes()

    def ping(self) -> None:
        """It lives."""

    def close(self) -> None:
        if self._judges is not None:
            self._judges.close()
        self._scratch.close()


# ---- here -----------------------------------------------------------------------------------------------------------


class RayHosts:
    """Implements spool.pool.Hosts with a cluster that is joined, or started here and ended with this process."""

    def __init__(self, place: str, device: str, own: JudgeSettings) -> None:
        """`own`: settings that no request may set. Raises UserError, InfraError."""
        self.place, self._device, self._own = place, device, own
        self._stack = contextlib.ExitStack()
        try:
            self._ray = self._stack.enter_context(joined(place))
        except BaseException:
            self._stack.close()
            raise

    def names(self) -> Mapping[str, str]:
        nodes = [one for one in self._nodes() if one["Resources"].get("CPU", 0) >= 1]
        cards = [one for one in nodes if one["Resources"].get("GPU", 0) >= 1]
        chosen = cards if self._device == "cuda" or (cards and self._device != "cpu") else nodes
        return {
            f"{one['NodeID']}/{number}": one["NodeManagerHostname"] + (f", GPU {number}" if count > 1 else "")
            for one in chosen
            for count in [self._count(one["Resources"])]
            for number in range(count)
        }

    def open(self, host: str, wanted: Callable[[], bool]) -> RayHost:
        ray = self._ray
        node, _, number = host.rpartition("/")
        resources = next((one["Resources"] for one in self._nodes() if one["NodeID"] == node), None)
        if resources is None:
            raise HostLost("it has left the cluster")
        count = self._count(resources)
        cores, cards = max(1, int(resources["CPU"]) // count), int(self._cards(resources) > 0)
        threads = 2 * (cores + 1) + SPARE_THREADS  # the slots that judge_server may announce, and pings
        options = {"num_cpus": cores, "num_gpus": cards, "max_concurrency": threads}
        actor = ray.remote(JudgeActor).options(scheduling_strategy=_on(ray, node), **options).remote()
        try:
            started = actor.start.remote(self._device, self._own, int(number), count)
            while not ray.wait([started], timeout=LOOK_S)[0]:
                if not wanted():
                    raise HostLost("nobody waits for it any more")
            return RayHost(ray, actor, Announcement.from_bytes(_got(ray, started)))
        except HostLost as error:
            ray.kill(actor)
            if host in self.names():
                raise InfraError(str(error)) from error
            raise
        except BaseException:
            ray.kill(actor)
            raise

    def close(self) -> None:
        self._stack.close()

    def _cards(self, resources: Mapping[str, float]) -> int:
        return int(resources.get("GPU", 0)) if self._device != "cpu" else 0

    def _count(self, resources: Mapping[str, float]) -> int:
        """Of actors on a host."""
        return max(1, min(self._cards(resources), int(resources["CPU"])))

    def _nodes(self) -> list[dict[str, Any]]:
        try:
            return [one for one in self._ray.nodes() if one["Alive"]]
        except Exception as error:  # of several libraries
            raise InfraError(f"{self.place} does not answer: {error}") from error


class RayHost:
    """Implements spool.pool.JudgeHost."""

    def __init__(self, ray: Any, actor: Any, announcement: Announcement) -> None:
        self._ray, self._actor, self.announcement = ray, actor, announcement
        self._lock, self._lost = threading.Lock(), False
        self._ping, self._since = actor.ping.remote(), time.monotonic()

    def answer(self, request: bytes, within_s: float) -> bytes:
        try:
            return _got(self._ray, self._actor.answer.remote(request), within_s)
        except HostLost:
            self._lost = True
            raise

    def is_alive(self) -> bool:
        with self._lock:
            if self._ray.wait([self._ping], timeout=0)[0]:
                try:
                    _got(self._ray, self._ping)
                except HostLost:
                    self._lost = True
                else:
                    self._ping, self._since = self._actor.ping.remote(), time.monotonic()
            self._lost |= time.monotonic() - self._since >= LEASE_S
            return not self._lost

    def close(self) -> None:
        if not self._lost:
            self._lost = True
            with contextlib.suppress(InfraError):
                _got(self._ray, self._actor.close.remote(), GOODBYE_S)
        self._ray.kill(self._actor)


def _on(ray: Any, node: str) -> Any:
    return ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)


def _got(ray: Any, ref: Any, within_s: float | None = None) -> Any:
    """A result. Raises HostLost, and what was raised there: UserError, InfraError."""
    try:
        return ray.get(ref, timeout=within_s)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, (UserError, InfraError)):
            raise error.cause from None
        last = str(error).strip().splitlines()[-1]
        raise InfraError(f"on the host: {last}") from error
    except ray.exceptions.GetTimeoutError as error:
        raise HostLost(f"it gave no answer within {within_s:.0f} s") from error
    except ray.exceptions.RayError as error:
        raise HostLost(" ".join(str(error).split())[:300]) from error


@contextlib.contextmanager
def joined(place: str) -> Iterator[Any]:
    """Ray, connected to the cluster that a place names, or to one that lasts as long as the block. Raises UserError,
    InfraError."""
    if place == RAY:  # its ports are open to all. Ray reads this when it is imported
        os.environ |= {"RAY_AUTH_MODE": "token"}
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray = ray_module()
    with contextlib.nullcontext(ray_address(place)) if place != RAY else _started() as address:
        handler = signal.getsignal(signal.SIGTERM)
        try:
            if address != "auto":  # Ray itself tries for most of a minute
                socket.create_connection((address.rpartition(":")[0], int(address.rpartition(":")[2])), REACH_S).close()
            # With an empty folder, modules of our working folder are not looked for on the nodes.
            with Scratch("ray") as folder:
                (folder / "empty").mkdir()
                ray.init(
                    address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False,
                    runtime_env={"working_dir": str(folder / "empty")},
                )  # fmt: skip
        except Exception as error:  # OSError, RuntimeError, ValueError, errors of gRPC
            told = " ".join(str(error).split())[:400]
            raise UserError(
                f"Ray at {address} cannot be joined: {told} Start it here with `ray start --address={address}`, with "
                f"--num-cpus=0 --num-gpus=0 where this machine is not to judge."
            ) from error
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler or signal.SIG_DFL)  # Ray has put its own there
        try:
            yield ray
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _started() -> Iterator[str]:
    """The address of a cluster on this machine alone, which ends with this process, even if it is killed."""
    env = {name: value for name, value in os.environ.items() if _PASSED_ON.fullmatch(name)}
    said, ending = bytearray(), threading.Event()
    with Scratch("ray") as folder:
        ours = folder / "r"  # Ray lets everybody write there
        command = [
            sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port=0",
            "--include-dashboard=false", "--include-log-monitor=false", "--disable-usage-stats",
            f"--object-store-memory={STORE_BYTES}", f"--temp-dir={ours}",
        ]  # fmt: skip

        def supervise() -> None:
            processes.run(command, float("inf"), said.extend, env, enough=ending.is_set)

        thread = threading.Thread(target=supervise, daemon=True)
        thread.start()
        try:
            told, until = ours / "ray_current_cluster", time.monotonic() + START_S
            while not told.exists():
                if not thread.is_alive() or time.monotonic() >= until:
                    raise InfraError(f"Ray did not start: {said.decode(errors='replace')[-1000:]}")
                time.sleep(0.05)
            yield told.read_text().strip()
        finally:
            ending.set()
            thread.join()


# ---- doctor ---------------------------------------------------------------------------------------------------------

PACKAGES = ("ray", "evo-kernel", "torch", "triton")


def versions() -> dict[str, str]:
    """Of what has to be the same on all nodes, here."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def diagnose_nodes(place: str) -> list[Diagnosis]:
    """Whether Ray is here and, of a cluster that is named, whether all nodes have our versions."""
    try:
        if place == RAY:
            return [Diagnosis("ray", True, ray_module().__version__)]
        with joined(place) as ray:
            nodes = [one for one in ray.nodes() if one["Alive"]]
            there = [{"num_cpus": 0, "scheduling_strategy": _on(ray, one["NodeID"])} for one in nodes]
            asked = [ray.remote(versions).options(**options).remote() for options in there]
            return [_diagnosed(ray, node, one) for node, one in zip(nodes, asked, strict=True)]
    except (UserError, InfraError) as error:
        return [Diagnosis("ray", False, str(error), needed=True)]


def _diagnosed(ray: Any, node: Mapping[str, Any], asked: Any) -> Diagnosis:
    name, has, own = f"node {node['NodeManagerHostname']}", node["Resources"], versions()
    advice = "Install there what is here: Ray and Python have to be the same, and times compare only if the rest is."
    try:
        found = _got(ray, asked, START_S)
    except InfraError as error:
        return Diagnosis(name, False, f"does not answer: {error}", advice, needed=True)
    detail = ", ".join([f"{has.get('CPU', 0):g} cores", f"{has.get('GPU', 0):g} GPUs", *map(" ".join, found.items())])
    other = [f"{key} is {own[key]} here" for key in own if found.get(key) != own[key]]
    return Diagnosis(name, not other, "; ".join([detail, *other]), advice, needed=True)
