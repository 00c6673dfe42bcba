"""`cache-hints`: says of loads and stores how soon their lines are needed again.

Results are not read back (`.cs`: stream); what another pass of the same program reads again should stay
(`evict_last`), and go after its last use (`evict_first`); what every program reads (weights) should stay.
"""

from __future__ import annotations

import ast

from evo_kernel.types import TaskCard
from operators.micro.edits import Edit
from operators.micro.kernels import Access, SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.rewrites.grids import followed


class CacheHints(Rewrite):
    name, family, form = "cache-hints", "memory", "on"
    lacks = "has a hint at every access already"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> tuple[str, ...]:
        return ("loads", "stores")

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[Edit]:
        return _edits(module, kernel, form or "stores")


def _edits(module: KernelModule, kernel: SourceKernel, kind: str) -> list[Edit]:
    if kind == "stores":
        plain = [a for a in kernel.accesses if a.kind == "store" and not _hinted(a)]
        return [module.add_arguments(a.call, "cache_modifier='.cs'") for a in plain]
    edits = []
    for access in kernel.accesses:
        if access.kind == "load" and access.base is not None and not _hinted(access) and _is_block(kernel, access):
            policy = "evict_first" if _last_use(kernel, access) else "evict_last"
            edits.append(module.add_arguments(access.call, f"eviction_policy='{policy}'"))
    return edits


def _hinted(access: Access) -> bool:
    return any(k.arg in ("eviction_policy", "cache_modifier", "volatile") for k in access.call.keywords)


def _is_block(kernel: SourceKernel, access: Access) -> bool:
    """Whether a whole block is read: a hint on a single number changes nothing."""
    return "arange" in _closure(kernel, access.pointer)


def _last_use(kernel: SourceKernel, access: Access) -> bool:
    """Whether this program reads the line for the last time, and no other program wants it."""
    same = [a for a in kernel.accesses if a.kind == "load" and a.base == access.base]
    own = "program_id" in _closure(kernel, access.pointer)
    in_dot = bool(kernel.calls("tl.dot"))
    return own and not in_dot and same[-1] is access


def _closure(kernel: SourceKernel, node: ast.AST) -> set[str]:
    """Attribute names (`arange`, `program_id`) that an address is computed with, through every definition."""
    parts = (p for part in followed(kernel, node) for p in ast.walk(part))
    return {part.attr for part in parts if isinstance(part, ast.Attribute)}
