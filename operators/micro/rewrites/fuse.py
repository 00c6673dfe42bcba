"""`fuse-producer` and `fuse-consumer`: an elementwise kernel joins its neighbour, and the buffer between them goes.

`fuse-producer` also joins a row kernel with the row kernel that reads its numbers or its rows: bodies in turn.

The fused kernel is launched where the consumer was. The value that would have gone through memory is still rounded to
the buffer's dtype, so that a fusion changes where values live and never what they are.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from itertools import chain

from evo_kernel.syntax import parse_module
from evo_kernel.types import Strategy, TaskCard
from operators.micro.host_code import launches_for
from operators.micro.host_values import HostTensor
from operators.micro.kernels import Access, SourceKernel, kernel_of
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite, RewriteFailed, kernel_region, kernels_of
from operators.micro.rewrites.flat import Map, map_of
from operators.micro.rewrites.indices import ROW, index_of, named
from operators.micro.rewrites.join import Join, Pair, pairs, siblings
from operators.micro.rewrites.rows import only_shapes, passes_of
from operators.micro.syntax import copy_of, mapped, names_read, names_written, spell

PLACE = (*ROW, "tl.arange(")
"""How the statements begin that say which elements a program handles."""
DTYPES = {
    "float16": "tl.float16", "bfloat16": "tl.bfloat16", "float32": "tl.float32", "float64": "tl.float64",
    "int32": "tl.int32", "int64": "tl.int64", "int16": "tl.int16", "int8": "tl.int8", "uint8": "tl.uint8",
    "bool": "tl.int1",
}  # fmt: skip


class _Fusion(Rewrite):
    family = "fusion"

    def offers(self, module: KernelModule, task: TaskCard) -> list[Strategy]:
        return self.offered(module, task, pairs(module))

    def offered(self, module: KernelModule, task: TaskCard, among: Iterable[Pair]) -> list[Strategy]:
        dtypes = _dtypes(module, task)
        found = []
        for pair in among:
            dtype = "" if pair.shared else dtypes.get(id(pair.producer.statement), {}).get(pair.out)
            if dtype in ("", *DTYPES) and self.fused(module, pair, dtype) is not None:
                through = (("shared", pair.shared),) if pair.shared else (("buffer", pair.buffer), ("dtype", dtype))
                region = kernel_region(pair.producer.kernel, pair.consumer.kernel)
                found.append(Strategy(self.name, self.family, region, through))
        return found

    def changed(self, module: KernelModule, strategy: Strategy) -> str:
        through = {name: str(value) for name, value in strategy.parameters}
        wanted = (*kernels_of(strategy), through.get("buffer", ""), through.get("shared", ""))
        for pair in chain(pairs(module), siblings(module)):
            if (pair.producer.kernel, pair.consumer.kernel, pair.buffer, pair.shared) == wanted:
                join = self.fused(module, pair, through.get("dtype", "float32"))
                if join is not None:
                    return join.text()
        raise RewriteFailed(
            f"{' and '.join(wanted[:2])} cannot be fused through {wanted[2] or wanted[3]} in this source"
        )

    def fused(self, module: KernelModule, pair: Pair, dtype: str) -> Join | None:
        """What writes the new source; None when the two are no such pair."""
        raise NotImplementedError


class FuseProducer(_Fusion):
    """The consumer computes the producer's values where it loaded them; row kernels of the same rows become one."""

    name = "fuse-producer"

    def offers(self, module: KernelModule, task: TaskCard) -> list[Strategy]:
        """Kernels that read the same tensor only where no buffer can go: what they leave could no longer be fused."""
        found, free = super().offers(module, task), list(siblings(module))
        for others in (found, FuseConsumer().offers(module, task) if free else ()):
            busy = {kernel for one in others for kernel in kernels_of(one)}
            free = [pair for pair in free if not busy & {pair.producer.kernel, pair.consumer.kernel}]
        return found + self.offered(module, task, free)

    def fused(self, module: KernelModule, pair: Pair, dtype: str) -> Join | None:
        if pair.shared:
            return _fused_rows(module, pair, "")
        flat = map_of(module.kernels[pair.producer.kernel])
        kernel = module.kernels[pair.consumer.kernel]
        loads = [a for a in kernel.accesses if a.base == pair.into]
        if any(a.kind != "load" for a in loads):
            return None
        if flat is None or flat.store.base != pair.out:
            return _fused_rows(module, pair, DTYPES[dtype])
        taker = map_of(kernel) if flat.row else None
        if taker is not None and taker.offsets and FuseConsumer().fused(module, pair, dtype) is not None:
            return None  # a flat kernel would divide for its row, and no row kernel could be fused with it
        join = Join(module, pair, keep=kernel, moved=flat.kernel)
        for access in loads:
            body = join.body(flat, [flat.store], access, {})
            if body is None:
                return None
            _inline(join, access, body, DTYPES[dtype])
        return join if join.fits() else None


class FuseConsumer(_Fusion):
    """The producer goes on with the consumer's computation where it stored."""

    name = "fuse-consumer"

    def fused(self, module: KernelModule, pair: Pair, dtype: str) -> Join | None:
        flat = map_of(module.kernels[pair.consumer.kernel])
        kernel = module.kernels[pair.producer.kernel]
        stores = [a for a in kernel.accesses if a.base == pair.out]
        if flat is None or any(a.kind != "store" or not isinstance(a.statement, ast.Expr) for a in stores):
            return None
        loads = [a for a in flat.kernel.accesses if a.base == pair.into]
        join = Join(module, pair, keep=kernel, moved=flat.kernel)
        for access in stores:
            value = join.fresh("produced")
            body = join.body(flat, loads, access, {id(a.call): value for a in loads})
            target = join.address(flat)
            if body is None or target is None or access.value is None:
                return None
            tail = f", mask={spell(access.mask)}" if access.mask is not None else ""
            lines = [f"{value} = ({spell(access.value)}).to({DTYPES[dtype]})", *body[0]]
            lines.append(f"tl.store({target}, {body[1]}{tail})")
            join.edits.append(module.replace(access.statement, "\n".join(lines)))
        return join if join.fits() else None


def _dtypes(module: KernelModule, task: TaskCard) -> dict[int, dict[str, str]]:
    """Launch → parameter → dtype of its tensor, where every case agrees."""
    found: dict[int, dict[str, str]] = {}
    for one in launches_for(module, task):
        mine = found.setdefault(id(one.launch.statement), {})
        for name, value in one.values.items():
            dtype = value.dtype.removeprefix("torch.") if isinstance(value, HostTensor) else "?"
            mine[name] = dtype if mine.get(name, dtype) == dtype else "?"
    return found


def _inline(join: Join, access: Access, body: tuple[list[str], str], dtype: str) -> None:
    """Computes what a load of the kept kernel would have read."""
    lines, value = body
    value = f"({value}).to({dtype})"
    if access.mask is not None and access.other is not None:
        value = f"tl.where({spell(access.mask)}, {value}, {spell(access.other)})"
    join.edits.append(join.module.insert_before(access.statement, "\n".join(lines)))
    join.edits.append(join.module.replace(access.call, value))


def _fused_rows(module: KernelModule, pair: Pair, dtype: str) -> Join | None:
    """Row kernels in turn; None when the kernels are not such a pair."""
    first, second = module.kernels[pair.producer.kernel], module.kernels[pair.consumer.kernel]
    grids = [[spell(g) for g in launch.grid] for launch in (pair.producer, pair.consumer)]
    whole = (first, second) if pair.shared else (first,)
    jumps = any(isinstance(p, ast.Return | ast.If | ast.While) for kernel in whole for p in ast.walk(kernel.node))
    if first is second or jumps or len(grids[0]) != 1 or grids[0] != grids[1]:
        return None
    stores, loads = ([a for a in k.accesses if a.base == end] for k, end in ((first, pair.out), (second, pair.into)))
    number = len(stores) == 1 and not stores[0].loops and all(_at_row(first, a, "store") for a in stores)
    number = number and all(_at_row(second, a, "load") for a in loads)
    store, last = stores[0] if stores else None, first.body[-1]
    end = None if pair.shared else store.statement if number and store is not None else last
    join = Join(module, pair, keep=second, moved=first)
    names = _names(join, first, second, end)
    if names is None or not {*named(first, ROW)} or not {*named(second, ROW)}:
        return None
    kept, lines = _shared(first, second, names), list[str]()
    names = {old: new for old, new in names.items() if old not in kept}
    for statement in first.body:
        if statement is end:
            if number and store is not None and store.value is not None:
                value = join.fresh("row_value")
                lines.append(f"{value} = ({_renamed(store.value, names)}).to({dtype})")
                join.edits += [module.replace(load.call, value) for load in loads]
        elif pair.shared and statement is last and names_read(last) <= {*names, *kept, "tl"}:
            join.edits.append(module.insert_after(second.body[-1], _renamed(last, names)))  # stores part repeated loads
        elif not (names_written(statement) and names_written(statement) <= kept):
            lines.append(_renamed(statement, names))
    if end is last and not number and not _inlined_rows(join, loads, _row_map(first, last, names), dtype):
        return None
    # Behind all shared names of the second kernel, which must not lie behind a load.
    body, tops = second.body, [(*access.loops, access.statement)[0] for access in loads]
    at = max((i for i, s in enumerate(body) if names_written(s) & kept), default=-1) + 1
    places = [next((i for i, s in enumerate(body) if s is top), -1) for top in tops]
    if at > min(places, default=len(body) - 1) or any(isinstance(s, ast.For) for s in body[:at]):
        return None
    join.edits.append(module.insert_before(body[at], "\n".join(lines)))
    return join if join.fits() else None


def _names(join: Join, first: SourceKernel, second: SourceKernel, end: ast.stmt | None) -> dict[str, str] | None:
    """What the names of the first kernel before `end` are called in the second; names that are overwritten stay."""
    mine, theirs, names = passes_of(first), passes_of(second), dict[str, str]()
    for parameter in [p.name for p in first.parameters if p.name != join.pair.out]:
        if parameter not in join.pair.producer.arguments:
            return None
        # The second kernel's block size, where the first may use it as well: its passes then match.
        same = mine is not None and theirs is not None and parameter == mine.block and only_shapes(first, parameter)
        names[parameter] = theirs.block if same and theirs is not None else join.parameter(parameter)
    kept = _shared(first, second, names)
    before = [s for s in first.body if s is not end]
    top = {n for s in before if not isinstance(s, ast.For) for n in names_written(s)}
    inner = {n for s in before if isinstance(s, ast.For) for n in names_written(s)}
    for name in sorted((top | inner) - kept):
        if name in top or len(second.definitions.get(name, ())) == 0 or _is_top(second, name):
            names[name] = join.fresh(name)
    return names


def _row_map(kernel: SourceKernel, last: ast.stmt, names: Mapping[str, str]) -> Map | None:
    """A row kernel's last loop as a map by rows, in which what the kernel computed before has its new name."""
    if not isinstance(last, ast.For):
        return None
    own = names_written(last)
    seen = set[str]()
    for statement in last.body:  # no total is carried from one step to the next, nor from an earlier loop
        if isinstance(statement, ast.AugAssign) or names_read(statement) & (own - seen - names_written(last.target)):
            return None
        seen |= names_written(statement)
    node = copy_of(kernel.node)
    parameters = {p.name for p in kernel.parameters}
    place = [s for s in kernel.body[:-1] if isinstance(s, ast.Assign) and spell(s.value).startswith(PLACE)]
    kept = own | parameters | names_written(*place)
    new = {old: new for old, new in names.items() if old not in kept}
    node.body = [*place, parse_module(_renamed(last, new)).body[0]]
    return map_of(kernel_of(node))


def _inlined_rows(join: Join, loads: list[Access], flat: Map | None, dtype: str) -> bool:
    """Whether the map's values now stand where the second kernel loads the row that is its program's."""
    for access in loads:
        body = join.body(flat, [flat.store], access, {}) if flat is not None and access.kind == "load" else None
        if flat is None or flat.store.base != join.pair.out or body is None or join.row not in named(join.keep, ROW):
            return False
        _inline(join, access, body, dtype)
    return bool(loads)


def _at_row(kernel: SourceKernel, access: Access, kind: str) -> bool:
    """Whether it is an access of that kind, without a mask, to `pointer + row`, the row being the program's."""
    rows = set(named(kernel, ROW)) | set(ROW)
    return access.kind == kind and access.mask is None and index_of(kernel, access) in rows


def _shared(first: SourceKernel, second: SourceKernel, names: dict[str, str]) -> set[str]:
    """Names that both kernels assign once, at the top, with the same value: kept as they are."""
    found: set[str] = set()
    for statement in first.body:
        written = names_written(statement)
        if not isinstance(statement, ast.Assign) or len(written) != 1:
            continue
        name = next(iter(written))
        theirs, mine = second.value_of(name), first.value_of(name)
        reads = {p.id for p in ast.walk(statement.value) if isinstance(p, ast.Name)}
        clear = reads <= found | set(names) | {"tl"} and _is_top(second, name)
        if clear and mine is not None and theirs is not None and "tl.load" not in spell(theirs):
            found |= written if _renamed(mine, names) == spell(theirs) else set()
    return found


def _is_top(kernel: SourceKernel, name: str) -> bool:
    return any(name in names_written(s) for s in kernel.body if not isinstance(s, ast.For))


def _renamed(node: ast.AST, names: dict[str, str]) -> str:
    def change(part: ast.AST) -> ast.Name | None:
        return ast.Name(names.get(part.id, part.id), part.ctx) if isinstance(part, ast.Name) else None

    return spell(mapped(node, change))
