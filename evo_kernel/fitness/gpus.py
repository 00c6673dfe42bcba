"""GPUs of this machine as `nvidia-smi` lists them, and usable CPU cores.

Creates no CUDA context, changes no setting.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

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
