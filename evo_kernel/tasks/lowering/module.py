"""The module being written: kernels (each distinct text once), knobs, the lines of `run`, and the text of it all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import sympy
import torch
from torch import fx

from evo_kernel.tasks.lowering.layout import Group, LoweredValue, Operand, product, storage_order
from evo_kernel.tasks.lowering.trace import RESERVED, Expr, Traced

PARAM_NAMES = ("x", "y", "z", "w", "v", "u", "t", "s", "r", "q", "p", "o")
"""Names of a kernel's tensor parameters, in order."""

_NAMES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
TL_TYPES = {torch.bool: "tl.int1", **{getattr(torch, name): f"tl.{name}" for name in _NAMES}}


def tl_type(dtype: torch.dtype) -> str:
    return TL_TYPES[dtype]


@dataclass
class LoweredKernel:
    """One kernel while it is written."""

    base: str  # what it does: "mul", "row_sum"
    module: LoweredModule
    knobs: dict[str, int] = field(default_factory=dict)  # UPPERCASE name → default; NUM_WARPS is added
    params: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)

    def pointer(self, param: str, name: str) -> str:
        return self.scalar(f"{param}_ptr", name)

    def scalar(self, param: str, arg: str) -> str:
        """A run-time parameter; the same name is added once."""
        if param not in self.params:
            self.params.append(param)
            self.args.append(arg)
        return param

    def size(self, param: str, expression: Expr) -> str:
        """A size as a parameter; plain numbers too, so that the text does not depend on them."""
        return self.scalar(param, self.module.size(expression))

    def stride(self, param: str, operand: Operand, dim: int) -> Expr | str:
        """The stride of an operand along an iteration dimension: "0", "1", or a parameter."""
        stride = operand.strides[dim]
        own = operand.dims[dim]
        if stride == 0 or own is None:
            return "0"
        if stride == 1:
            return "1"
        return self.scalar(param, f"{operand.name}.stride({own})")

    def term(self, index: str, param: str, operand: Operand, dim: int) -> str:
        """`index * stride`, or "" where the operand does not move."""
        stride = self.stride(param, operand, dim)
        if stride == "0":
            return ""
        return index if stride == "1" else f"{index} * {stride}"

    def split(self, index: str, groups: Sequence[Group], prefix: str, indent: str = "    ") -> list[str]:
        """Write `index` apart into one index per group, innermost fastest; returns their names."""
        if len(groups) <= 1:
            return [index] * len(groups)
        names = [f"{prefix}_{i}" for i in range(len(groups))]
        rest = index
        for i in range(len(groups) - 1, 0, -1):
            size = self.size(f"{prefix}_size_{i}", groups[i].size)
            self.body.append(f"{indent}{names[i]} = {rest} % {size}")
            quotient = names[0] if i == 1 else f"{prefix}_rest_{i}"
            self.body.append(f"{indent}{quotient} = {rest} // {size}")
            rest = quotient
        return names

    def offset(self, operand: Operand, groups: Sequence[Group], indices: Sequence[str], tag: str = "") -> str:
        """Sum of index * stride of an operand over groups; "" when it stays in place."""
        terms = []
        for number, (group, index) in enumerate(zip(groups, indices, strict=True)):
            tail = f"{tag}_{number}" if len(groups) > 1 else tag
            terms.append(self.term(index, f"{operand.param}{tail}_stride", operand, group.dim))
        return " + ".join(term for term in terms if term)


@dataclass(frozen=True)
class LoweredLaunch:
    kernel: str  # its name and its text, a NUL between them
    grid: str  # mentions knobs as {BLOCK}
    args: tuple[str, ...]
    knobs: tuple[str, ...]
    depth: int = 0  # of the loop in `run` that it stands in
    before: str = ""  # a line before it, which mentions knobs too


@dataclass
class Branch:
    """What is printed of one trace."""

    traced: Traced
    lines: list[str | LoweredLaunch] = field(default_factory=list)
    defaults: dict[str, dict[str, int]] = field(default_factory=dict)  # kernel → knobs, in order of first launch
    used: set[str] = field(default_factory=set)  # names of sizes that the text mentions


Maker = Callable[["LoweredModule", Any], tuple[str, list[tuple[LoweredValue, bool]]]]
"""Makes a function for the `AtenNode` of a product or a convolution, with the module's `following`: its name; what it
takes beside, and whether that is as large as the result. Raises NotLowered."""


class LoweredModule(Branch):
    """Collects what the lowerings of all nodes write; `render` prints the module."""

    def __init__(
        self, traced: Traced, cases: Sequence[Sequence[Any]], precision: str, products: Mapping[str, Maker] = {}
    ) -> None:
        super().__init__(traced)
        self.cases = cases  # concrete inputs (or their metadata) of every case that this graph serves
        self.precision = precision  # "ieee" | "tf32"
        self.products = products  # "product": of float32 matrices, beside `fits`; "cut": a convolution
        self.templates: dict[tuple[Any, ...], str] = {}  # of them, what was made → the function's name in the module
        self.following: Sequence[fx.Node] = ()  # pointwise operations that the next of these is to compute too
        self.taken: set[str] = {*traced.names, *traced.size_names, *RESERVED}
        self.device = traced.device
        self.functions: dict[str, str] = {}  # jitted functions that kernels call: name → text
        self.triangles: dict[str, fx.Node] = {}  # products → the operation whose triangle of them was computed alone
        self.inline: Callable[[Any, Any], LoweredValue] | None = None  # takes pointwise jobs, in place of a kernel each

    # -- expressions over sizes -------------------------------------------------------------------------------------
    def size(self, expression: Expr | float) -> str:
        """A size expression as Python; notes which sizes `run` must read."""
        if isinstance(expression, sympy.Basic):
            free = expression.free_symbols
            self.used |= {self.traced.size_name(symbol) for symbol in free if isinstance(symbol, sympy.Symbol)}
        return self.traced.text(expression)

    def shape(self, sizes: Sequence[Expr]) -> str:
        inside = ", ".join(self.size(size) for size in sizes)
        return f"({inside},)" if len(sizes) == 1 else f"({inside})"

    def largest(self, expression: Expr) -> int:
        """The largest value of a size over the cases: what defaults of knobs go by."""
        return max((int(self.traced.evaluate(expression, case)) for case in self.cases), default=1)

    def block(self, expression: Expr, most: int = 1024, least: int = 16) -> int:
        """Default of a tile size along a dimension: a power of two, no larger than the dimension needs."""
        size = max(self.largest(expression), 1)
        return min(max(1 << (size - 1).bit_length(), least), most)

    def input_precision(self, operands: torch.dtype) -> str:
        """What `tl.dot` is told of its operands, with the comma before it.

        Where TF32 is not allowed, three products of parts in TF32: faster than multiply-adds, and nearer to float64 at
        any length of the sums (docs/results/h200.md).
        """
        if operands != torch.float32:
            return ""
        return f', input_precision="{"tf32x3" if self.precision == "ieee" else self.precision}"'

    @cached_property
    def wide(self) -> bool:
        """Whether some tensor of some case has elements that a 32-bit offset cannot reach."""
        fakes = [node.meta.get("val") for node in self.traced.graph.graph.nodes]
        sizes = {LoweredValue.of("", fake).numel for fake in fakes if isinstance(fake, torch.Tensor)}
        return any(self.largest(size) >= 1 << 31 for size in sizes)

    def program(self, axis: int) -> str:
        """The program's index along a grid axis, wide enough for offsets to be computed from it."""
        return f"tl.program_id({axis})" + (".to(tl.int64)" if self.wide else "")

    # -- lines of run -----------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        self.lines.append(text)

    @contextmanager
    def under(self, line: str) -> Iterator[None]:
        """What is written meanwhile stands under this line."""
        self.line(line)
        mark = len(self.lines)
        yield
        for place, one in enumerate(self.lines[mark:], mark):
            self.lines[place] = f"    {one}" if isinstance(one, str) else replace(one, depth=one.depth + 1)

    def empty(self, name: str, tensor: torch.Tensor) -> LoweredValue:
        """Allocate a value with the strides that eager PyTorch gives it (later views rely on them)."""
        value = LoweredValue.of(name, tensor)
        order = storage_order(tensor)
        dtype = f"dtype={value.dtype}, device={self.device}"
        if order == tuple(range(len(order))):
            inputs = (LoweredValue.of(name, fake) for name, fake in self.traced.tensors.items())
            alike = (
                one.name for one in inputs if (one.shape, one.dtype) == (value.shape, value.dtype) and one.contiguous
            )
            twin = next(alike, None) if value.contiguous else None
            self.line(f"{name} = torch.empty_like({twin})" if twin else self._empty(name, value.shape, dtype))
            return value if value.contiguous else replace(value, strides=contiguous_strides(value.shape))
        inverse = [order.index(dim) for dim in range(len(order))]
        self.line(f"{self._empty(name, [value.shape[dim] for dim in order], dtype)}.permute({tuple(inverse)})")
        return value

    def scratch(self, name: str, shape: Sequence[Expr], dtype: torch.dtype) -> LoweredValue:
        """Allocate a contiguous value that the reference has no counterpart of."""
        self.line(self._empty(name, shape, f"dtype={dtype}, device={self.device}"))
        return LoweredValue(name, tuple(shape), contiguous_strides(shape), dtype)

    def _empty(self, name: str, sizes: Sequence[Expr], options: str) -> str:
        return f"{name} = torch.empty({self.shape(sizes)}, {options})"

    def launch(self, kernel: LoweredKernel, grid: str, depth: int = 0, warps: int = 4) -> None:
        """Write a launch of `kernel`. The grid mentions knobs in braces: "(triton.cdiv({size}, {BLOCK}),)"."""
        knobs = {**kernel.knobs, "NUM_WARPS": warps}
        constexprs = [f"{name}: tl.constexpr" for name in kernel.knobs]
        text = f"({', '.join([*kernel.params, *constexprs])}):\n" + "\n".join(kernel.body) + "\n"
        full = LoweredLaunch(f"{kernel.base}\0{text}", grid, tuple(kernel.args), tuple(knobs), depth)
        self.lines.append(full)
        known = self.defaults.setdefault(full.kernel, dict(knobs))
        for name, default in knobs.items():
            known[name] = max(known[name], default)

    def fresh(self, base: str) -> str:
        """A variable name that `run` does not use yet."""
        name = numbered(self.taken | self.functions.keys(), base)
        self.taken.add(name)
        return name

    def named(self, base: str, text: str) -> str:
        """A fresh variable of `run` with the value of a text."""
        name = self.fresh(base)
        self.line(f"{name} = {text}")
        return name


def contiguous_strides(shape: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(product(shape[dim + 1 :]) for dim in range(len(shape)))


def numbered(names: Mapping[str, str] | set[str], base: str) -> str:
    """`base`, or `base_2`, `base_3`, ...: the first that is free."""
    name, count = base, 1
    while name in names:
        count += 1
        name = f"{base}_{count}"
    return name


LINE = 112

HEADER = '''"""{title}"""

{imports}

{constants}
'''


def render(title: str, modules: Sequence[tuple[Branch, Sequence[Sequence[Any]]]], functions: Sequence[str] = ()) -> str:
    """The whole module. Each entry is one traced branch with the inputs that `run` takes it for.

    `functions`: texts of jitted functions that kernels call.
    Kernels with equal texts are written once, whichever branch launches them.
    """
    defaults: dict[str, dict[str, int]] = {}
    for module, _ in modules:
        for kernel, knobs in module.defaults.items():
            known = defaults.setdefault(kernel, dict(knobs))
            for knob, value in knobs.items():
                known[knob] = max(known[knob], value)
    names: dict[str, str] = {}
    for kernel in defaults:
        names[kernel] = numbered(set(names.values()), kernel.split("\0")[0])
    # Knobs are plain where there is one kernel, and carry its name where there are several.
    prefixes = {k: "" if len(names) == 1 else n.replace("_kernel", "").upper() + "_" for k, n in names.items()}
    constants = [f"{prefixes[k]}{knob} = {value}" for k, knobs in defaults.items() for knob, value in knobs.items()]
    names = {kernel: name + "_kernel" for kernel, name in names.items()}
    kernels = [_kernel(names[kernel], kernel.split("\0")[1]) for kernel in defaults]
    body = _run(_chosen(modules), names, prefixes)
    imports = ["import torch", "import triton", "import triton.language as tl"]
    if "math." in body:
        imports.insert(0, "import math\n")
    header = HEADER.format(title=title, imports="\n".join(imports), constants="\n".join(constants))
    shared = "".join(one if one.startswith("\n") else f"\n\n\n{one}" for one in map(str.rstrip, functions))
    return "\n\n".join([header, *([shared.lstrip() + "\n"] if shared else []), *kernels, body])


def _kernel(name: str, text: str) -> str:
    parameters, body = text.split("\n", 1)
    line = f"def {name}{parameters}"
    if len(line) > LINE:
        parts = parameters.removeprefix("(").removesuffix("):").split(", ")
        at = next((n for n, part in enumerate(parts) if part.endswith("tl.constexpr")), len(parts))
        lines = [f"    {', '.join(some)},\n" for some in (parts[:at], parts[at:]) if some]
        line = f"def {name}(\n{''.join(lines)}):"
    return f"@triton.jit\n{line}\n{body}"


def _chosen(modules: Sequence[tuple[Branch, Sequence[Sequence[Any]]]]) -> list[tuple[Branch, str]]:
    """Each branch with the test by which `run` takes it; branches that would read the same are one.

    A trace may assume more than what is written from it depends on: of PyTorch 2.11's pooling, that a size is odd.
    """
    groups: list[list[tuple[Branch, Sequence[Sequence[Any]]]]] = []
    for module, served in modules:
        twins = next((group for group in groups if _same(group[0][0], module)), [])
        if not twins:
            groups.append(twins)
        twins.append((module, served))
    chosen = []
    for index, twins in enumerate(groups):
        later = [case for group in groups[index + 1 :] for _, cases in group for case in cases]
        tests = list(dict.fromkeys(twin.traced.test_against(later, served) for twin, served in twins))
        chosen.append((twins[0][0], tests[0] if len(tests) == 1 else " or ".join(f"({test})" for test in tests)))
    return chosen


def _same(one: Branch, other: Branch) -> bool:
    return (one.traced.names, read_sizes(one), one.lines) == (other.traced.names, read_sizes(other), other.lines)


def _run(modules: Sequence[tuple[Branch, str]], names: dict[str, str], prefixes: dict[str, str]) -> str:
    if len(modules) == 1:
        return _function("run", modules[0][0], names, prefixes)
    functions, choice = [], []
    arguments = ", ".join(modules[0][0].traced.names)
    for index, (module, test) in enumerate(modules):
        functions.append(_function(f"run_{index}", module, names, prefixes))
        last = index == len(modules) - 1
        choice += [] if last else [f"    if {test}:"]
        choice.append(f"    {'' if last else '    '}return run_{index}({arguments})")
    return "\n\n".join([*functions, "\n".join([f"def run({arguments}):", *choice]) + "\n"])


def _function(name: str, module: Branch, names: dict[str, str], prefixes: dict[str, str]) -> str:
    lines = [f"def {name}({', '.join(module.traced.names)}):", *read_sizes(module)]
    for line in module.lines:
        lines.append("    " + (line if isinstance(line, str) else _launch(line, names, prefixes)))
    return "\n".join(lines) + "\n"


def read_sizes(module: Branch) -> list[str]:
    """`n0, n1 = x.shape` for every input of which a size is used."""
    traced, lines = module.traced, []
    for position, argument in enumerate(traced.names):
        places = {dim: traced.size_name(symbol) for symbol, (where, dim) in traced.symbols.items() if where == position}
        used = {dim: name for dim, name in places.items() if name in module.used}
        if used:
            targets = [used.get(dim, "_") for dim in range(traced.inputs[position].dim())]
            lines.append(f"    {', '.join(targets)}{',' if len(targets) == 1 else ''} = {argument}.shape")
    return lines


def _launch(launch: LoweredLaunch, names: dict[str, str], prefixes: dict[str, str]) -> str:
    prefix = prefixes[launch.kernel]
    named = {knob: prefix + knob for knob in launch.knobs}
    grid = launch.grid.format(**named)
    options = [f"{knob.lower() if knob.startswith('NUM_') else knob}={prefix}{knob}" for knob in launch.knobs]
    call = f"{names[launch.kernel]}[{grid}]"
    arguments = [*launch.args, *options]
    loop = "    " * launch.depth
    before = f"{loop}{launch.before.format(**named)}\n    " if launch.before else ""
    flat = f"{before}{loop}{call}({', '.join(arguments)})"
    if len(flat) - len(before) <= LINE - 4:
        return flat
    inside = f"\n{loop}        "
    return f"{before}{loop}{call}({inside}{', '.join(launch.args)},{inside}{', '.join(options)},\n{loop}    )"
