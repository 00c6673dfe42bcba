"""GPUs of this machine as `nvidia-smi` and NVML show them, whose turn it is on one, and usable CPU cores.

Creates no CUDA context, changes no setting.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from evo_kernel import user_cache
from evo_kernel.errors import InfraError

_FIELDS = (
    "index,uuid,name,driver_version,memory.used,memory.total,clocks.sm,clocks.max.sm,clocks.mem,temperature.gpu,"
    "power.draw"
)
_TEXT = "{}, driver {}, {} of {} MiB used, SMs at {} of {} MHz, memory at {} MHz, {} °C, {} W"  # of all after the uuid
_DEADLINE_S = 30.0
_PARAMETERS = Path("/proc/driver/nvidia/params")


@dataclass(frozen=True)
class Gpu:
    index: str
    text: str
    processes: tuple[str, ...]  # compute processes on it, as "pid name (MiB)"


def list_gpus() -> list[Gpu]:
    """All GPUs of the machine, including those hidden by CUDA_VISIBLE_DEVICES; empty if nvidia-smi fails."""
    users: dict[str, list[str]] = {}
    for line in _ask("--query-compute-apps=gpu_uuid,pid,process_name,used_memory"):
        uuid, pid, rest = _cells(line, 3)
        name, _, used_mib = rest.rpartition(",")
        users.setdefault(uuid, []).append(f"{pid} {name.strip()} ({used_mib.strip()} MiB)")
    count = _FIELDS.count(",") + 1
    rows = [_cells(line, count) for line in _ask(f"--query-gpu={_FIELDS}")]
    return [Gpu(row[0], _TEXT.format(*row[2:]), tuple(users.get(row[1], ()))) for row in rows]


def _cells(line: str, count: int) -> list[str]:
    """Split a CSV line into `count` cells; the last keeps its commas."""
    cells = [cell.strip() for cell in line.split(",", count - 1)]
    return cells + [""] * (count - len(cells))


def _ask(query: str) -> list[str]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, query, "--format=csv,noheader,nounits"]
    try:
        ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_DEADLINE_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line for line in ended.stdout.splitlines() if line.strip()] if ended.returncode == 0 else []


def counters_permitted(parameters: Path = _PARAMETERS, status: Path = Path("/proc/self/status")) -> bool | None:
    """Whether this process may read the GPU's counters; None if the driver does not tell.

    By default the driver allows it only with the SYS_ADMIN capability.
    """
    try:
        lines = dict(line.split(":", 1) for line in parameters.read_text().splitlines() if ":" in line)
        admin_only = lines["RmProfilingAdminOnly"].strip() != "0"
        capabilities = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)["CapEff"]
        return not admin_only or bool(int(capabilities, 16) >> 21 & 1)  # CAP_SYS_ADMIN
    except (OSError, KeyError, ValueError):
        return None


def usable_cores(limit: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """CPU cores that this process may use, by its affinity and its control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = limit.read_text().split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no control group, or no limit ("max")
        return cores


@dataclass(frozen=True)
class GpuState:
    """State of a GPU; NaN for unknown values."""

    clock_mhz: float = math.nan  # of the SMs
    memory_clock_mhz: float = math.nan
    power_w: float = math.nan
    celsius: float = math.nan

    def as_data(self) -> dict[str, float]:
        """Known values only: JSON has no NaN."""
        return {name: value for name, value in asdict(self).items() if not math.isnan(value)}


class Nvml:
    """One GPU by its uuid, or the first one. Errors are not raised: `read` returns NaN."""

    _SM, _MEMORY = 1, 2  # nvmlClockType_t
    _TEMPERATURE_GPU = 0

    def __init__(self, uuid: str = "") -> None:
        self._library: ctypes.CDLL | None = None
        self._handle = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            if library.nvmlInit_v2() != 0:
                return
            name = f"GPU-{uuid.removeprefix('GPU-')}".encode()
            found = uuid and library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(self._handle)) == 0
            if found or library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._handle)) == 0:
                self._library = library
        except (OSError, AttributeError):  # no driver, or a driver without the function
            return

    def read(self) -> GpuState:
        """Current state; takes from some tens of microseconds to a few milliseconds."""
        if self._library is None:
            return GpuState()
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return GpuState(
            clock_mhz=self._number("nvmlDeviceGetClockInfo", self._SM),
            memory_clock_mhz=self._number("nvmlDeviceGetClockInfo", self._MEMORY),
            power_w=milliwatts / 1000.0,
            celsius=self._number("nvmlDeviceGetTemperature", self._TEMPERATURE_GPU),
        )

    @property
    def arch(self) -> int:
        """Compute capability × 10; 0 if unknown."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        query = getattr(self._library, "nvmlDeviceGetCudaComputeCapability", None)
        if query is None or query(self._handle, ctypes.byref(major), ctypes.byref(minor)) != 0:
            return 0
        return 10 * major.value + minor.value

    def _number(self, function: str, *arguments: int) -> float:
        value = ctypes.c_uint()
        try:
            code = getattr(self._library, function)(self._handle, *arguments, ctypes.byref(value))
        except AttributeError:
            return math.nan
        return float(value.value) if code == 0 else math.nan


MOST_WAIT_S = 600.0
"""Longer than any turn takes: then the process that has it was stopped."""
_LOOK_S, _NEXT_LOOK_S = 0.001, 0.005


@contextlib.contextmanager
def turn(uuid: str, ended: Callable[[], bool]) -> Iterator[None]:
    """A GPU for the calling thread alone, among all processes of this user, whose clocks would disturb each other.

    The operating system frees the locks of a process that dies. Only who is next tries for the GPU, so that nobody
    gets it twice while others wait. After MOST_WAIT_S, or where the folder has no locks, it goes on without a lock.
    Raises InfraError once it has `ended`.
    """
    with contextlib.ExitStack() as held:
        with _locked(uuid, "next", _NEXT_LOOK_S, ended):
            held.enter_context(_locked(uuid, "now", _LOOK_S, ended))
        yield


def is_free(uuid: str) -> bool:
    """Whether no process of this user has its turn on the GPU."""
    with _locked(uuid, "now", 0.0, lambda: False) as free:
        return free


def is_wanted(uuid: str) -> bool:
    """Whether another process of this user waits for its turn on the GPU, which the caller has."""
    with _locked(uuid, "next", 0.0, lambda: False) as free:
        return not free


@contextlib.contextmanager
def _locked(uuid: str, name: str, look_s: float, ended: Callable[[], bool]) -> Iterator[bool]:
    """Whether the lock was had, or there is none. `look_s`: between two tries; 0: one try."""
    if not uuid:
        yield True
        return
    try:
        user_cache.folder().mkdir(parents=True, exist_ok=True)
        path = user_cache.folder() / f"{uuid}.{name}{user_cache.LOCK}"
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield True
        return
    try:
        yield _had(file, look_s, ended)
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)  # a child that was forked meanwhile has the file too
        os.close(file)


def _had(file: int, look_s: float, ended: Callable[[], bool]) -> bool:
    until = time.monotonic() + MOST_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not look_s or time.monotonic() > until:
                return False
        except OSError:  # the file system has no locks
            return True
        else:
            return True
        if ended():
            raise InfraError("the GPU runner is closed")
        time.sleep(look_s)
