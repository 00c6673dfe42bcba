"""Indices of accesses: what is added to a pointer, and which rows and columns of a matrix a tile covers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from evo_kernel.syntax import parse_expression
from operators.micro.kernels import Access, SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import own_targets
from operators.micro.syntax import called, int_value, mapped, names_read, names_written, spell, statements, substitute

ROW_AXIS, COLUMN_AXIS = 0, 1
_SUBSCRIPTS = {":, None": ROW_AXIS, "(:, None)": ROW_AXIS, "None, :": COLUMN_AXIS, "(None, :)": COLUMN_AXIS}


@dataclass(frozen=True)
class IndexBlock:
    """`offset + tl.arange(0, size)`, along the tile's rows, its columns, or neither yet (`axis` None)."""

    axis: int | None
    offset: tuple[str, ...]  # scalar terms, sorted
    size: str

    @property
    def start(self) -> str:
        return " + ".join(self.offset) or "0"


class Reader:
    """Reads expressions of one statement, following names to the definition that reaches it."""

    def __init__(self, kernel: SourceKernel, statement: ast.stmt) -> None:
        self.kernel = kernel
        self.suite = suite_of(kernel, statement)
        self.line = statement.lineno

    def value(self, name: str) -> ast.expr | None:
        """What a name holds: its only assignment, or the only one before this statement in the same suite."""
        value = self.kernel.value_of(name)
        if value is not None:
            return value
        places = self.kernel.definitions.get(name, ())
        here = [s for s in places if s in self.suite and s.lineno < self.line]
        others = [s for s in places if s in self.suite and s.lineno >= self.line]
        if len(here) != 1 or others or not isinstance(here[0], ast.Assign):
            return None
        return here[0].value if isinstance(here[0].targets[0], ast.Name) else None

    def terms(self, node: ast.expr) -> list[ast.expr]:
        """The terms of a sum; names of sums of tensors are opened."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return self.terms(node.left) + self.terms(node.right)
        if isinstance(node, ast.Name) and not self.is_scalar(node):
            value = self.value(node.id)
            if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                return self.terms(value)
        return [node]

    def is_scalar(self, node: ast.expr) -> bool:
        """Whether the value is surely one number: made of scalars, program indices and constants by arithmetic."""
        scalars = {p.name for p in self.kernel.parameters if p.kind != "pointer"}
        targets = {loop.target for loop in self.kernel.loops}
        if isinstance(node, ast.Name):
            if node.id in scalars | targets:
                return True
            value = self.value(node.id)
            return value is not None and self.is_scalar(value)
        if isinstance(node, ast.BinOp):
            return self.is_scalar(node.left) and self.is_scalar(node.right)
        if isinstance(node, ast.Call):
            name = called(node)
            if name in ("tl.program_id", "tl.num_programs"):
                return True
            return name in ("tl.minimum", "tl.maximum", "tl.cdiv") and all(self.is_scalar(a) for a in node.args)
        return int_value(node) is not None

    def block(self, node: ast.expr) -> IndexBlock | None:
        """The node as a blocked index, or None."""
        axis, size, offset = None, None, []
        for term in self.terms(node):
            if self.is_scalar(term):
                offset.append(spell(term))
                continue
            inner = self._leaf(term)
            if inner is None or size is not None:
                return None
            axis, size = inner.axis, inner.size
            offset += inner.offset
        return IndexBlock(axis, tuple(sorted(offset)), size) if size is not None else None

    def _leaf(self, term: ast.expr) -> IndexBlock | None:
        if called(term) == "tl.arange":
            assert isinstance(term, ast.Call)
            return IndexBlock(None, (), spell(term.args[1])) if int_value(term.args[0]) == 0 else None
        if isinstance(term, ast.Subscript):
            axis, inner = _SUBSCRIPTS.get(spell(term.slice)), self.block(term.value)
            fits = inner is not None and inner.axis is None and axis is not None
            return IndexBlock(axis, inner.offset, inner.size) if inner and fits else None
        if isinstance(term, ast.Name):
            value = self.value(term.id)
            return self.block(value) if value is not None else None
        return None

    def conjuncts(self, node: ast.expr | None) -> list[ast.expr]:
        """The conditions that `a & b & c` joins; names of conditions are opened."""
        if node is None:
            return []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd):
            return self.conjuncts(node.left) + self.conjuncts(node.right)
        if isinstance(node, ast.Name) and (value := self.value(node.id)) is not None:
            return self.conjuncts(value)
        return [node]


def suites(body: Sequence[ast.stmt]) -> Iterator[Sequence[ast.stmt]]:
    """A suite and all suites inside it."""
    yield body
    for statement in body:
        for inner in (getattr(statement, name, None) for name in ("body", "orelse")):
            yield from suites(inner) if inner else ()


def suite_of(kernel: SourceKernel, statement: ast.stmt) -> Sequence[ast.stmt]:
    return next((s for s in suites(kernel.body) if any(statement is other for other in s)), kernel.body)


def holder_of(kernel: SourceKernel, statement: ast.stmt) -> ast.stmt:
    """The top-level statement of the kernel that holds `statement`."""
    return next(top for top in kernel.body if any(statement is part for part in ast.walk(top)))


def defined_before(kernel: SourceKernel, names: set[str], statement: ast.stmt) -> bool:
    """Whether each name is a parameter or was assigned at the top level, once, before a top-level statement."""
    known = {p.name for p in kernel.parameters}
    for other in kernel.body:
        if other is statement:
            break
        if isinstance(other, ast.Assign) and isinstance(other.targets[0], ast.Name):
            known.add(other.targets[0].id)
    single = all(len(kernel.definitions.get(name, ())) <= 1 for name in names)
    return single and names - {"tl", "triton"} <= known


def read_names(text: str) -> set[str]:
    return names_read(parse_expression(text))


ROW = ("tl.program_id(0)", "tl.program_id(axis=0)")
DEEPEST = 20  # names opened one after another; more is no index that a person wrote


def _without_casts(node: ast.expr) -> ast.expr:
    """`x.to(tl.int64)` counts as `x` when shapes of index expressions are compared."""

    def change(part: ast.AST) -> ast.expr | None:
        if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute) or part.func.attr != "to":
            return None
        is_cast = len(part.args) == 1 and spell(part.args[0]) in ("tl.int64", "tl.int32")
        return _without_casts(part.func.value) if is_cast else None

    return mapped(node, change)


def inlined(kernel: SourceKernel, node: ast.expr, keep: frozenset[str] = frozenset()) -> ast.expr:
    """The expression with every name assigned once replaced by its value, except the names to keep."""
    for _ in range(DEEPEST):
        values = {n: kernel.value_of(n) for n in names_read(node) - keep}
        known = {n: v for n, v in values.items() if v is not None}
        if not known:
            return node
        node = substitute(node, known)
    return node


def named(kernel: SourceKernel, wanted: Sequence[str]) -> list[str]:
    """Names assigned once whose value, written out, is one of the wanted expressions."""
    spelled = {spell(parse_expression(text)) for text in wanted}
    names = [n for n in kernel.definitions if kernel.value_of(n) is not None]
    return [n for n in names if spell(_without_casts(inlined(kernel, ast.Name(n, ast.Load())))) in spelled]


def terms_of(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return terms_of(node.left) + terms_of(node.right)
    return [node]


def index_of(kernel: SourceKernel, access: Access) -> str | None:
    """What is added to the pointer parameter to reach the address, as text valid at the access; None if unclear."""
    if access.base is None:
        return None
    pointer = access.pointer
    while True:
        terms, node = [], pointer
        while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            terms.append(node.right)
            node = node.left
        if not isinstance(node, ast.Name):
            return None
        if node.id == access.base:
            break
        value = kernel.value_of(node.id)
        if value is None or not _steady(kernel, value):
            return None
        pointer = substitute(pointer, {node.id: value})
    if not terms:
        return "0"
    index = terms.pop()
    while terms:
        index = ast.BinOp(index, ast.Add(), terms.pop())
    return spell(index)


def _steady(kernel: SourceKernel, node: ast.expr) -> bool:
    """Whether every name in the expression is a parameter or assigned once: its value is the same later on."""
    return all(len(kernel.definitions.get(n, ())) <= 1 for n in names_read(node))


def whole_index_of(kernel: SourceKernel, access: Access, keep: frozenset[str]) -> str | None:
    """The index with every name but those to keep written out, as one flat sum. Only for kernels that assign every
    name once: fused kernels reach several tensors by `index = row * stride + start + cols`."""
    index = index_of(kernel, access)
    if index is None:
        return None
    first, *rest = terms_of(inlined(kernel, parse_expression(index), keep))
    for term in rest:
        first = ast.BinOp(first, ast.Add(), term)
    return spell(first)


def opened_index(kernel: SourceKernel, access: Access, index: str) -> ast.expr:
    """An index that is only a name as what the name was assigned, where that still means the same at the access."""
    node = parse_expression(index)
    suite = suite_of(kernel, access.statement)
    for _ in range(DEEPEST):
        value = kernel.value_of(node.id) if isinstance(node, ast.Name) else None
        if value is None or not isinstance(node, ast.Name):
            break
        place = kernel.definitions[node.id][0]
        between = [s for s in suite if place.lineno < s.lineno < access.statement.lineno]
        here = any(place is s for s in suite) and place.lineno < access.statement.lineno
        if not here or names_written(*between) & names_read(value):
            break
        node = value
    return node


def bound_of(check: ast.expr) -> ast.expr:
    """`i < n` of `(i < n) | (n % BLOCK == 0)`, which holds for the same elements; else the check as it is."""
    match check:
        case ast.BinOp(
            left=ast.Compare() as bound,
            op=ast.BitOr(),
            right=ast.Compare(left=ast.BinOp(op=ast.Mod()), ops=[ast.Eq()], comparators=[ast.Constant(value=0)]),
        ):
            return bound
    return check


def rejoined(index: str, bound: Mapping[str, str]) -> str:
    """`i // s * t + i % s` as `i`, where s and t are bound to the same value; else the index as it is."""
    match parse_expression(index):
        case ast.BinOp(
            left=ast.BinOp(
                left=ast.BinOp(left=whole, op=ast.FloorDiv(), right=ast.Name(id=size)),
                op=ast.Mult(),
                right=ast.Name(id=step),
            ),
            op=ast.Add(),
            right=ast.BinOp(left=again, op=ast.Mod(), right=ast.Name(id=third)),
        ) if spell(whole) == spell(again) and size == third:
            same = size == step or (size in bound and bound[size] == bound.get(step))
            return spell(whole) if same else index
    return index


def host_spelling(module: KernelModule, node: ast.expr) -> str:
    """A launch argument in a spelling that is equal for equal strides: buffers by how they were allocated, and
    `stride` of `torch.empty` by its sizes."""
    host = module.host_of(node)
    buffers, arguments = host.buffers, set(host.arguments)
    written = [n for s in statements(host.node.body) for n in own_targets(s)]
    once = ({n for n in written if written.count(n) == 1} | arguments) - (arguments & set(written))
    known = once | {"torch", "triton"} | (module.names - set(written))

    def change(part: ast.AST) -> ast.expr | None:
        """`buffer.stride(0)` as `torch.empty_like(x).stride(0)`, where nothing in it is assigned twice."""
        if not isinstance(part, ast.Call):
            return None
        owner = part.func.value if isinstance(part.func, ast.Attribute) else None
        if not isinstance(owner, ast.Name) or owner.id not in buffers or owner.id not in once:
            return part
        call = buffers[owner.id].call
        if not spell(part.func).endswith(".stride") or not names_read(call) <= known:
            return part
        sizes, axis = _sizes(call), int_value(part.args[0]) if len(part.args) == 1 else None
        if sizes is not None and axis is not None and axis < len(sizes):
            rest = sizes[axis + 1 :] or [ast.Constant(1)]
            return reduce(lambda left, right: ast.BinOp(left, ast.Mult(), right), rest)
        return ast.Call(ast.Attribute(call, "stride", ast.Load()), part.args, part.keywords)

    return spell(mapped(node, change))


def _sizes(call: ast.Call) -> list[ast.expr] | None:
    """The sizes of `torch.empty((a, b), ...)`, which is contiguous."""
    plain = called(call) in ("torch.empty", "torch.zeros") and len(call.args) == 1
    plain = plain and not any(k.arg in ("memory_format", "layout") for k in call.keywords)
    return call.args[0].elts if plain and isinstance(call.args[0], ast.Tuple | ast.List) else None
