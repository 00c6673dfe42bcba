"""Benchmarks that measure the ceilings of a GPU; see ceilings.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class CeilingBenchmark:
    """One benchmark: a call of `work` does `amount` units."""

    name: str  # a name of `Ceilings.as_data`
    amount: float
    work: Callable[[], object]

    def value(self, us: float) -> float:
        """The ceiling for a time: units per second, or µs per unit for latencies."""
        return us / self.amount if self.name.endswith("_us") else self.amount / (us * 1e-6)


LAUNCHES = 64


def benches(device: str, copy_bytes: int = 1 << 30, side: int = 8192) -> list[Callable[[], CeilingBenchmark]]:
    """Constructors of the benchmarks, called one at a time so that each frees its memory before the next."""

    def copy() -> CeilingBenchmark:
        source = torch.randn(copy_bytes // 4, device=device)
        target = torch.empty_like(source)
        # An elementwise kernel, because the driver's device-to-device copy (`copy_`) reaches two thirds of its rate.
        return CeilingBenchmark("copy_bytes/s", 2.0 * copy_bytes, lambda: torch.neg(source, out=target))

    def product(name: str, dtype: torch.dtype, n: int, tf32: bool) -> Callable[[], CeilingBenchmark]:
        def make() -> CeilingBenchmark:
            left, right = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
            out = torch.empty(n, n, device=device, dtype=dtype)

            def work() -> None:
                before = torch.backends.cuda.matmul.allow_tf32
                torch.backends.cuda.matmul.allow_tf32 = tf32
                try:
                    torch.mm(left, right, out=out)
                finally:
                    torch.backends.cuda.matmul.allow_tf32 = before

            return CeilingBenchmark(name, 2.0 * n**3, work)

        return make

    def launches() -> CeilingBenchmark:
        one = torch.zeros(1, device=device)

        def work() -> None:
            for _ in range(LAUNCHES):
                one.add_(1.0)

        return CeilingBenchmark("launch_us", LAUNCHES, work)

    half = max(1, side // 2)
    return [
        copy,
        product("bf16_flop/s", torch.bfloat16, side, False),
        product("tf32_flop/s", torch.float32, half, True),
        product("fp32_flop/s", torch.float32, half, False),
        launches,
    ]
