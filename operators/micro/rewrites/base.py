"""What a rewrite is: it offers strategies on a parsed source, and carries one out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evo_kernel.types import Strategy, TaskCard
from operators.micro.host_code import live_kernels
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.tidy import tidied


class RewriteFailed(Exception):
    """The strategy cannot be carried out on this source: the message says which precondition does not hold."""


class Rewrite:
    """One source transformation, tied to a strategy of the catalogue. Stateless and thread-safe.

    A subclass finds what it works on in a kernel (`find`) and makes a new source of it (`rewrite`).
    """

    name = ""
    family = ""
    lacks = ""  # what follows the kernel's name in the error, where nothing is found
    form = ""  # the strategy's parameter, where there are several ways to rewrite one kernel

    def offers(self, module: KernelModule, task: TaskCard) -> list[Strategy]:
        """Every place where it applies, in text order; empty when the preconditions fail. Must not raise."""
        return [
            Strategy(self.name, self.family, self.region(kernel, form), ((self.form, form),) if self.form else ())
            for kernel in self.kernels(module, task)
            for form in self.forms(module, kernel, task)
            if (found := self.find(module, kernel, form)) and self.pays(module, kernel, task, found)
        ]

    def apply(self, module: KernelModule, strategy: Strategy) -> str:
        """The new source text, fit to be read. Raises RewriteFailed, SourceError."""
        return tidied(self.changed(module, strategy), module)

    def changed(self, module: KernelModule, strategy: Strategy) -> str:
        """The new source text as it was put together. Raises RewriteFailed."""
        name = kernels_of(strategy)[0]
        if name not in module.kernels:
            raise RewriteFailed(f"the source has no kernel {name}; offer again on the new source")
        found = self.find(module, module.kernels[name], self.form_of(strategy))
        if not found:
            raise RewriteFailed(f"{name} {self.lacks}")
        return self.rewrite(module, module.kernels[name], found)

    def kernels(self, module: KernelModule, task: TaskCard) -> list[SourceKernel]:
        return live_kernels(module, task)

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> Iterable[Any]:
        return ("",)

    def region(self, kernel: SourceKernel, form: Any) -> str:
        return kernel_region(kernel.name)

    def form_of(self, strategy: Strategy) -> Any:
        return dict(strategy.parameters).get(self.form, "")

    def find(self, module: KernelModule, kernel: SourceKernel, form: Any) -> Any:
        """What `rewrite` needs to know of the kernel; something false where the preconditions fail."""
        raise NotImplementedError

    def pays(self, module: KernelModule, kernel: SourceKernel, task: TaskCard, found: Any) -> bool:
        """Whether the task's cases are such that it can be of use, as far as can be told."""
        return True

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: Any) -> str:
        """The new source. Without one of its own, a rewrite finds edits."""
        return module.edited(found)


def kernel_region(*names: str) -> str:
    """`kernel a_kernel`, or `kernel a_kernel -> b_kernel` for a pair."""
    return "kernel " + " -> ".join(names)


def kernels_of(strategy: Strategy) -> tuple[str, ...]:
    """The kernel names in a strategy's region (what follows a comma is detail)."""
    return tuple(strategy.region.removeprefix("kernel ").split(",")[0].split(" -> "))
