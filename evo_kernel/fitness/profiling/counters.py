"""Hardware counters: the metrics requested from Nsight Compute, and the parser for its CSV output.

Names are those of ncu's sections on sm_80 to sm_100 (SpeedOfLight, MemoryWorkloadAnalysis, ComputeWorkloadAnalysis,
WarpStateStatistics). They differ between versions and GPUs, so alternatives are listed; unknown ones are dropped
(runners/ncu.py).
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
"""Factor of a unit in bytes or seconds, in lower case; ncu's prefixes are powers of ten. Other units stay."""
_COLUMNS = ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value")


@dataclass(frozen=True)
class CountPart:
    """Request to count one plan on one case, with inputs drawn from `seed`."""

    plan: CompiledPlan
    case: Case
    seed: int


@dataclass(frozen=True)
class CounterReading:
    """Counters by part, then by launch number; or, in `why`, the reason why there are none."""

    parts: tuple[Mapping[int, Mapping[str, float]], ...] = ()
    why: str = ""
    output: str = ""  # the end of ncu's output, if there are no counters

    def of(self, part: int, launch: int) -> Mapping[str, float]:
        """Counters of one launch; empty if it was not counted."""
        return self.parts[part].get(launch, {}) if part < len(self.parts) else {}


@dataclass(frozen=True)
class HardwareCounters:
    """Counters of one launch. Shares are relative to the peak, 0 to 1; None: not counted."""

    read_bytes: float | None  # of device memory
    written_bytes: float | None
    dram: float | None
    l2: float | None
    l2_hits: float | None  # share of requested sectors
    l1: float | None  # L1 and shared memory, one pipe
    sm: float | None  # the busiest unit of an SM
    issue: float | None  # issue slots
    tensor: float | None
    occupancy: float | None  # resident warps ÷ the most that an SM holds
    conflicts: float | None  # bank conflicts ÷ wavefronts of shared memory
    stalls: tuple[tuple[str, float], ...]  # waiting warps by reason, per issue; largest first

    @classmethod
    def of(cls, raw: Mapping[str, float]) -> HardwareCounters:

        def share(*names: str) -> float | None:
            shares = [raw[name] / 100 for name in names if name in raw]
            return max(shares) if shares else None

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
            stalls=tuple(s for s in sorted(stalls, key=lambda s: -s[1])[:TOP_STALLS] if s[1] >= 0.05),
        )  # fmt: skip

    def lines(self, us: float) -> list[str]:
        """Lines of the table; `us` is the launch's time by the judge's clock."""
        lines = []
        if self.read_bytes is not None and self.written_bytes is not None:
            moved = self.read_bytes + self.written_bytes
            lines.append(
                f"  device mem.  {self.read_bytes / 1e6:.1f} MB read, {self.written_bytes / 1e6:.1f} MB written: "
                f"{moved / us / 1e3:.0f} GB/s" + _formatted(", {:.0%} of peak", self.dram)
            )
        shares = [("L2", self.l2), ("L1/shared", self.l1), ("SM", self.sm), ("issue", self.issue),
                  ("tensor", self.tensor)]  # fmt: skip
        cells = [f"{name} {share:.0%}" for name, share in shares if share is not None]
        if cells:
            lines.append("  of peak      " + ", ".join(cells) + _formatted("; {:.0%} of L2 sectors hit", self.l2_hits))
        waits = [f"{name} {warps:.1f}" for name, warps in self.stalls]
        cells = ["warps waiting an issue: " + ", ".join(waits)] if waits else []
        cells += [f"{self.conflicts:.0%} of shared-memory wavefronts are bank conflicts"] if self.conflicts else []
        if cells:
            lines.append("  stalls       " + "; ".join(cells))
        return lines


def _formatted(text: str, value: float | None) -> str:
    return text.format(value) if value is not None else ""


@dataclass(frozen=True)
class CountedKernel:
    """One profiled launch as reported by ncu; counters by name in bytes, seconds, percent or plain numbers."""

    name: str
    values: Mapping[str, float]


def read_csv(text: str) -> list[CountedKernel]:
    """Launches in order from the output of `ncu --csv`; other lines are ignored.

    The header begins with "ID"; a row is one metric of one launch. Values may have thousands separators; "n/a" and the
    like are dropped.
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
        parsed = float(value.replace(",", ""))
    except ValueError:
        return None
    return parsed * _UNITS.get(unit.strip().lower(), 1.0) if math.isfinite(parsed) else None


def unknown_metrics(text: str, requested: Sequence[str]) -> set[str]:
    """Requested metrics that an error or warning of ncu names."""
    warnings = " ".join(line for line in text.splitlines() if re.match(r"==(ERROR|WARNING)==", line))
    words = set(re.findall(r"[A-Za-z0-9_.]+", warnings))
    return {name for name in requested if name in words or name + "." in words or name.split(".")[0] in words}


def medians(rounds: Sequence[CountedKernel]) -> dict[str, float]:
    """The median of every counter over several runs of one launch."""
    values: defaultdict[str, list[float]] = defaultdict(list)
    for run in rounds:
        for name, value in run.values.items():
            values[name].append(value)
    return {name: statistics.median(shares) for name, shares in values.items()}
