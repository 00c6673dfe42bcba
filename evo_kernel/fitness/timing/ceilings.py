"""What the GPU at hand can do at most, and how near a kernel comes to it.

The ceilings are measured once an environment (reference_cache.py) by the same clock as kernels (a large copy; large
matrix products on random data, since zeros run faster; an empty-handed launch). Where they were not measured, the
table of targets stands in. What is timed to measure them is in ceiling_benchmarks.py; this module needs no torch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace

from evo_kernel.fitness.costmodel.targets import Target
from evo_kernel.fitness.timing.reference_cache import CEILINGS, Remembered

NAMES = ("copy_bytes/s", "bf16_flop/s", "tf32_flop/s", "fp32_flop/s", "launch_us", "l2_bytes")
"""As they are stored, in the order of the fields: what follows the last underscore is the unit."""


@dataclass(frozen=True)
class Ceilings:
    """Rates in bytes or operations a second (a fused multiply-add is two), latency in µs."""

    copy_bytes_per_s: float  # read + write, device memory
    bf16_flops: float
    tf32_flops: float
    fp32_flops: float
    launch_us: float  # of one more kernel in a graph
    l2_bytes: float
    measured: bool = False

    def as_data(self) -> dict[str, float]:
        """For storage."""
        return dict(zip(NAMES, astuple(self), strict=False))  # `measured` has no name

    @classmethod
    def from_data(cls, data: Mapping[str, float]) -> Ceilings | None:
        """What `as_data` gave; None where something is missing or is no rate."""
        if not all(data.get(name, 0.0) > 0.0 for name in NAMES):
            return None
        return cls(*(float(data[name]) for name in NAMES), measured=True)

    @classmethod
    def of_target(cls, target: Target) -> Ceilings:
        """The table's constants: what a machine without that GPU goes by."""
        rates = (target.copy_bytes_per_s, target.bf16_flops, target.tf32_flops, target.fp32_flops)
        return cls(*rates, launch_us=2.0, l2_bytes=float(target.l2_bytes))

    def widened(self, other: Ceilings) -> Ceilings:
        """The higher of two ceilings each: a bound that a throttled measurement cannot lower."""
        rates = ("copy_bytes_per_s", "bf16_flops", "tf32_flops", "fp32_flops", "l2_bytes")
        return replace(self, **{name: max(getattr(self, name), getattr(other, name)) for name in rates})

    @property
    def text(self) -> str:
        """In the units of datasheets."""
        flops = (("bf16", self.bf16_flops), ("tf32", self.tf32_flops), ("fp32", self.fp32_flops))
        rates = ", ".join(f"{name} {rate / 1e12:.0f} TFLOP/s" for name, rate in flops)
        copy = f"copy {self.copy_bytes_per_s / 1e12:.2f} TB/s"
        return f"{copy}, {rates}, launch {self.launch_us:.1f} µs, L2 {self.l2_bytes / 1e6:.0f} MB"

    def light_us(self, flops: float | None, moved: float | None) -> float:
        """The time that the work takes at the ceilings: what the share of the speed of light is held against."""
        rate = max(self.bf16_flops, self.tf32_flops, self.fp32_flops)
        return max((flops or 0.0) / rate, (moved or 0.0) / self.copy_bytes_per_s) * 1e6

    def floor_us(self, flops: float | None, moved: float | None) -> float:
        """What no kernel can undercut. Writes may still lie in the L2 when a kernel ends, so they are let off."""
        return self.light_us(flops, max(0.0, (moved or 0.0) - self.l2_bytes))


class KnownCeilings:
    """Ceilings of the machine at hand: what an earlier run stored, else measured once, when first asked for.

    Thread-safe.
    """

    def __init__(
        self, measure: Callable[[], Mapping[str, float]], table: Ceilings, remembered: Remembered | None = None
    ) -> None:
        """`measure` gives nothing where there is no GPU: then the table stands in."""
        self._measure, self._table, self._remembered = measure, table, remembered
        self._lock = threading.Lock()
        self._known: Ceilings | None = None

    def know(self, stored: Mapping[str, float]) -> bool:
        """Take what was stored for this very environment; whether it was complete, so that nothing is measured."""
        found = Ceilings.from_data(stored)
        with self._lock:
            self._known = self._known or found
        return found is not None

    @property
    def now(self) -> Ceilings:
        """What shares of the speed of light refer to. Raises InfraError where they cannot be measured."""
        if (known := self._known) is not None:
            return known
        with self._lock:
            if self._known is None:
                self._known = Ceilings.from_data(self._found()) or self._table
            return self._known

    def _found(self) -> Mapping[str, float]:
        """Of an earlier run of whatever command, or measured now."""
        kept = self._remembered.read().get(CEILINGS, {}) if self._remembered else {}
        if Ceilings.from_data(kept) is not None:
            return kept
        found = self._measure()
        if self._remembered and Ceilings.from_data(found) is not None:
            self._remembered.add(CEILINGS, found)
        return found

    @property
    def limits(self) -> Ceilings:
        """What nothing is faster than."""
        return self.now.widened(self._table)
