"""Split-K: the contraction loop is shared by several programs, and a second kernel adds up and finishes.

Partial sums go to an fp32 buffer, whole tiles at a time, and are added in a fixed order: two runs agree bit for bit.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import indent

from evo_kernel.syntax import parse_expression, parse_module
from operators.micro.kernels import Loop, SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import (
    CONTRACTIONS,
    GridRewrite,
    arguments_in_order,
    body_text,
    declared,
    device_of,
    grid_launches,
    has_plain_axes,
    kernel_text,
    launch_text,
    product,
)
from operators.micro.syntax import argument, called, fresh_name, int_value, names_read, names_written, spell, statements

SPLITS = 4  # programs that share one tile's contraction: the knob's first value
MOST_GRID_AXES = 2  # a launch has three; the split takes one


@dataclass(frozen=True)
class _Accumulator:
    name: str
    init: ast.Assign  # `acc = tl.zeros(shape, dtype=tl.float32)`
    shape: tuple[ast.expr, ...]


@dataclass(frozen=True)
class _Contraction:
    """A kernel that can be cut after its loop."""

    launch: SourceLaunch
    loop: Loop
    before: Sequence[ast.stmt]
    after: Sequence[ast.stmt]
    accumulators: tuple[_Accumulator, ...]
    advances: tuple[ast.AugAssign, ...]  # `ptrs += step` in the loop


class SplitK(GridRewrite):
    """Offered where a kernel's only loop adds products into fp32 accumulators that start at zero."""

    name, family, lacks = "split-k", "tiling", "has no contraction loop at its top level that can be shared"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> _Contraction | None:
        return _contraction(module, kernel)

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: _Contraction) -> str:
        return _Split(module, kernel, found).text()


def _contraction(module: KernelModule, kernel: SourceKernel) -> _Contraction | None:
    launches, body = grid_launches(module, kernel), kernel.body
    loops = [loop for loop in kernel.loops if loop.node in body]
    if any(name.startswith("SPLIT") for name in kernel.constexprs):
        return None
    if len(launches) != 1 or len(launches[0].grid) > MOST_GRID_AXES or len(loops) != 1:
        return None
    advanced = {p.name for p in kernel.parameters} & set(kernel.definitions)  # pointers that the body assigns
    movable = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.While, ast.If, ast.Expr, ast.Pass)
    if not has_plain_axes(kernel) or advanced or not all(isinstance(s, movable) for s in statements(body)):
        return None
    loop, launch = loops[0], launches[0]
    if loop.function == "tl.static_range" or device_of(module, launch) is None or not _multiplies(loop.node):
        return None
    at = body.index(loop.node)
    before, after = body[:at], body[at + 1 :]
    if not all(isinstance(s, ast.Assign) for s in before) or not after:
        return None
    carried = names_written(*loop.node.body) & names_written(*before)
    state = [_state(statement, carried) for statement in loop.node.body]
    if None in state or names_read(*after) & names_written(loop.node) - carried:
        return None
    advances = tuple(s for s, kind in zip(loop.node.body, state, strict=True) if kind == "advance")
    moved = {s.target.id for s in advances}  # type: ignore[attr-defined]
    invariant = all(not names_read(s.value) & names_written(loop.node) for s in advances)  # type: ignore[attr-defined]
    accumulators = tuple(_accumulator(kernel, before, name) for name in sorted(carried - moved))
    if not accumulators or None in accumulators or not invariant or names_read(*after) & moved:
        return None
    return _Contraction(launch, loop, before, after, accumulators, advances)  # type: ignore[arg-type]


def _multiplies(node: ast.AST) -> bool:
    return any(called(part) in CONTRACTIONS for part in ast.walk(node))


def _state(statement: ast.stmt, carried: set[str]) -> str | None:
    """How a statement of the loop changes what lives past it: "local", "sum", "advance"; None: in a way not known."""
    touched = names_written(statement) & carried
    if not touched:
        return "local" if isinstance(statement, ast.Assign) or not names_read(statement) & carried else None
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        if not isinstance(statement.op, ast.Add) or names_read(statement.value) & touched:
            return None
        return "sum" if _multiplies(statement.value) else "advance"
    if isinstance(statement, ast.Assign) and len(touched) == 1 and called(statement.value) == "tl.dot":
        call = statement.value
        assert isinstance(call, ast.Call)
        seed = argument(call, "acc", 2)
        operands = names_read(*call.args[:2])
        return "sum" if seed is not None and spell(seed) in touched and not operands & touched else None
    return None


def _accumulator(kernel: SourceKernel, before: Sequence[ast.stmt], name: str) -> _Accumulator | None:
    inits = [s for s in before if name in names_written(s)]
    value = inits[0].value if len(inits) == 1 and isinstance(inits[0], ast.Assign) else None
    if not isinstance(value, ast.Call) or called(value) != "tl.zeros":
        return None
    dtype, shape = argument(value, "dtype", 1), argument(value, "shape", 0)
    if dtype is None or spell(dtype) != "tl.float32" or not isinstance(shape, ast.Tuple | ast.List):
        return None
    known = all(int_value(s) is not None or spell(s) in kernel.constexprs for s in shape.elts)
    return _Accumulator(name, inits[0], tuple(shape.elts)) if known and 0 < len(shape.elts) <= 2 else None  # type: ignore[arg-type]


class _Split:
    """The texts of the two kernels and their launches."""

    def __init__(self, module: KernelModule, kernel: SourceKernel, found: _Contraction) -> None:
        self.module, self.kernel, self.found = module, kernel, found
        self.knob = fresh_name("SPLIT_K", module.names | kernel.names)
        self.rank = len(found.launch.grid)
        self.split, self.tile = kernel.fresh("split"), kernel.fresh("tile_index")
        self.partials = {a.name: kernel.fresh(f"{a.name}_partial_ptr") for a in found.accumulators}
        self.buffers = {a.name: module.fresh(f"{a.name}_partial") for a in found.accumulators}
        self.lanes = {a.name: kernel.fresh(f"{a.name}_lanes") for a in found.accumulators}
        self.reducer = module.fresh(f"{kernel.name.removesuffix('_kernel')}_reduce_kernel")

    def text(self) -> str:
        module, found = self.module, self.found
        summing, reducing = self.summing_kernel(), self.reducing_kernel()
        return module.edited(
            module.insert_before(found.launch.statement, "\n".join(self.allocations())),
            module.replace(found.launch.statement, self.launches(summing, reducing)),
            module.delete_function(self.kernel.node),
            module.add_kernel(summing + "\n\n" + reducing),
            module.set_constant(self.knob, SPLITS),
        )

    # -- the kernels -----------------------------------------------------------------------------------------------

    def summing_kernel(self) -> str:
        """The loop over one share of the contraction; sums are stored as they lie in registers."""
        found, module = self.found, self.module
        loop, chunk, first = found.loop, self.kernel.fresh("chunk"), self.kernel.fresh("first")
        length = spell(loop.stop) if int_value(loop.start) == 0 else f"({spell(loop.stop)}) - ({spell(loop.start)})"
        blocks = f"tl.cdiv({length}, {spell(loop.step)})"
        shares = [
            f"{self.split} = tl.program_id({self.rank})",
            f"{chunk} = tl.cdiv({blocks}, {self.knob})",
            f"{first} = {self.split} * {chunk}",
        ]
        shares += [f"{spell(s.target)} += {first} * ({spell(s.value)})" for s in found.advances]
        step = spell(loop.step) if isinstance(loop.step, ast.Name | ast.Constant) else f"({spell(loop.step)})"
        origin = "" if int_value(loop.start) == 0 else f"{spell(loop.start)} + "
        bounds = [f"{origin}{first} * {step}", f"tl.minimum({spell(loop.stop)}, {origin}({first} + {chunk}) * {step})"]
        iterator = loop.node.iter
        assert isinstance(iterator, ast.Call)
        changed = ast.Call(
            iterator.func, [parse_expression(text) for text in (*bounds, spell(loop.step))], iterator.keywords
        )
        header = f"for {loop.target} in {spell(changed)}:"
        body = [*map(module.source_of, found.before), *shares, header]
        body += [indent(body_text(module, loop.node.body), "    "), *self._places()]
        body += [f"tl.store({self._address(a, self.split)}, {a.name})" for a in found.accumulators]
        return self._kernel(self.kernel.name, body)

    def reducing_kernel(self) -> str:
        """Adds the shares of one tile, then goes on as the kernel did after its loop."""
        found = self.found
        kept = _needed(found.before, names_read(*found.after) | {a.name for a in found.accumulators})
        step = self.kernel.fresh("share")
        body = [*map(self.module.source_of, kept), *self._places(), f"for {step} in range(0, {self.knob}):"]
        body += [f"    {a.name} += tl.load({self._address(a, step)})" for a in found.accumulators]
        return self._kernel(self.reducer, [*body, body_text(self.module, found.after)])

    def _kernel(self, name: str, body: Sequence[str]) -> str:
        text = "\n".join(body)
        used = declared(self.kernel, self._used(text))
        return kernel_text(name, [*self.partials.values(), *used, f"{self.knob}: tl.constexpr"], text)

    def _used(self, text: str) -> set[str]:
        return names_read(parse_module(text)) & {p.name for p in self.kernel.parameters}

    def _address(self, accumulator: _Accumulator, share: str) -> str:
        tiles = " * ".join(f"tl.num_programs({axis})" for axis in range(self.rank))
        sizes = " * ".join(map(spell, accumulator.shape))
        slot = sizes if len(accumulator.shape) == 1 else f"({sizes})"
        offset = f"({share} * {tiles} + {self.tile}) * {slot}"
        return f"{self.partials[accumulator.name]} + {offset} + {self.lanes[accumulator.name]}"

    def _places(self) -> list[str]:
        """The tile's number, and where the elements of a tile lie in its slot: row by row."""
        second = "tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)"
        lines = [f"{self.tile} = " + (second if self.rank == 2 else "tl.program_id(0).to(tl.int64)")]
        for accumulator in self.found.accumulators:
            sizes = [spell(size) for size in accumulator.shape]
            lanes = f"tl.arange(0, {sizes[0]})"
            if len(sizes) == 2:
                lanes = f"{lanes}[:, None] * {sizes[1]} + tl.arange(0, {sizes[1]})[None, :]"
            lines.append(f"{self.lanes[accumulator.name]} = {lanes}")
        return lines

    # -- the host ----------------------------------------------------------------------------------------------------

    def allocations(self) -> list[str]:
        launch, found = self.found.launch, []
        for accumulator in self.found.accumulators:
            sizes = [spell(launch.arguments.get(spell(size), size)) for size in accumulator.shape]
            shape = f"({self.knob}, {product(launch.grid)}, {' * '.join(sizes)})"
            made = f"torch.empty({shape}, dtype=torch.float32, device={device_of(self.module, launch)})"
            found.append(f"{self.buffers[accumulator.name]} = {made}")
        return found

    def launches(self, summing: str, reducing: str) -> str:
        launch, grid = self.found.launch, [spell(part) for part in self.found.launch.grid]
        options = [f"{name}={spell(value)}" for name, value in launch.options.items()]
        lines, split = [], [*grid, self.knob]
        for name, text, shape in ((self.kernel.name, summing, split), (self.reducer, reducing, grid)):
            used = [n for p in self.kernel.parameters if (n := p.name) in self._used(text) and n in launch.arguments]
            values = {n: spell(launch.arguments[n]) for n in used}
            arguments = [*self.buffers.values(), *arguments_in_order(used, values, self.kernel.constexprs)]
            lines.append(launch_text(name, shape, [*arguments, f"{self.knob}={self.knob}", *options]))
        return "\n".join(lines)


def _needed(before: Sequence[ast.stmt], wanted: set[str]) -> list[ast.stmt]:
    """Those assignments that what follows reads, in order."""
    kept: list[ast.stmt] = []
    for statement in reversed(before):
        if names_written(statement) & wanted:
            kept.insert(0, statement)
            wanted = wanted | names_read(statement)
    return kept
