"""What a rewrite is: it offers strategies on a parsed source, and carries one out."""

from __future__ import annotations

from typing import Protocol

from evo_kernel.types import Strategy, TaskCard
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule

FAMILIES = ("tiling", "fusion", "pipeline", "reordering", "memory", "launch", "algorithm", "repair")


class RewriteFailed(Exception):
    """The strategy cannot be carried out on this source: the reason says which precondition does not hold."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Rewrite(Protocol):
    """One source transformation, tied to a strategy of the catalogue. Stateless and thread-safe."""

    name: str

    def offers(self, module: KernelModule, task: TaskCard) -> list[Strategy]:
        """Every place where it applies, in text order; empty when the preconditions fail. Must not raise."""
        ...

    def apply(self, module: KernelModule, strategy: Strategy) -> str:
        """The new source text. Raises RewriteFailed."""
        ...


def kernel_region(*names: str) -> str:
    """`kernel a_kernel`, or `kernel a_kernel -> b_kernel` for a pair."""
    return "kernel " + " -> ".join(names)


def kernels_of(strategy: Strategy) -> tuple[str, ...]:
    """The kernel names in a strategy's region (what follows a comma is detail)."""
    return tuple(strategy.region.removeprefix("kernel ").split(",")[0].split(" -> "))


def kernel_of(module: KernelModule, strategy: Strategy) -> SourceKernel:
    """The first kernel of the region. Raises RewriteFailed when the source has it no more."""
    name = kernels_of(strategy)[0]
    if name not in module.kernels:
        raise RewriteFailed(f"the source has no kernel {name}; offer again on the new source")
    return module.kernels[name]


def parameter(strategy: Strategy, name: str, default: str | int = "") -> str | int:
    return dict(strategy.parameters).get(name, default)
