"""Fusing two launches: which pairs may be fused, and the text of the fused kernel and of the new `run`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from evo_kernel.syntax import parse_expression, parse_module
from operators.micro.kernels import Access, SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import tidied
from operators.micro.rewrites.flat import Map, Place, inlined_body, needed_by
from operators.micro.rewrites.grids import arguments_in_order
from operators.micro.rewrites.indices import (
    ROW,
    host_spelling,
    index_of,
    named,
    opened_index,
    rejoined,
    terms_of,
    whole_index_of,
)
from operators.micro.syntax import called, fresh_name, names_read, spell, statements, substitute
from operators.micro.text import Edit


@dataclass(frozen=True, eq=False)
class Pair:
    """Two launches with a buffer between them; or without one, that read the same tensor (`shared`)."""

    producer: SourceLaunch
    consumer: SourceLaunch
    buffer: str = ""
    out: str = ""  # the producer's parameter that is the buffer
    into: str = ""  # the consumer's
    shared: str = ""


def pairs(module: KernelModule) -> Iterator[Pair]:
    """Launches of one suite where the second reads a buffer that the first wrote, and nothing between them minds if
    the first runs as late as the second."""
    for number, producer in enumerate(module.launches):
        written = module.tensors(producer, "store")
        for consumer in module.launches[number + 1 :]:
            if consumer.block is not producer.block:
                continue
            read = module.tensors(consumer, "load")
            for out, buffer in written.items():
                into = [p for p, root in read.items() if root == buffer]
                ends = [producer.arguments[out], *[consumer.arguments[p] for p in into]]
                whole = (
                    buffer in module.host_of(producer.call).buffers
                    and len(into) == 1
                    and all(module.is_whole(end) for end in ends)
                )
                if whole and _movable(module, producer, consumer, buffer):
                    yield Pair(producer, consumer, buffer, out, into[0])


def siblings(module: KernelModule) -> Iterator[Pair]:
    """Launches of one suite that read the same tensor in loops and nothing of each other's, where nothing between them
    minds if the first runs as late as the second."""
    for number, first in enumerate(module.launches):
        for second in module.launches[number + 1 :]:
            if second.block is first.block and _movable(module, first, second):
                both = _in_loops(module, first) & _in_loops(module, second)
                yield from (Pair(first, second, shared=root) for root in sorted(both)[:1])


def _in_loops(module: KernelModule, launch: SourceLaunch) -> set[str]:
    """The tensors that a launch reads in loops."""
    inside = {a.base for a in module.kernels[launch.kernel].accesses if a.kind == "load" and a.loops}
    return {root for name, root in module.tensors(launch, "load").items() if name in inside}


def _movable(module: KernelModule, producer: SourceLaunch, consumer: SourceLaunch, buffer: str = "") -> bool:
    """Whether the producer may run where the consumer does, as one kernel with it, and the buffer may vanish."""
    inputs, outputs, also, ends = (
        set(module.tensors(launch, kind).values()) for launch in (producer, consumer) for kind in ("load", "store")
    )
    first, last = (producer.block.index(launch.statement) for launch in (producer, consumer))
    between = {id(s) for s in statements(producer.block[first + 1 : last])}
    for launch in module.launches:
        if launch is producer or launch is consumer:
            continue
        reads = set(module.tensors(launch, "load").values())
        writes = set(module.tensors(launch, "store").values())
        minds = "?" in reads | writes or reads & outputs or writes & (inputs | outputs)
        if (minds and id(launch.statement) in between) or buffer in reads | writes or "?" in reads:
            return False  # someone else needs the buffer, or what lies between
    if "?" in inputs | outputs | ends | also or inputs & outputs or ends & (inputs | outputs | also):
        return False
    if not buffer:  # then what the producer leaves is for others: calls of the host among them
        read = names_read(
            *[
                s
                for s in producer.block[first + 1 : last]
                if id(s) not in {id(one.statement) for one in module.launches}
            ]
        )
        return not outputs & also and not outputs & read
    return not module.host_of(producer.call).buffers[buffer].returned and not (outputs & also - {buffer})


class Join:
    """Builds the fused kernel: `keep`'s text with pieces of `moved`, their parameters together, and the new `run`."""

    def __init__(self, module: KernelModule, pair: Pair, keep: SourceKernel, moved: SourceKernel) -> None:
        self.module, self.pair, self.keep, self.moved = module, pair, keep, moved
        self.host = module.host_of(pair.producer.call)
        self.taken = set(keep.names) | set(module.constants)
        self.host_keep, self.host_moved, self.drop, self.gone = pair.producer, pair.consumer, pair.out, pair.into
        if keep.name != pair.producer.kernel:
            self.host_keep, self.host_moved, self.drop, self.gone = pair.consumer, pair.producer, pair.into, pair.out
        self.edits: list[Edit] = []
        self.added: dict[str, str] = {}  # moved's parameter → its name in the fused kernel
        self.index = self.row = ""
        self.opened: ast.expr = ast.Constant(0)  # the index at hand, with its name opened

    def fresh(self, wish: str) -> str:
        name = fresh_name(wish, self.taken)
        self.taken.add(name)
        return name

    def parameter(self, name: str) -> str:
        """The fused kernel's name of a parameter of the moved kernel: an equal argument is passed only once."""
        if name not in self.added:
            value = spell(self.host_moved.arguments[name])
            kinds = {p.name: p.kind for p in (*self.keep.parameters, *self.moved.parameters)}
            mine = {p.name: self.host_keep.arguments.get(p.name) for p in self.keep.parameters}
            alike = [n for n, v in mine.items() if v is not None and spell(v) == value and n != self.drop]
            same = [n for n in alike if kinds[n] == _kind(self.moved, name)]
            self.added[name] = same[0] if same and not self.keep.definitions.get(same[0]) else self.fresh(name)
        return self.added[name]

    def body(
        self, flat: Map, ends: list[Access], access: Access, given: dict[int, str]
    ) -> tuple[list[str], str] | None:
        """The moved body at an access of the kept kernel, preceded by the assignments of its index. `ends` are the
        moved kernel's accesses to the buffer."""
        index = index_of(self.keep, access)
        keep = frozenset({flat.offsets or flat.row, *flat.column})
        strides = {self._own_stride(flat, end, keep) for end in ends}
        needed = needed_by(flat) - {self.gone}
        if index is None or len(strides) != 1 or None in strides or not needed <= set(self.host_moved.arguments):
            return None
        renamed = {n: self.parameter(n) for n in sorted(needed)}
        mask = spell(access.mask) if access.mask is not None else None
        stride = strides.pop() or ""
        self.opened = opened_index(self.keep, access, index)
        lines, block_row = self._coordinates(index, stride)
        place = Place(self.index, mask, given, renamed, self.row, block_row)
        made = inlined_body(flat, place, self.taken)
        if made is None:
            return None
        inner = made[0] if stride else [self._without_division(line) for line in made[0]]
        return lines + inner, made[1]

    def _own_stride(self, flat: Map, access: Access, keep: frozenset[str]) -> str | None:
        """`Map.stride_in` of an access of the moved kernel, which may also spell `i` as `i // s * s + i % s`."""
        index = whole_index_of(flat.kernel, access, keep)
        if index is None or flat.stride_in(index) is not None:
            return flat.stride_in(index)
        bound = {n: host_spelling(self.module, v) for n, v in self.host_moved.arguments.items()}
        return flat.stride_in(rejoined(index, bound))

    def _without_division(self, line: str) -> str:
        """`row = index // s` and `column = index % s` where the index is `row * s + column` by its own spelling."""
        value = parse_module(line).body[0].value  # type: ignore[attr-defined]
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.FloorDiv | ast.Mod):
            return line
        bound = {name: self.host_moved.arguments[old] for old, name in self.added.items()}
        bound |= dict(self.host_keep.arguments)
        step = bound.get(spell(value.right))
        split = self._split(step) if step is not None and spell(value.left) == self.index else None
        if split is None:
            return line
        return f"{line.split(' = ', maxsplit=1)[0]} = {split[0] if isinstance(value.op, ast.FloorDiv) else split[1]}"

    def _coordinates(self, index: str, stride: str) -> tuple[list[str], bool]:
        """Assignments of the index, or of row and column, and whether the row is a block."""
        if not stride:
            self.index = index if index.isidentifier() else self.fresh("index")
            return ([] if index.isidentifier() else [f"{self.index} = {index}"]), False
        split = self._split(self.host_moved.arguments[stride])
        if split is not None:
            self.row, column = split
            self.index = column if column.isidentifier() else self.fresh("column")
            return ([] if column.isidentifier() else [f"{self.index} = {column}"]), False
        step = self.parameter(stride)
        whole = index if index.isidentifier() else self.fresh("index")
        self.row, self.index = self.fresh("index_row"), self.fresh("column")
        lines = [] if index.isidentifier() else [f"{whole} = {index}"]
        return [*lines, f"{self.row} = {whole} // {step}", f"{self.index} = {whole} % {step}"], True

    def _split(self, stride: ast.expr) -> tuple[str, str] | None:
        """`row * s + rest` as (row, rest), where row is the program's and s is bound to the wanted stride."""
        terms, wanted = terms_of(self.opened), host_spelling(self.module, stride)
        for number, term in enumerate(terms):
            if isinstance(term, ast.BinOp) and isinstance(term.op, ast.Mult) and len(terms) > 1:
                for row, step in ((term.left, term.right), (term.right, term.left)):
                    bound = self.host_keep.arguments.get(spell(step))
                    is_row = spell(row) in named(self.keep, ROW)
                    if is_row and bound is not None and host_spelling(self.module, bound) == wanted:
                        return spell(row), " + ".join(spell(t) for i, t in enumerate(terms) if i != number)
        return None

    def address(self, flat: Map) -> str | None:
        """Where the moved kernel's result goes, at the place of its body."""
        keep = frozenset({flat.offsets or flat.row, *flat.column})
        stride = self._own_stride(flat, flat.store, keep)
        if stride is None or flat.store.base is None or flat.store.base not in self.host_moved.arguments:
            return None
        pointer = self.parameter(flat.store.base)
        if not stride:
            return f"{pointer} + {self.index}"
        return f"{pointer} + {self.row} * {self.parameter(stride)} + {self.index}"

    def fits(self) -> bool:
        """Whether every argument is known, and the dropped pointer is used in no other way."""
        kept = {p.name for p in self.keep.parameters} - {self.drop, *self.added.values()}
        return kept <= set(self.host_keep.arguments) and self._aliases() is not None

    def text(self) -> str:
        """The whole new source, where it `fits`."""
        module, keep, moved, drop = self.module, self.keep, self.moved, self.drop
        kernel_names = {p.name for p in keep.parameters}
        self.edits += [module.delete(statement) for statement in self._aliases() or ()]
        joined = "_".join(k.removesuffix("_kernel") for k in (self.pair.producer.kernel, self.pair.consumer.kernel))
        name = module.fresh(f"{joined[:50].rstrip('_') if len(joined) > 50 else joined}_kernel")
        text = tidied(module.edited(self.edits), module)
        changed = KernelModule.parse(text).kernels[keep.name]
        used = names_read(*changed.body) | set(keep.constexprs)
        order = [p.name for p in keep.parameters if p.name != drop and p.name in used]
        constexprs = set(keep.constexprs)
        new = [n for n in dict.fromkeys(self.added.values()) if n not in kernel_names or n == drop]
        new_constexprs = {self.added[n] for n in self.added if _kind(moved, n) == "constexpr"}
        at = next((i for i, n in enumerate(order) if n in constexprs), len(order))
        order[at:at] = [n for n in new if n not in new_constexprs]
        order += [n for n in new if n in new_constexprs]
        values = {
            n: spell(self.host_keep.arguments[n]) for n in order if n in self.host_keep.arguments and n not in new
        }
        values |= {self.added[n]: spell(self.host_moved.arguments[n]) for n in self.added if self.added[n] in new}
        values = {n: self._without_buffer(value) for n, value in values.items()}
        constexprs |= new_constexprs
        body = "\n".join(text.splitlines()[changed.node.body[0].lineno - 1 : changed.node.end_lineno]) + "\n"
        signature = ", ".join(f"{n}: tl.constexpr" if n in constexprs else n for n in order)
        kernel = f"@triton.jit\ndef {name}({signature}):\n{body}"
        options = "".join(f", {k}={spell(v)}" for k, v in self.host_keep.options.items())
        grid = spell(self.host_keep.call.func.slice)  # type: ignore[attr-defined]
        grid = grid if grid.startswith("(") else f"({grid})"
        launch = f"{name}[{grid}]({', '.join(arguments_in_order(order, values, constexprs))}{options})"
        edits = [module.replace(self.pair.consumer.statement, launch), module.delete(self.pair.producer.statement)]
        edits += self._leftovers(values.values())
        edits.append(module.add_kernel(kernel))
        text = module.edited(edits)
        # Module constants that only the two old launches used go.
        for knob in sorted(names_read(self.pair.producer.call, self.pair.consumer.call) & set(module.constants)):
            if len(re.findall(rf"\b{knob}\b", text)) == 1:
                text = re.sub(rf"^{knob} = \d+[^\n]*\n", "", text, flags=re.MULTILINE)
        return text

    def _leftovers(self, values: Iterable[str]) -> Iterator[Edit]:
        """What the fusion made dead: kernels without launches, the buffer's allocation. `values`: launch arguments."""
        pair, module = self.pair, self.module
        for kernel in {pair.producer.kernel, pair.consumer.kernel}:
            if all(launch in (pair.producer, pair.consumer) for launch in module.launches_of(kernel)):
                yield module.delete_function(module.kernels[kernel].node)
        if not pair.buffer:
            return
        allocation = self.host.buffers[pair.buffer].statement
        ours = (pair.producer.statement, pair.consumer.statement, allocation)
        others = [s for s in statements(self.host.node.body) if s not in ours and not isinstance(s, ast.If)]
        if pair.buffer not in names_read(*others, *map(parse_expression, values)):
            yield module.delete(allocation)

    def _without_buffer(self, value: str) -> str:
        """A launch argument with the buffer's sizes and strides spelled by what it was allocated with."""
        if not self.pair.buffer:
            return value
        call = self.host.buffers[self.pair.buffer].call
        shape = call.args[0] if called(call) in ("torch.empty", "torch.zeros") and len(call.args) == 1 else None
        if not isinstance(shape, ast.Tuple | ast.List):  # a buffer allocated alike, before the launch, stands for it
            name, limit = self.pair.buffer, self.pair.consumer.statement.lineno
            for twin in self.host.buffers.values():
                if twin.name != name and spell(twin.call) == spell(call) and twin.statement.lineno < limit:
                    return spell(substitute(parse_expression(value), {name: twin.name}))
            return value
        sizes = [f"({spell(e)})" if isinstance(e, ast.BinOp) else spell(e) for e in shape.elts]
        for axis in range(len(sizes)):
            value = value.replace(f"{self.pair.buffer}.stride({axis})", " * ".join(sizes[axis + 1 :]) or "1")
            value = value.replace(f"{self.pair.buffer}.shape[{axis}]", sizes[axis])
        return value

    def _aliases(self) -> list[ast.stmt] | None:
        """Names of addresses inside the dropped pointer (`row_ptr = x_ptr + ...`), dead once the accesses are gone;
        None when the kept kernel uses the pointer in other ways too."""
        keep, drop = self.keep, self.drop
        inside = {id(p) for a in keep.accesses if a.base == drop for p in ast.walk(a.pointer)}
        found, todo = [], [drop]
        while todo:
            name = todo.pop()
            for statement in statements(keep.body):
                reads = [p for p in ast.walk(statement) if isinstance(p, ast.Name) and p.id == name]
                reads = [p for p in reads if isinstance(p.ctx, ast.Load) and id(p) not in inside]
                if not reads or isinstance(statement, ast.For | ast.If | ast.While):
                    continue
                target = statement.targets[0] if isinstance(statement, ast.Assign) else None
                if not isinstance(target, ast.Name) or keep.value_of(target.id) is None:
                    return None
                found.append(statement)
                todo.append(target.id)
        return found


def _kind(kernel: SourceKernel, name: str) -> str:
    return next(p.kind for p in kernel.parameters if p.name == name)
