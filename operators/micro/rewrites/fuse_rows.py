"""A row kernel that leaves one number a row, and the row kernel that reads it, as one kernel: bodies in turn."""

from __future__ import annotations

import ast

from operators.micro.kernels import Access, SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.indices import ROW, index_of, named
from operators.micro.rewrites.join import Join, Pair
from operators.micro.rewrites.rows import only_shapes, passes_of
from operators.micro.syntax import fresh_name, mapped, names_written, spell


def fused_rows(module: KernelModule, pair: Pair, dtype: str) -> str | None:
    """The new source, or None when the kernels are not such a pair."""
    first, second = module.kernels[pair.producer.kernel], module.kernels[pair.consumer.kernel]
    if first is second or not _same_grid(pair.producer, pair.consumer):
        return None
    store, load = _single(first, pair.out, "store"), _single(second, pair.into, "load")
    if store is None or load is None or store.mask is not None or load.mask is not None or store.value is None:
        return None
    if any(isinstance(p, ast.Return | ast.If | ast.While) for p in ast.walk(first.node)):
        return None
    return _Rows(module, pair, first, second).text(store, load, dtype)


def _same_grid(first: SourceLaunch, second: SourceLaunch) -> bool:
    return len(first.grid) == 1 and [spell(g) for g in first.grid] == [spell(g) for g in second.grid]


def _single(kernel: SourceKernel, pointer: str, kind: str) -> Access | None:
    """The only access to the pointer, at `pointer + row` outside all loops, the row being the program's."""
    found = [a for a in kernel.accesses if a.base == pointer]
    if len(found) != 1 or found[0].kind != kind or found[0].loops:
        return None
    rows = set(named(kernel, ROW)) | set(ROW)
    return found[0] if index_of(kernel, found[0]) in rows else None


class _Rows:
    def __init__(self, module: KernelModule, pair: Pair, first: SourceKernel, second: SourceKernel) -> None:
        self.module, self.first, self.second = module, first, second
        self.join = Join(module, pair, keep=second, moved=first)
        self.pair = pair

    def text(self, store: Access, load: Access, dtype: str) -> str | None:
        join, first, second = self.join, self.first, self.second
        names: dict[str, str] = {}
        for parameter in first.parameters:
            if parameter.name == self.pair.out:
                continue
            if parameter.name not in self.pair.producer.arguments:
                return None
            names[parameter.name] = self._block(parameter.name) or join.parameter(parameter.name)
        kept = self._shared(names)
        top = {n for s in first.body if not isinstance(s, ast.For) for n in names_written(s)}
        inner = {n for s in first.body if isinstance(s, ast.For) for n in names_written(s)}
        for name in sorted(top | inner):
            carried = name in top or len(second.definitions.get(name, ())) == 0 or _is_top(second, name)
            if carried and name not in kept:
                names[name] = fresh_name(name, join.taken)
                join.taken.add(names[name])
        value, lines = join.fresh("row_value"), []
        for statement in first.body:
            if statement is store.statement:
                assert store.value is not None
                lines.append(f"{value} = ({_renamed(store.value, names)}).to({dtype})")
            elif not (names_written(statement) and names_written(statement) <= kept):
                lines.append(_renamed(statement, names))
        position = self._after_shared(kept, load)
        if position is None:
            return None
        join.edits.append(self.module.insert_before(position, "\n".join(lines)))
        join.edits.append(self.module.replace(load.call, value))
        return join.text()

    def _block(self, name: str) -> str | None:
        """The second kernel's block size, where the first may use it as well: its passes then match."""
        mine, theirs = passes_of(self.first), passes_of(self.second)
        if mine is None or theirs is None or name != mine.block or not only_shapes(self.first, name):
            return None
        self.join.added.pop(name, None)
        return theirs.block

    def _shared(self, names: dict[str, str]) -> set[str]:
        """Names that both kernels assign once, at the top, with the same value: kept as they are."""
        found: set[str] = set()
        for statement in self.first.body:
            written = names_written(statement)
            if not isinstance(statement, ast.Assign) or len(written) != 1:
                continue
            name = next(iter(written))
            theirs = self.second.value_of(name)
            mine = self.first.value_of(name)
            reads = {p.id for p in ast.walk(statement.value) if isinstance(p, ast.Name)}
            clear = reads <= found | set(names) | {"tl"} and _is_top(self.second, name)
            clear = clear and mine is not None and theirs is not None and "tl.load" not in spell(theirs)
            if clear and mine is not None and theirs is not None and _renamed(mine, names) == spell(theirs):
                found.add(name)
        return found

    def _after_shared(self, kept: set[str], load: Access) -> ast.stmt | None:
        """The first statement of the second kernel behind all shared names, which must not lie behind the load."""
        body = self.second.body
        last = max((i for i, s in enumerate(body) if names_written(s) & kept), default=-1)
        place = next((i for i, s in enumerate(body) if s is load.statement), None)
        if place is None or last + 1 > place or any(isinstance(s, ast.For) for s in body[: last + 1]):
            return None
        return body[last + 1]


def _is_top(kernel: SourceKernel, name: str) -> bool:
    return any(name in names_written(s) for s in kernel.body if not isinstance(s, ast.For))


def _renamed(node: ast.AST, names: dict[str, str]) -> str:
    def change(part: ast.AST) -> ast.Name | None:
        return ast.Name(names.get(part.id, part.id), part.ctx) if isinstance(part, ast.Name) else None

    return spell(mapped(node, change))
