"""What the GPU at hand can do at most, and how near a kernel comes to it.

The ceilings are measured once an environment by the same clock as kernels (a large copy; large matrix products on
random data, since zeros run faster; an empty-handed launch) and stored. Where they were not measured, the table of
targets stands in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from evo_kernel.fitness.targets import Target

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
        return {
            "copy_bytes/s": self.copy_bytes_per_s,
            "bf16_flop/s": self.bf16_flops,
            "tf32_flop/s": self.tf32_flops,
            "fp32_flop/s": self.fp32_flops,
            "launch_us": self.launch_us,
            "l2_bytes": self.l2_bytes,
        }

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

    def __init__(self, measure: Callable[[], Mapping[str, float]], table: Ceilings) -> None:
        """`measure` gives nothing where there is no GPU: then the table stands in."""
        self._measure, self._table = measure, table
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
        with self._lock:
            if self._known is None:
                self._known = Ceilings.from_data(self._measure()) or self._table
            return self._known

    @property
    def limits(self) -> Ceilings:
        """What nothing is faster than."""
        return self.now.widened(self._table)


@dataclass(frozen=True)
class Bench:
    """One thing to time: `amount` of its unit are done by one call of `work`."""

    name: str  # a name of `Ceilings.as_data`
    amount: float
    work: Callable[[], object]

    def value(self, us: float) -> float:
        """The ceiling that a time means: amount a second, or µs apiece for latencies."""
        return us / self.amount if self.name.endswith("_us") else self.amount / (us * 1e-6)


LAUNCHES = 64


def benches(device: str, copy_bytes: int = 1 << 30, side: int = 8192) -> list[Callable[[], Bench]]:
    """Makers of the benches, one at a time so that each frees its memory before the next."""

    def copy() -> Bench:
        source = torch.randn(copy_bytes // 4, device=device)
        target = torch.empty_like(source)
        # An elementwise kernel, not `copy_`: the driver's device-to-device copy reaches two thirds of its rate.
        return Bench("copy_bytes/s", 2.0 * copy_bytes, lambda: torch.neg(source, out=target))

    def product(name: str, dtype: torch.dtype, n: int, tf32: bool) -> Callable[[], Bench]:
        def make() -> Bench:
            left, right = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
            out = torch.empty(n, n, device=device, dtype=dtype)

            def work() -> None:
                before = torch.backends.cuda.matmul.allow_tf32
                torch.backends.cuda.matmul.allow_tf32 = tf32
                try:
                    torch.mm(left, right, out=out)
                finally:
                    torch.backends.cuda.matmul.allow_tf32 = before

            return Bench(name, 2.0 * n**3, work)

        return make

    def launches() -> Bench:
        one = torch.zeros(1, device=device)

        def work() -> None:
            for _ in range(LAUNCHES):
                one.add_(1.0)

        return Bench("launch_us", LAUNCHES, work)

    half = max(1, side // 2)
    return [
        copy,
        product("bf16_flop/s", torch.bfloat16, side, False),
        product("tf32_flop/s", torch.float32, half, True),
        product("fp32_flop/s", torch.float32, half, False),
        launches,
    ]
