"""Hardware counters of launches: which ones are asked of Nsight Compute, and what its CSV says.

Names are those of ncu's own sections on sm_80 to sm_100 (SpeedOfLight, MemoryWorkloadAnalysis,
ComputeWorkloadAnalysis, WarpStateStatistics). Versions and GPUs differ in a few: several that say the same stand side
by side, and what a version does not know is left out (runners/ncu.py).
"""

from __future__ import annotations

import csv
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evo_kernel.fitness.plan.launch_plan import CompiledPlan
from evo_kernel.tasks.task import Case

_DRAM_SHARE = (
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
_TENSOR_SHARE = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_active",
)
_STALLS = (
    "barrier", "branch_resolving", "dispatch_stall", "drain", "gmma", "imc_miss", "lg_throttle", "long_scoreboard",
    "math_pipe_throttle", "membar", "mio_throttle", "no_instruction", "not_selected", "short_scoreboard", "sleeping",
    "tex_throttle", "wait",
)  # fmt: skip
_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"

METRICS = (
    "gpu__time_duration.sum",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    *_DRAM_SHARE,
    "lts__t_sector_hit_rate.pct",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_issued.avg.pct_of_peak_sustained_active",
    *_TENSOR_SHARE,
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    _CONFLICTS,
    _WAVEFRONTS,
    *(_STALL.format(name) for name in _STALLS),
)
TOP_STALLS = 3

_UNITS = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12,
          "nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3, "ms": 1e-3, "second": 1.0,
          "s": 1.0}  # fmt: skip
"""What one of a unit is in bytes or seconds, lower case; ncu's prefixes are powers of ten. Others stay as they are."""
_COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")


@dataclass(frozen=True)
class CountPart:
    """One plan to count on one case, with inputs drawn from `seed`."""

    plan: CompiledPlan
    case: Case
    seed: int


@dataclass(frozen=True)
class CounterReading:
    """Counters by part, then by launch number; or `why` there are none, in one sentence."""

    parts: tuple[Mapping[int, Mapping[str, float]], ...] = ()
    why: str = ""
    said: str = ""  # the end of what ncu printed, where there are none

    def of(self, part: int, launch: int) -> Mapping[str, float]:
        """Empty where it was not counted."""
        return self.parts[part].get(launch, {}) if part < len(self.parts) else {}


@dataclass(frozen=True)
class HardwareCounters:
    """Counters of one launch in the words of a kernel engineer. Shares are of the peak, 0 to 1; None: not counted."""

    read_bytes: float | None  # of device memory
    written_bytes: float | None
    dram: float | None
    l2: float | None
    l2_hits: float | None  # of the sectors asked of it
    l1: float | None  # L1 and shared memory, one pipe
    sm: float | None  # the busiest of an SM's parts
    issue: float | None  # issue slots
    tensor: float | None
    occupancy: float | None  # warps that were resident ÷ what an SM holds
    conflicts: float | None  # bank conflicts ÷ wavefronts of shared memory
    stalls: tuple[tuple[str, float], ...]  # warps that wait, by reason, an issue; the largest first

    @classmethod
    def of(cls, raw: Mapping[str, float]) -> HardwareCounters:
        """From counters by ncu's names."""

        def share(*names: str) -> float | None:
            found = [raw[name] / 100 for name in names if name in raw]
            return max(found) if found else None

        waves, conflicts = raw.get(_WAVEFRONTS), raw.get(_CONFLICTS)
        stalls = [(name, raw.get(_STALL.format(name), 0.0)) for name in _STALLS]
        return cls(
            read_bytes=raw.get("dram__bytes_read.sum"), written_bytes=raw.get("dram__bytes_write.sum"),
            dram=share(*_DRAM_SHARE), l2=share("lts__throughput.avg.pct_of_peak_sustained_elapsed"),
            l2_hits=share("lts__t_sector_hit_rate.pct"),
            l1=share("l1tex__throughput.avg.pct_of_peak_sustained_active"),
            sm=share("sm__throughput.avg.pct_of_peak_sustained_elapsed"),
            issue=share("sm__inst_issued.avg.pct_of_peak_sustained_active"), tensor=share(*_TENSOR_SHARE),
            occupancy=share("sm__warps_active.avg.pct_of_peak_sustained_active"),
            conflicts=conflicts / waves if waves and conflicts is not None else None,
            stalls=tuple(one for one in sorted(stalls, key=lambda one: -one[1])[:TOP_STALLS] if one[1] >= 0.05),
        )  # fmt: skip

    def lines(self, us: float) -> list[str]:
        """For the table; `us` is the launch's own time, by the judge's clock."""
        lines = []
        if self.read_bytes is not None and self.written_bytes is not None:
            moved = self.read_bytes + self.written_bytes
            lines.append(
                f"  device mem.  {self.read_bytes / 1e6:.1f} MB read, {self.written_bytes / 1e6:.1f} MB written: "
                f"{moved / us / 1e3:.0f} GB/s" + _said(", {:.0%} of peak", self.dram)
            )
        shares = [("L2", self.l2), ("L1/shared", self.l1), ("SM", self.sm), ("issue", self.issue),
                  ("tensor", self.tensor)]  # fmt: skip
        told = [f"{name} {share:.0%}" for name, share in shares if share is not None]
        if told:
            lines.append("  of peak      " + ", ".join(told) + _said("; {:.0%} of L2 sectors hit", self.l2_hits))
        waits = [f"{name} {warps:.1f}" for name, warps in self.stalls]
        told = ["warps waiting an issue: " + ", ".join(waits)] if waits else []
        told += [f"{self.conflicts:.0%} of shared-memory wavefronts are bank conflicts"] if self.conflicts else []
        if told:
            lines.append("  stalls       " + "; ".join(told))
        return lines


def _said(text: str, value: float | None) -> str:
    return text.format(value) if value is not None else ""


@dataclass(frozen=True)
class CountedKernel:
    """One profiled launch as ncu reports it, counters by name in bytes, seconds, percent or plain numbers."""

    name: str
    values: Mapping[str, float]


def read_csv(text: str) -> list[CountedKernel]:
    """Launches in order from what `ncu --csv` printed, other lines of it and of the program ignored.

    The header begins with "ID"; a row is one metric of one launch. Values may have thousands separators; "n/a" and the
    like are left out.
    """
    rows: dict[int, tuple[str, dict[str, float]]] = {}
    header: list[str] = []
    for line in text.splitlines():
        if not line.startswith('"'):
            continue
        fields = next(csv.reader([line]), [])
        if fields[:1] == ["ID"]:
            header = fields
        elif header and len(fields) == len(header):
            row = dict(zip(header, fields, strict=True))
            if all(column in row for column in _COLUMNS) and row["ID"].isdecimal():
                _, values = rows.setdefault(int(row["ID"]), (row["Kernel Name"], {}))
                value = _number(row["Metric Value"], row["Metric Unit"])
                if value is not None and row["Metric Name"]:
                    values[row["Metric Name"]] = value
    return [CountedKernel(*rows[number]) for number in sorted(rows)]


def _number(value: str, unit: str) -> float | None:
    try:
        found = float(value.replace(",", ""))
    except ValueError:
        return None
    return found * _UNITS.get(unit.strip().lower(), 1.0) if math.isfinite(found) else None


def unknown_metrics(text: str, asked: Sequence[str]) -> set[str]:
    """Those of the metrics asked for that an error or a warning of ncu names."""
    said = " ".join(line for line in text.splitlines() if re.match(r"==(ERROR|WARNING)==", line))
    words = set(re.findall(r"[A-Za-z0-9_.]+", said))
    return {name for name in asked if name in words or name + "." in words or name.split(".")[0] in words}


def medians(rounds: Sequence[CountedKernel]) -> dict[str, float]:
    """The middle value of every counter over several runs of one launch."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for one in rounds:
        for name, value in one.values.items():
            values[name].append(value)
    return {name: statistics.median(found) for name, found in values.items()}
