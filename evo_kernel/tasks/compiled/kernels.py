"""One of Inductor's kernels in Triton's own words: no helper of Inductor's left, its block sizes as knobs, its grid."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from evo_kernel.errors import LoweringError
from evo_kernel.syntax import parse_expression, parse_module
from evo_kernel.tasks.compiled.reading import Raw, tidied, used
from evo_kernel.tasks.compiled.settings import first_setting
from evo_kernel.tasks.lowering.extremes import LARGER, SMALLER

_FUNCTIONS = '''@triton.jit
def product(a, b):
    return a * b

@triton.jit
def larger(a, a_index, b, b_index):
    """The larger value with its index: NaN before everything, the first among equals."""
    equal = (a == b) | ((a != a) & (b != b))
    wins = (a > b) | ((a != a) & (b == b)) | (equal & (a_index < b_index))
    return tl.where(wins, a, b), tl.where(wins, a_index, b_index)

@triton.jit
def smaller(a, a_index, b, b_index):
    """The smaller value with its index: NaN before everything, the first among equals."""
    equal = (a == b) | ((a != a) & (b != b))
    wins = (a < b) | ((a != a) & (b == b)) | (equal & (a_index < b_index))
    return tl.where(wins, a, b), tl.where(wins, a_index, b_index)

@triton.jit
def joined_moments(mean, squares, count, other_mean, other_squares, other_count):
    """Mean, sum of squared differences from it, and count of two sets together (Chan, Golub, LeVeque 1979)."""
    total = count + other_count
    share = tl.where(total == 0.0, 0.0, other_count / total)
    difference = other_mean - mean
    squares = squares + other_squares + difference * difference * count * share
    return mean + difference * share, squares, total

@triton.jit
def added_moments(value, mean, squares, count, first):
    """The same after one more value (Welford 1962); the first of all needs no division."""
    if first:
        total = tl.full(count.shape, 1, count.dtype)
        moved = value
        squares = tl.zeros_like(squares)
    else:
        total = count + 1
        moved = mean + (value - mean) / total
        squares = squares + (value - mean) * (value - moved)
    return moved, squares, total

@triton.jit
def floor_division(a, b):
    """Division of integers towards minus infinity; `//` goes towards zero."""
    quotient = a // b
    return tl.where((a % b != 0) & ((a < 0) != (b < 0)), quotient - 1, quotient)

@triton.jit
def modulo(a, b):
    """The remainder with the sign of b; `%` has that of a."""
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
'''
HELPERS = {text.split("def ")[1].split("(")[0]: text.rstrip() + "\n" for text in _FUNCTIONS.split("\n\n")}
"""Name of a function → its text."""

CALLS = {
    "any": "(tl.max(({0}).to(tl.int32), {1}) != 0)",
    "prod": "tl.reduce({0}, {1}, product)",
    "max_with_index": "tl.reduce(({0}, {1}), {2}, larger)",
    "min_with_index": "tl.reduce(({0}, {1}), {2}, smaller)",
    "maximum_with_index": "larger({0}, {1}, {2}, {3})",
    "minimum_with_index": "smaller({0}, {1}, {2}, {3})",
    "welford_reduce": "added_moments({0}, {1}, {2}, {3}, {4})",
    "welford": "tl.reduce(({0}, {1}, {2}), {3}, joined_moments)",
    "welford_combine": "joined_moments({0}, {1}, {2}, {3}, {4}, {5})",
    "div_floor_integer": "floor_division({0}, {1})",
    "remainder_integer": "modulo({0}, {1})",
    "select_one": "tl.sum(tl.where({1}, {0}, 0), {dim}, keep_dims={keep_dims})",
    "promote_to_tensor": "{0}",
}
"""Inductor's helper → the same in Triton's words or ours."""
EXTREMES = {"maximum": LARGER, "minimum": SMALLER, "max2": LARGER, "min2": SMALLER}
"""The same of those that take NaN as PyTorch does: what combines two values, and the blocks' reductions."""

LANGUAGE = ("abs", "ceil", "cos", "erf", "exp", "exp2", "floor", "fma", "log", "log2", "rsqrt", "sin", "sqrt")
"""Functions of CUDA's math library that the language has itself."""


SIZES = re.compile(r"(ks\d+|([xyz]|r\d_)numel)$")
"""Parameters that are sizes. They are constants to the compiler, as torch.compile's are for shapes that stay: a
division by a constant is a multiplication, and what divides a constant is known of every address."""
BLOCKS = re.compile(r"(X|Y|Z|R\d_)BLOCK$")
CHOSEN = re.compile(rf"{BLOCKS.pattern}|RSPLIT_SIZE$|LOOP_STAGES$")
BOTH_WAYS = "MixOrderReductionGrid"
"""The kind of grid of a kernel that sums rows, and columns in parts: each program those of RSPLIT_SIZE rows."""
TILES = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")
AXIS_MOST = 65535
"""Blocks along the second and third axis of a grid, at most (CUDA)."""


@dataclass(frozen=True)
class Cleaned:
    """A kernel without its name: what a launch must pass, and what it may set."""

    base: str  # what it computes: "add_relu"
    text: str  # "(x, y, XBLOCK: tl.constexpr):" and the body, as lowering's module keeps kernels
    params: tuple[str, ...]
    knobs: Mapping[str, int]  # with NUM_WARPS
    fixed: Mapping[str, int]  # block sizes that have one right value
    whole: tuple[str, ...]  # blocks that hold a whole row: constants after the params
    helpers: Mapping[str, str]  # function name → text
    grid_kind: str

    def row_blocks(self, args: Sequence[str]) -> tuple[str, ...]:
        """What a launch with these arguments passes for blocks of a whole row."""
        given = dict(zip(self.params, args, strict=True))
        return tuple(f"triton.next_power_of_2({given[_numel(block)]})" for block in self.whole)

    def parts(self, args: Sequence[str]) -> str:
        """Of a kernel that sums both ways, the shape of what its programs have of columns: sums, programs, columns."""
        given = dict(zip(self.params, args, strict=True))
        count = self.text.count("tl.num_programs(0)")
        return f"({count}, triton.cdiv({given['xnumel']}, {{RSPLIT_SIZE}}), {given['r0_numel']})"

    def grid(self, args: Sequence[str], tail: Sequence[str]) -> str:
        """The grid of a launch with these arguments; knobs in braces. `tail`: a template's own grid."""
        if self.grid_kind == "FixedGrid":
            tiles = _Tiles(self.knobs)
            return "(" + ", ".join(ast.unparse(tiles.visit(parse_expression(text))) for text in tail) + ",)"
        given = dict(zip(self.params, args, strict=True))

        def blocks(dimension: str) -> str:
            block = self.fixed.get(f"{dimension.upper()}BLOCK", f"{{{dimension.upper()}BLOCK}}")
            number = given[f"{dimension}numel"]
            return number if block == 1 else f"triton.cdiv({number}, {block})"

        match self.grid_kind:
            case "Grid1D":
                return f"({blocks('x')},)"
            case "Grid2D":
                return f"({blocks('x')}, {blocks('y')})"
            case "Grid3D":
                return f"({blocks('x')}, {blocks('y')}, {blocks('z')})"
            case kind if kind == BOTH_WAYS:
                return f"(triton.cdiv({given['xnumel']}, {{RSPLIT_SIZE}}),)"
            case "Grid2DWithYZOverflow":
                rows = blocks("y")
                return f"({blocks('x')}, min({rows}, {AXIS_MOST}), triton.cdiv({rows}, {AXIS_MOST}))"
        raise LoweringError(f"torch.compile's kernel {self.base} has a grid of kind {self.grid_kind}, not known here.")


SUM_PARTS = Cleaned(
    "sum_parts",
    """(parts_ptr, out_ptr, xnumel: tl.constexpr, r0_numel: tl.constexpr, XBLOCK: tl.constexpr, R0_BLOCK: tl.constexpr):
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[None, :]
    xmask = (xindex < xnumel) | (xnumel % XBLOCK == 0)
    total = tl.full([R0_BLOCK, XBLOCK], 0, tl.float32)
    for r0_offset in tl.range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + tl.arange(0, R0_BLOCK)[:, None]
        r0_mask = (r0_index < r0_numel) | (r0_numel % R0_BLOCK == 0)
        total += tl.load(parts_ptr + r0_index * xnumel + xindex, r0_mask & xmask, other=0.0)
    tl.store(out_ptr + xindex, tl.sum(total, 0)[None, :], xmask)
""",
    ("parts_ptr", "out_ptr", "xnumel", "r0_numel"),
    {"XBLOCK": 32, "R0_BLOCK": 128, "NUM_WARPS": 8}, {}, (), {}, "Grid1D",
)  # fmt: skip
"""Adds up what the programs of a kernel that sums both ways have of each column. Inductor calls PyTorch for it."""


def clean(raw: Raw, tails: Sequence[Sequence[str]], tf32: bool = False) -> Cleaned:
    """The kernel in Triton's own words. Raises LoweringError that names what cannot be said in them.

    `tails`: of a template, the grid of each of its launches. `tf32`: what its products of float32 may use, whatever the
    settings of this machine's PyTorch are.
    """
    words = _Words(raw)
    function = words.visit(raw.function)
    assert isinstance(function, ast.FunctionDef)
    template = raw.kind == "template"
    for node in ast.walk(function):  # as this project's own kernels say it: strategies look for that
        if isinstance(node, ast.keyword) and node.arg == "allow_tf32":
            node.arg, node.value = "input_precision", ast.Constant("tf32" if tf32 else "ieee")
    tiles = _tiles(function, tails) if template else {}
    numbers = _numbers(function)
    function.body = [node for node in function.body if node not in numbers.values()]  # launches pass them
    whole = () if template else _whole_rows(function, numbers)
    if raw.grid == BOTH_WAYS:
        _sum_both_ways(function)
    inside = _constants(function)
    function.body = used(tidied(function.body))
    if not template:
        function = _Masks(function, raw.grid).visit(function)
    params = tuple(arg.arg for arg in function.args.args if arg.annotation is None)
    constexprs = [arg.arg for arg in function.args.args if arg.annotation is not None]
    knobs: dict[str, int] = dict(tiles)
    fixed = {name: value for name, value in inside.items() if BLOCKS.match(name)}
    passed: dict[str, int] = {}
    setting = dict(first_setting(raw))
    setting["LOOP_STAGES"] = setting.pop("NUM_STAGES", 1)
    for name in filter(CHOSEN.match, constexprs):
        # One value leaves nothing to choose: its masks are written for it.
        (passed if _size(raw, name) == 1 else knobs)[name] = setting.get(name, 1)
    if left := [name for name in constexprs if name not in knobs and name not in passed]:
        raise LoweringError(f"torch.compile's kernel {raw.name} takes {', '.join(left)}, which is not known here.")
    fixed |= passed
    for name, value in passed.items():
        constant = ast.AnnAssign(ast.Name(name, ast.Store()), parse_expression("tl.constexpr"), ast.Constant(value), 1)
        function.body.insert(0, constant)
    told = [f"{name}: tl.constexpr" if SIZES.match(name) else name for name in params]
    signature = ", ".join([*told, *(f"{name}: tl.constexpr" for name in (*whole, *knobs))])
    body = "\n".join("    " + line for line in ast.unparse(ast.Module(function.body, [])).splitlines())
    knobs["NUM_WARPS"] = raw.warps or setting.get("NUM_WARPS", 4)
    if raw.stages:
        knobs["NUM_STAGES"] = raw.stages
    helpers = {name: HELPERS[name] for name in HELPERS if name in words.helpers} | words.combiners
    helpers |= {node.name: ast.unparse(words.visit(node)) + "\n" for node in raw.combines}
    return Cleaned(_base(raw), f"({signature}):\n{body}\n", params, knobs, fixed, whole, helpers, raw.grid)


class _Words(ast.NodeTransformer):
    """Inductor's helper modules → Triton's language and the functions of HELPERS."""

    def __init__(self, raw: Raw) -> None:
        self._name = raw.name
        self._floats = torch.float64 if raw.double else torch.float32
        self.helpers: set[str] = set()
        self.combiners: dict[str, str] = {}  # name → text

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(value=ast.Name(id="triton_helpers"), attr=name):
                if name in EXTREMES:
                    return parse_expression(self._extreme(name, [ast.unparse(arg) for arg in node.args]))
                if name not in CALLS:
                    raise LoweringError(
                        f"torch.compile's kernel {self._name} calls {name}, which has no form of its own yet."
                    )
                text = CALLS[name].format(
                    *map(ast.unparse, node.args), **{str(k.arg): ast.unparse(k.value) for k in node.keywords}
                )
                self.helpers |= {helper for helper in HELPERS if re.search(rf"\b{helper}\b", text)}
                return parse_expression(text)
            case ast.Attribute(value=ast.Name(id="libdevice" | "tl_math" as module), attr=name):
                plain = name in LANGUAGE or module == "tl_math"
                node.func = parse_expression(f"tl.{name}" if plain else f"tl.extra.cuda.libdevice.{name}")
            case ast.Attribute(value=number, attr="to") if len(node.args) == 1 and _is_size(number):
                # A size of one is a constant to the compiler, and constants have no methods.
                return parse_expression(f"tl.cast({ast.unparse(number)}, {ast.unparse(node.args[0])})")
            case ast.Attribute(value=ast.Name(id="tl"), attr="broadcast_to") if _is_size(node.args[0]):
                size, shape = map(ast.unparse, node.args)  # a constant has no shape, either
                return parse_expression(f"tl.full({shape}, {size}, tl.int64)")
            case ast.Attribute(value=ast.Name(id="tl"), attr="inline_asm_elementwise"):
                return _in_words(node)
        return node

    def _extreme(self, name: str, args: Sequence[str]) -> str:
        if not name.endswith("2"):
            return EXTREMES[name].of(args[0], args[1], self._floats)
        self.combiners |= EXTREMES[name].functions(self._floats)
        return EXTREMES[name].across(args[0], int(args[1]), self._floats)

    def visit_Expr(self, node: ast.Expr) -> Any:
        asserts = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "tl.device_assert"
        return None if asserts else self.generic_visit(node)  # indices are the judge's business

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        self.generic_visit(node)
        node.decorator_list = [d for d in node.decorator_list if ast.unparse(d) == "triton.jit"]
        node.body = node.body or [ast.Pass()]
        return node


def _is_size(node: ast.expr) -> bool:
    """Whether an expression is made of the sizes that a launch passes."""
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return bool(names) and all(name.startswith("ks") or name.endswith("numel") for name in names)


def _numbers(function: ast.FunctionDef) -> dict[str, ast.stmt]:
    """`r0_numel = 128` in a body: sizes that are the same in all cases."""
    found: dict[str, ast.stmt] = {}
    for node in function.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant()) if SIZES.match(name):
                found[name] = node
    return found


def _whole_rows(function: ast.FunctionDef, numbers: Mapping[str, ast.stmt]) -> tuple[str, ...]:
    """Take blocks of a whole row out of a body, where sizes differ: they become parameters."""
    sizes = {arg.arg for arg in function.args.args} - {*numbers}
    found = tuple(name for name in _constants(function) if name.startswith("R") and _numel(name) in sizes)
    function.body = [
        n for n in function.body
        if not (isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.target.id in found)
    ]  # fmt: skip
    return found


def _sum_both_ways(function: ast.FunctionDef) -> None:
    """Make a kernel that sums rows, and columns in parts, right for all numbers of rows and all knobs.

    Inductor adds what it computes of rows past the last to the columns; its own settings have none of these.
    """
    function.body.insert(0, parse_module("tl.static_assert(RSPLIT_SIZE % XBLOCK == 0)").body[0])
    masked = any(isinstance(node, ast.Name) and node.id == "xmask" for node in ast.walk(function))
    for node in ast.walk(function):
        match node:
            case ast.arg(arg="NUM_STAGES"):
                node.arg = "LOOP_STAGES"  # those of a launch have the name
            case ast.Name(id="NUM_STAGES"):
                node.id = "LOOP_STAGES"
            case ast.Call(func=ast.Attribute(attr="sum"), args=[value, ast.Constant(value=0)]) if masked:
                node.args[0] = parse_expression(f"tl.where(xmask, {ast.unparse(value)}, 0)")


def _numel(block: str) -> str:
    return f"{block.removesuffix('BLOCK').lower()}numel"


class _Masks(ast.NodeTransformer):
    """Bounds checks with what makes them needless, which the compiler sees; it then drops the mask.

    `xindex < xnumel` is true where XBLOCK divides xnumel. Of a sum over rows in parts, `part * length + row < rows` is
    true where the last row of the last part is.
    """

    def __init__(self, function: ast.FunctionDef, grid: str) -> None:
        self._open = {"y"} if grid == "Grid2DWithYZOverflow" else set()  # its programs may be more than its blocks
        self._values: dict[str, set[str]] = {}  # name → what is assigned to it
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self._values.setdefault(node.targets[0].id, set()).add(ast.unparse(node.value))

    def visit_Assign(self, node: ast.Assign) -> Any:
        match node:
            case ast.Assign(
                targets=[ast.Name(id=mask)],
                value=ast.Compare(left=ast.Name(id=index), ops=[ast.Lt()], comparators=[ast.Name(id=most)]) as check,
            ):
                prefix = mask.removesuffix("mask")
                if (index, most) == (f"{prefix}index", f"{prefix}numel") and prefix not in self._open:
                    node.value = parse_expression(f"({ast.unparse(check)}) | ({most} % {prefix.upper()}BLOCK == 0)")
                elif (last := self._last(index)) and (rows := self._rows(most)) and f"{rows}) // " in last:
                    node.value = parse_expression(f"({ast.unparse(check)}) | ({last} < {rows})")
        return node

    def _rows(self, name: str) -> str:
        """The size that a name holds. PyTorch 2.11 writes no cast."""
        found = re.fullmatch(r"(ks\d+)|tl\.cast\((ks\d+), tl\.int\d+\)", self._value(name))
        return found[1] or found[2] if found else ""

    def _value(self, name: str) -> str:
        values = self._values.get(name, set())
        return next(iter(values)) if len(values) == 1 else ""

    def _last(self, name: str) -> str:
        """The largest value of an index within the bounds of its kernel, made of sizes; empty where it is not clear."""
        if SIZES.match(name):
            return name
        if found := re.fullmatch(r"([xyz]|r\d_)index", name):
            return f"({found[1]}numel - 1)"
        return self._largest(parse_expression(value)) if (value := self._value(name)) else ""

    def _largest(self, node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                return self._last(name)
            case ast.Constant(value=int() as value) if value >= 0:
                return str(value)
            case ast.Call(func=ast.Attribute(value=inner, attr="to")):
                return self._largest(inner)
            case ast.BinOp(left=left, op=ast.Mod(), right=ast.Name(id=size)) if SIZES.match(size):
                return f"({size} - 1)"
            case ast.BinOp(left=left, op=ast.FloorDiv(), right=ast.Constant() | ast.Name() as size) if _steady(size):
                return f"({inner} // {ast.unparse(size)})" if (inner := self._largest(left)) else ""
            case ast.BinOp(left=left, op=ast.Add() | ast.Mult() as sign, right=right):
                both, word = [self._largest(left), self._largest(right)], " + " if isinstance(sign, ast.Add) else " * "
                return f"({word.join(both)})" if all(both) else ""
        return ""


def _steady(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and bool(SIZES.match(node.id)))


def _in_words(node: ast.Call) -> ast.expr:
    """Inline assembly that the language has words for; other assembly stays."""
    match node.args:
        case [ast.Constant(value=str() as code), _, ast.List(elts=values), *_]:
            operation, given = code.split(" ")[0], [ast.unparse(value) for value in values]
            if operation == "fma.rn.f32":
                return parse_expression(f"tl.fma({', '.join(given)})")
            if operation == "rcp.approx.ftz.f32":
                return parse_expression(f"(1.0 / ({given[0]}))")
    return node


def _constants(function: ast.FunctionDef) -> dict[str, int]:
    """`NAME: tl.constexpr = 32` in a body, integers only."""
    found: dict[str, int] = {}
    for node in function.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=int() as value)):
                found[name] = value
    return found


def _tiles(function: ast.FunctionDef, tails: Sequence[Sequence[str]]) -> dict[str, int]:
    """Take a template's tile sizes out of its body: they become parameters, where every grid can follow them."""
    constants = _constants(function)
    fast = [name for name in ("BLOCK_M", "BLOCK_N") if not all(name in _movable(tail, constants) for tail in tails)]
    even = any(isinstance(n, ast.AnnAssign) and ast.unparse(n).startswith("EVEN_K: tl.constexpr = True") for n in
               function.body)  # fmt: skip
    stay = {*fast, "BLOCK_K"} if even else {*fast}
    taken = {name: constants[name] for name in TILES if name in constants and name not in stay}
    function.body = [
        n for n in function.body
        if not (isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name) and n.target.id in taken)
    ]  # fmt: skip
    return taken


def _size(raw: Raw, block: str) -> int:
    return raw.size_hints.get(block.removesuffix("BLOCK").lower(), 1 << 30)


def _base(raw: Raw) -> str:
    """What a kernel computes, from the name that Inductor gives it."""
    what = re.sub(r"^triton_[a-z]+_fused_?|_?\d+$", "", raw.name).strip("_")
    short = re.match(r"^.{1,40}(?=_|$)", what)
    return re.sub(r"\W", "_", short[0] if short else what[:40]).strip("_") or raw.kind.removeprefix("persistent_")


def _movable(tail: Sequence[str], constants: Mapping[str, int]) -> set[str]:
    """Tile sizes that a grid can be written by."""
    tiles = _Tiles(constants)
    for text in tail:
        tiles.visit(parse_expression(text))
    return tiles.found


class _Tiles(ast.NodeTransformer):
    """`(63 + n) // 64` is a division rounded up by BLOCK_N, where that is 64 and BLOCK_M is not."""

    def __init__(self, knobs: Mapping[str, int]) -> None:
        sizes = {name: knobs[name] for name in ("BLOCK_M", "BLOCK_N") if name in knobs}
        alone = [name for name, value in sizes.items() if list(sizes.values()).count(value) == 1]
        self._names = {sizes[name]: name for name in alone}
        self.found: set[str] = set()

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        self.generic_visit(node)
        match node:
            case ast.BinOp(op=ast.FloorDiv(), right=ast.Constant(value=int() as size)) if size in self._names:
                count = _without(node.left, size - 1)
                if count is not None:
                    self.found.add(self._names[size])
                    return parse_expression(f"triton.cdiv({ast.unparse(count)}, {{{self._names[size]}}})")
        return node


def _without(node: ast.expr, rounding: int) -> ast.expr | None:
    """A sum without this constant summand; None where it has none."""
    match node:
        case ast.BinOp(left=ast.Constant(value=value), op=ast.Add(), right=rest) if value == rounding:
            return rest
        case ast.BinOp(left=rest, op=ast.Add(), right=ast.Constant(value=value)) if value == rounding:
            return rest
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            inner = _without(left, rounding)
            return None if inner is None else ast.BinOp(inner, op, right)
    return None
