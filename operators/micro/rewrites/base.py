"""What a rewrite is: it offers strategies on a parsed source, and carries one out; the new text is tidied."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from evo_kernel.types import Strategy, TaskCard
from operators.micro.host_code import live_kernels
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.syntax import called, names_read, names_written, statements
from operators.micro.text import Edit, wrapped

LONGEST = 120  # characters a line
PURE = (
    "tl.exp", "tl.exp2", "tl.log", "tl.log2", "tl.sqrt", "tl.rsqrt", "tl.abs", "tl.where", "tl.maximum", "tl.minimum",
    "tl.sigmoid", "tl.fma", "tl.floor", "tl.ceil", "tl.cos", "tl.sin", "tl.erf", "tl.clamp", "tl.zeros", "tl.full",
    "tl.load", "tl.arange", "tl.program_id", "tl.num_programs", "tl.sum", "tl.max", "tl.min", "tl.reduce",
    "tl.cdiv", "tl.dot", "tl.trans", "tl.broadcast_to", "tl.cast", "float", "min", "max",
)  # fmt: skip


def tidied(text: str, before: KernelModule) -> str:
    """The text without dead assignments in new kernels, and without overlong heads and launches."""
    old = {before.source_of(kernel.node) for kernel in before.kernels.values()}
    while True:  # a dead name may keep another alive inside a loop
        module = KernelModule.parse(text)
        new = [k for k in module.kernels.values() if module.source_of(k.node) not in old]
        dead = [(kernel, list(_dead(kernel.body, set()))) for kernel in new]
        edits = [module.delete(s) for kernel, found in dead for s in found if _keeps_one(kernel.node.body, s, found)]
        if not edits:
            break
        text = module.edited(edits)
    return module.edited(list(_heads(module)), list(_launches(module, before)))


def _dead(body: Sequence[ast.stmt], live: set[str]) -> Iterator[ast.stmt]:
    """Assignments whose names are overwritten, or not read, before the end; `live` becomes what the suite needs."""
    for statement in reversed(body):
        if isinstance(statement, ast.For | ast.While):
            live |= names_read(statement)  # an earlier step may have written what a later one reads
            yield from _dead(statement.body, set(live))
        elif not isinstance(statement, ast.Assign):
            live |= names_read(statement)
        elif names_written(statement) & live or not _is_pure(statement):
            live -= names_written(statement)
            live |= names_read(statement)
        else:
            yield statement


def _is_pure(statement: ast.Assign) -> bool:
    """Whether a plain assignment does nothing but give names values."""
    calls = [part for part in ast.walk(statement.value) if isinstance(part, ast.Call)]
    plain = all(called(c) in PURE or (isinstance(c.func, ast.Attribute) and c.func.attr == "to") for c in calls)
    return plain and all(isinstance(target, ast.Name) for target in statement.targets)


def _keeps_one(body: list[ast.stmt], dead: ast.stmt, found: list[ast.stmt]) -> bool:
    """Whether the suite keeps a statement that is not `found` dead, and the dead one's lines are its own."""
    suites = [body, *[s.body for s in statements(body) if isinstance(s, ast.For | ast.While)]]
    suite = next(suite for suite in suites if any(s is dead for s in suite))
    lines = range(dead.lineno, (dead.end_lineno or dead.lineno) + 1)
    alone = all(s is dead or (s.lineno not in lines and s.end_lineno not in lines) for s in suite)
    return alone and any(s not in found for s in suite)


def _heads(module: KernelModule) -> Iterator[Edit]:
    lines = module.text.splitlines()
    for kernel in module.kernels.values():
        node, first = kernel.node, kernel.node.body[0]
        head = lines[node.lineno - 1 : first.lineno - 1]
        if not head or max(map(len, head)) <= LONGEST or any("#" in line for line in head):
            continue
        if node.args.kwonlyargs or node.args.posonlyargs or node.args.vararg or node.returns is not None:
            continue
        start = sum(len(line) for line in module.text.splitlines(keepends=True)[: node.lineno - 1])
        text = f"def {node.name}(\n{wrapped(_parameters(node.args))}\n):"
        if head[-1].rstrip().endswith(":"):
            yield Edit(start, start + len("\n".join(head)), text)


def _parameters(arguments: ast.arguments) -> list[str]:
    missing = len(arguments.args) - len(arguments.defaults)
    tails = [""] * missing + [f"={ast.unparse(default)}" for default in arguments.defaults]
    return [ast.unparse(a) + tail for a, tail in zip(arguments.args, tails, strict=True)]


def _launches(module: KernelModule, before: KernelModule) -> Iterator[Edit]:
    lines, old = module.text.splitlines(), set(before.text.splitlines())
    for launch in module.launches:
        call, statement = launch.call, launch.statement
        mine = lines[statement.lineno - 1 : statement.end_lineno]
        long = [line for line in mine if len(line) > LONGEST and line not in old]
        if not long or any("#" in line for line in mine) or not isinstance(statement, ast.Expr):
            continue
        words = [module.source_of(a) for a in call.args]
        words += [f"{k.arg}={module.source_of(k.value)}" for k in call.keywords if k.arg is not None]
        if len(words) != len(call.args) + len(call.keywords) or any("\n" in word for word in words):
            continue
        yield module.replace(statement, f"{module.source_of(call.func)}(\n{wrapped(words, statement.col_offset)}\n)")


class RewriteFailed(Exception):
    """The strategy cannot be carried out on this source: the message says which precondition does not hold."""


class Rewrite:
    """One source transformation, tied to a strategy of the catalogue. Stateless and thread-safe.

    A subclass finds what it works on in a kernel (`find`) and makes a new source of it (`rewrite`).
    """

    name = ""
    family = ""
    lacks = ""  # what follows the kernel's name in the error, where nothing is found
    form = ""  # the strategy's parameter, where there are several ways to rewrite one kernel; the usual way may be ""

    def offers(self, module: KernelModule, task: TaskCard) -> list[Strategy]:
        """Every place where it applies, in text order; empty when the preconditions fail. Must not raise."""
        return [
            Strategy(
                self.name, self.family, self.region(kernel, form), ((self.form, form),) if self.form and form else ()
            )
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
