"""Ceilings of a GPU (bandwidth, FLOP/s, launch time), and the least time that they allow.

They are measured once per environment with the same clock as kernels: a large copy, large matrix products on random
data (zeros run faster), and an empty launch (runners/timer.py). Where they are not measured, the table of targets is
used. This module imports nothing slow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from evo_kernel.fitness.costmodel.targets import Target

if TYPE_CHECKING:
    from evo_kernel.fitness.timing.measurement_cache import MeasurementCache

NAMES = ("copy_bytes/s", "bf16_flop/s", "tf32_flop/s", "fp32_flop/s", "launch_us", "l2_bytes")
"""Storage names, in the order of the fields; the suffix is the unit."""
CEILINGS = "ceilings"
"""What they are called in the cache."""


@dataclass(frozen=True)
class Ceilings:
    """Rates in bytes or operations per second (a fused multiply-add counts as two), latency in µs."""

    copy_bytes_per_s: float  # read + write, device memory
    bf16_flops: float
    tf32_flops: float
    fp32_flops: float
    launch_us: float  # of each further kernel in a graph
    l2_bytes: float
    measured: bool = False

    def as_data(self) -> dict[str, float]:
        return dict(zip(NAMES, astuple(self), strict=False))  # `measured` has no name

    @classmethod
    def from_data(cls, data: Mapping[str, float]) -> Ceilings | None:
        """Inverse of `as_data`; None if a value is missing or is not a rate."""
        if not all(data.get(name, 0.0) > 0.0 for name in NAMES):
            return None
        return cls(*(float(data[name]) for name in NAMES), measured=True)

    @classmethod
    def of_target(cls, target: Target) -> Ceilings:
        """The table's constants, for machines without that GPU."""
        rates = (target.copy_bytes_per_s, target.bf16_flops, target.tf32_flops, target.fp32_flops)
        return cls(*rates, launch_us=2.0, l2_bytes=float(target.l2_bytes))

    def widened(self, other: Ceilings) -> Ceilings:
        """The higher of each ceiling: a bound that a throttled measurement does not lower."""
        rates = ("copy_bytes_per_s", "bf16_flops", "tf32_flops", "fp32_flops", "l2_bytes")
        return replace(self, **{name: max(getattr(self, name), getattr(other, name)) for name in rates})

    @property
    def text(self) -> str:
        """The ceilings in the units of datasheets."""
        flops = (("bf16", self.bf16_flops), ("tf32", self.tf32_flops), ("fp32", self.fp32_flops))
        rates = ", ".join(f"{name} {rate / 1e12:.0f} TFLOP/s" for name, rate in flops)
        copy = f"copy {self.copy_bytes_per_s / 1e12:.2f} TB/s"
        return f"{copy}, {rates}, launch {self.launch_us:.1f} µs, L2 {self.l2_bytes / 1e6:.0f} MB"

    def light_us(self, flops: float | None, moved: float | None, eight_bits: bool = False) -> float:
        """The time that the work takes at the ceilings: the numerator of the share of light.

        `eight_bits`: operands of products have 8 bits, which tensor cores multiply at twice the rate of bfloat16.
        """
        rate = 2 * self.bf16_flops if eight_bits else max(self.bf16_flops, self.tf32_flops, self.fp32_flops)
        return max((flops or 0.0) / rate, (moved or 0.0) / self.copy_bytes_per_s) * 1e6

    def floor_us(self, flops: float | None, moved: float | None, eight_bits: bool = False) -> float:
        """A lower bound for any kernel's time. Writes are not counted: they may still be in L2 when a kernel ends."""
        return self.light_us(flops, max(0.0, (moved or 0.0) - self.l2_bytes), eight_bits)


class KnownCeilings:
    """Ceilings of this machine: cached ones, else measured once when first needed. Thread-safe."""

    def __init__(
        self, measure: Callable[[], Mapping[str, float]], table: Ceilings, remembered: MeasurementCache | None = None
    ) -> None:
        """`measure` returns nothing without a GPU; then the table is used."""
        self._measure, self._table, self._cache = measure, table, remembered
        self._lock = threading.Lock()
        self._known: Ceilings | None = None
        self._beaten = False

    def know(self, stored: Mapping[str, float]) -> bool:
        """Use ceilings stored for this environment; returns whether they are complete."""
        ceilings = Ceilings.from_data(stored)
        with self._lock:
            self._known = self._known or ceilings
        return ceilings is not None

    @property
    def now(self) -> Ceilings:
        """The ceilings for shares of light. Raises InfraError if they cannot be measured."""
        if (known := self._known) is not None:
            return known
        with self._lock:
            if self._known is None:
                self._known = Ceilings.from_data(self._cached_or_measured()) or self._table
            return self._known

    def measured_again(self, measure: Callable[[], Mapping[str, float]]) -> Ceilings:
        """The ceilings after a kernel beat one: something disturbed their measurement, so it is repeated, once.

        The higher value of each is kept. `measure` uses the caller's own GPU, which may be locked; so nothing is locked
        here meanwhile. Raises InfraError if they cannot be measured.
        """
        with self._lock:
            first, self._beaten = not self._beaten, True
        again = Ceilings.from_data(measure()) if first else None
        if again is not None:
            self._known = again.widened(self.now)
            if self._cache:
                self._cache.add(CEILINGS, self._known.as_data())
        return self.now

    def _cached_or_measured(self) -> Mapping[str, float]:
        """Cached ceilings, or measured now."""
        cached = self._cache.read().get(CEILINGS, {}) if self._cache else {}
        if Ceilings.from_data(cached) is not None:
            return cached
        ceilings = self._measure()
        if self._cache and Ceilings.from_data(ceilings) is not None:
            self._cache.add(CEILINGS, ceilings)
        return ceilings

    @property
    def limits(self) -> Ceilings:
        """Ceilings that no kernel can exceed."""
        return self.now.widened(self._table)
