"""Templates for a matrix product or a convolution, and the pointwise operations that follow: one kernel for Hopper.

Two forms: `triton`, which rewrites change; `gluon`, with a warp that loads and warp groups that multiply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import sympy
import torch
from torch import fx

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.lowering.contraction import LEAST
from evo_kernel.tasks.lowering.direct import DIRECT
from evo_kernel.tasks.lowering.layout import LoweredValue, align, same, storage_order
from evo_kernel.tasks.lowering.linking import link
from evo_kernel.tasks.lowering.lower import lower, ones
from evo_kernel.tasks.lowering.module import LoweredModule, Maker, read_sizes, tl_type
from evo_kernel.tasks.lowering.one_tap import ONE_TAP
from evo_kernel.tasks.lowering.pointwise import PointwiseJob, compute_type, literal
from evo_kernel.tasks.lowering.product_gluon import GLUON, PARTED, PRODUCT, SUMMED, in_gluon
from evo_kernel.tasks.lowering.product_triton import FITS, KERNEL, PAYS, RUN, SERVED
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowering_of
from evo_kernel.tasks.lowering.trace import Expr, Traced, trace
from evo_kernel.tasks.lowering.windows import CONVOLVE, CUT, GATHER, IMPORTS, NAMES, PLANES, SHAPED
from evo_kernel.tasks.task import Task, functional, without_data
from evo_kernel.types import CaseKind, Source

aten = torch.ops.aten
DTYPES = (torch.float16, torch.bfloat16)
Form = Literal["triton", "gluon"]
BIAS = ("if bias_ptr is not None:", "    acc += gl.load(bias_ptr + cols, mask=cols < n, other=0.0)[None, :]")
LAST = (0, 2, 3, 1)
"""Pictures, rows, columns, channels among a convolution's dimensions."""


def product_template(task: Task, form: Form = "triton") -> Source:
    """A first kernel for a reference that is one product of 16-bit matrices, or one convolution of 16 bits that is
    channels last, and pointwise operations on it. In Gluon, float32 matrices are multiplied as float16.

    Where other operations come before or between, `lower` writes them, if there are such products of float32, or
    convolutions that are channels first; each is computed with the pointwise operations that follow it.
    Sizes that tensor descriptors cannot serve go to what `lower` writes; of convolutions, to a kernel that gathers.
    Raises LoweringError for other references, and for operations that a form lacks.
    """
    case = next(case for case in task.cases if case.kind is CaseKind.SEARCH)
    try:
        product = _read(task, [without_data(spec) for spec in task.input_specs(case)])
    except LoweringError:
        if form == "triton":
            raise
        return lower(task, MAKERS)
    if product.scaled and form == "triton":
        raise LoweringError("A product of float32 has no template in Triton.")
    if product.filters:
        return Source(IMPORTS + product.text(form, _places(task, product)))
    plain = re.sub(r"\bdef run\(", "def run_plain(", lower(task).text)
    return Source(plain + product.text(form))


def _product(module: LoweredModule, node: AtenNode) -> tuple[str, list[tuple[LoweredValue, bool]]]:
    """`product` for float32 matrices, beside `fits`. A `Maker`."""
    return _made(module, node, Product(module.traced, module, scaled=True, within=True))


def _cut(module: LoweredModule, node: AtenNode) -> tuple[str, list[tuple[LoweredValue, bool]]]:
    """`cut` for a convolution of float32 with its bias. A `Maker`."""
    filters = LoweredValue.of("", node.result).shape[1]
    return _made(module, node, Product(module.traced, module, scaled=True, within=True, filters=filters))


MAKERS: dict[str, Maker] = {"product": _product, "cut": _cut}


def _made(module: LoweredModule, node: AtenNode, product: Product) -> tuple[str, list[tuple[LoweredValue, bool]]]:
    """A function's name, and values that it takes beside. Raises NotLowered."""
    taken, module.taken, module.inline = module.taken, {"bias"}, product._pointwise
    try:
        triton = product.follow(node, module.following)
        statements = [in_gluon(line) for line in triton]
    except LoweringError as reason:
        raise NotLowered(str(reason)) from reason
    finally:
        module.inline, module.taken = None, taken
    own = "cut" if product.filters else "product"
    key = own, *statements, product.result, *product.extras.values()
    if key not in module.templates:
        host = (
            PLANES + DIRECT + ONE_TAP * (module.precision != "ieee") + CUT
            if product.filters
            else PARTED + PRODUCT + FITS.format(fits=PAYS)
        )
        if product.filters:
            product.extras = {"": "bias", **product.extras}
            statements = [*BIAS, *statements]
        summed = "" if product.filters else product.filled(SUMMED, triton)
        text = product.filled(GLUON + host, statements) + summed
        module.templates[key] = link(module.functions, text, module.taken)[own]
    return module.templates[key], [(replace(one, name=one.name[1:]), whole) for one, whole in product.beside]


def _read(task: Task, inputs: Sequence[Any]) -> Product:
    """Raises LoweringError."""
    traced = trace(functional(task.reference_function, task.mutates), inputs)
    product = Product(traced, LoweredModule(traced, [inputs], task.tolerance.precision))
    try:
        product.read()
    except NotLowered as reason:
        raise LoweringError(f"The reference is not one product and pointwise operations on it: {reason}.") from reason
    return product


def _places(task: Task, product: Product) -> str:
    """How stride, padding and dilation follow from what is no tensor, a statement for each combination in the cases."""
    chosen: dict[str, list[Any]] = {}
    cases = ([without_data(spec) for spec in task.input_specs(case)] for case in task.cases)
    for inputs in sorted(cases, key=ones):  # a size of one hides what a dimension means
        tests = []
        for name, value in zip(product.traced.names, inputs, strict=True):
            if not isinstance(value, torch.Tensor):
                tests.append(f"{name} == {value!r}")
            elif not value.permute(storage_order(product.traced.tensors[name])).is_contiguous():
                raise LoweringError(f"{name} lies in memory in several ways.")
        chosen.setdefault(" and ".join(tests) or "True", inputs)
    text = ""
    for test, inputs in chosen.items():
        other = _read(task, inputs)
        if any(getattr(other, name) != getattr(product, name) for name in ("a", "b", "statements", "result", "dtype")):
            raise LoweringError(f"The reference computes something else where {test}.")
        numbers = [other.module.size(number) for pair in other.places for number in pair]
        places = ", ".join(f"{name}={text}" for name, text in zip(NAMES["GEOMETRY"][2:8], numbers, strict=True))
        sizes = "".join(f"    {line}\n" for line in read_sizes(other.module))
        text += f"    if {test}:\n{sizes}        return dict({places})\n"
    return text


@dataclass
class Product:
    """What a traced reference does after its product, as statements over a tile of the result."""

    traced: Traced
    module: LoweredModule
    a: str = ""  # the argument that is the left matrix, its leading dimensions flattened
    b: str = ""
    acc: str = ""  # the variable that holds a tile of the product
    b_transposed: bool = False  # its rows are columns of the product
    scaled: bool = False  # they are float32: rows times powers of two, as float16
    extras: dict[str, str] = field(default_factory=dict)  # argument → the variable that it is loaded to
    beside: list[tuple[LoweredValue, bool]] = field(default_factory=list)  # what is loaded; whether a value an element
    tiled: bool = False  # one of them has a value an element, whose layout takes shared memory too
    statements: list[str] = field(default_factory=list)
    types: dict[str, torch.dtype] = field(default_factory=dict)  # of variables in statements
    rank: int = 2
    turned: bool = False  # a convolution's result shows its channels before rows and columns
    result: str = ""  # the variable that is stored
    dtype: torch.dtype = torch.float32
    within: bool = False  # it is one of a larger graph, whose other values have names that begin with a dot
    filters: Expr | None = None  # how many a convolution has
    places: tuple[Sequence[int | Expr], ...] = ()  # its stride, padding and dilation

    def read(self) -> None:
        """Read the graph. Raises NotLowered."""
        values: dict[fx.Node, Any] = {}
        arguments = iter(self.traced.tensors.items())
        self.module.inline = self._pointwise
        for node in self.traced.graph.graph.nodes:
            if node.op == "placeholder":
                name, fake = next(arguments)
                values[node] = LoweredValue.of(name, fake)
            elif node.op == "output":
                self._finish([values.get(item) for item in node.args[0]])
                self.turned = self._columns(node.args[0][0].meta["val"]) == -3
            elif isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
                if node.op != "call_function" or any(
                    isinstance(parent.meta.get("val"), torch.Tensor) and parent not in values
                    for parent in node.all_input_nodes
                ):
                    raise NotLowered(f"it has {node.target}")
                values[node] = self._value(AtenNode(node, values, self.module.fresh(node.name.strip("_"))))

    def follow(self, node: AtenNode, following: Sequence[fx.Node]) -> list[str]:
        """The statements for a product or convolution of a larger graph and for what follows. Raises NotLowered."""
        used = {one for user in (node.fx, *following) for one in user.all_input_nodes if one in node.values}
        values = {one: node.values[one] for one in used}
        values = {one: replace(v, name=f".{v.name}") for one, v in values.items() if isinstance(v, LoweredValue)}
        self.acc = self.module.fresh("acc")
        self.types[self.acc] = torch.float32
        total = values[node.fx] = LoweredValue.of(self.acc, node.result)
        if node.fx.target in (aten.addmm.default, aten.baddbmm.default):
            bias = AtenNode(node.fx, values).value(0)
            job = PointwiseJob("bias", (total, bias), (torch.float32, torch.float32), ("{0} + {1}",))
            values[node.fx] = self._pointwise(AtenNode(node.fx, values), job)
        for one in following:
            values[one] = self._value(AtenNode(one, values, self.module.fresh("z")))
        last = values[(node.fx, *following)[-1]]
        rows = same(last.numel, total.numel) and same(last.shape[-1], total.shape[-1]) and last.contiguous
        if self.types.get(last.name) != torch.float32 or not (last.shape == total.shape if self.filters else rows):
            raise NotLowered("what follows has another shape or type")
        self.result = last.name
        return self.statements

    def _value(self, node: AtenNode) -> Any:
        match node.fx.target:
            case aten.alias.default | aten.detach.default:
                return node.value(0)
            case aten.permute.default | aten.t.default | aten.transpose.int:
                source = node.value(0)
                if len(source.shape) == 4 and (self.filters or source.name not in self.types):
                    return LoweredValue.of(source.name, node.result)  # strides tell
                if len(source.shape) != 2 or source.name in self.types:
                    raise NotLowered("it permutes something else than a matrix")
                turned = source.name.endswith(".T")
                return LoweredValue.of(source.name.removesuffix(".T") if turned else f"{source.name}.T", node.result)
            case aten.unsqueeze.default | aten.slice.Tensor | aten.view.default if self._is_vector(node):
                return LoweredValue.of(node.value(0).name, node.result)
            case aten.view.default | aten._unsafe_view.default | aten.reshape.default:
                source = node.value(0)
                viewed = LoweredValue.of(source.name, node.result)
                if not same(source.shape[-1], viewed.shape[-1]) or not source.contiguous:
                    raise NotLowered("a view changes rows")
                return viewed
            case aten.mm.default:
                return self._multiply(node, node.value(0), node.value(1))
            case aten.addmm.default if node.raw(-1, "alpha", 1) == 1 == node.raw(-1, "beta", 1):
                total = self._multiply(node, node.value(1), node.value(2))
                job = PointwiseJob("bias", (total, node.value(0)), (torch.float32, torch.float32), ("{0} + {1}",))
                return self._pointwise(node, job)
            case aten.convolution.default:
                return self._convolve(node)
        lowering = lowering_of(node.fx.target)
        if lowering is None or not lowering.__module__.endswith(("pointwise", "activations")):
            raise NotLowered(f"it has {node.operation}")
        return lowering(self.module, node)

    def _is_vector(self, node: AtenNode) -> bool:
        """Whether this shows a whole argument with one moving dimension, or a value, with other dimensions of one."""
        source = node.value(0)
        moving = [[size for size in value.shape if size != 1] for value in (source, LoweredValue.of("", node.result))]
        return (bool(self.filters) or source.name not in self.types) and len(moving[0]) <= 1 and moving[0] == moving[1]

    def _convolve(self, node: AtenNode) -> LoweredValue:
        bias, places = node.argument(2), [node.argument(index) for index in (3, 4, 5)]
        if len(node.result.shape) != 4 or node.argument(6) or node.argument(8) != 1:
            raise NotLowered("its convolution has groups, is transposed, or not of two dimensions")
        self._begin(node.value(0), node.value(1))
        if self.scaled:
            raise NotLowered("its convolution is one of float32")
        total = LoweredValue.of(self.acc, node.result)
        self.filters = total.shape[1]
        self.places = tuple(place * 2 if len(place) == 1 else place for place in places)
        self.a, self.b = self._channels_last(node.value(0)), self._channels_last(node.value(1))
        if bias is None:
            return total
        one = sympy.Integer(1)
        shown = replace(bias, shape=(*bias.shape, one, one), strides=(*bias.strides, one, one))
        job = PointwiseJob("bias", (total, shown), (torch.float32, torch.float32), ("{0} + {1}",))
        return self._pointwise(node, job)

    def _channels_last(self, value: LoweredValue) -> str:
        """An argument of (pictures, channels, rows, columns) as `run` says (pictures, rows, columns, channels)."""
        moved = self._last(value)
        if not moved.contiguous:
            raise NotLowered("its convolution is not channels last")
        same_order = LoweredValue.of("", self.traced.tensors[value.name]).shape == moved.shape
        return value.name if same_order else f"{value.name}.permute{LAST}"

    @staticmethod
    def _last(value: LoweredValue) -> LoweredValue:
        shape, strides = (tuple(numbers[dim] for dim in LAST) for numbers in (value.shape, value.strides))
        return replace(value, shape=shape, strides=strides)

    def _columns(self, fake: torch.Tensor) -> int:
        """Which dimension, from the last one, is the tile's columns: a convolution's channels, innermost in memory."""
        if not self.filters:
            return -1
        shape = LoweredValue.of("", fake).shape
        if self.scaled:
            if storage_order(fake) != tuple(range(len(shape))) or len(shape) < 3 or shape[1] != self.filters:
                raise NotLowered("it is not channels first")
            return 1 - len(shape)
        moving = tuple(dim for dim, size in enumerate(shape) if size != 1)
        order = moving if len(moving) == 1 else storage_order(fake)
        if order not in (moving[:1], LAST, (0, 1, 2, 3)) or shape[order[-1]] != self.filters:
            raise NotLowered("it is not channels last")
        return order[-1] - len(shape)

    def _multiply(self, node: AtenNode, a: LoweredValue, b: LoweredValue) -> LoweredValue:
        self._begin(a, b)
        turned = a.name.endswith(".T") and not self.scaled
        if turned or self.traced.tensors[b.name.removesuffix(".T")].dim() != 2:
            raise NotLowered("its left matrix is transposed, or its right one a view")
        total = LoweredValue.of(self.acc, node.result)
        if self.scaled and min(map(self.module.largest, total.shape)) < LEAST:
            raise NotLowered("its product of float32 is small")
        self.a, self.b, self.b_transposed = a.name, b.name.removesuffix(".T"), b.name.endswith(".T")
        return total

    def _begin(self, a: LoweredValue, b: LoweredValue) -> None:
        if self.a:
            raise NotLowered("it has two products")
        self.scaled = a.dtype == torch.float32
        served = a.dtype in DTYPES or self.scaled
        if not served or b.dtype != a.dtype or a.name in self.types or b.name in self.types:
            raise NotLowered("its operands are not inputs of 16 bits or float32")
        self.acc = self.module.fresh("acc")
        self.types[self.acc] = torch.float32

    def _pointwise(self, node: AtenNode, job: PointwiseJob) -> LoweredValue:
        """Statements for a pointwise operation; intermediate results are not rounded to 16 bits."""
        parents = [one for one in node.fx.all_input_nodes if getattr(node.values.get(one), "name", "") in self.types]
        if any(self._columns(one.meta["val"]) != self._columns(node.result) for one in parents):
            raise NotLowered("it meets itself in another order")
        texts = [self._operand(operand, dtype, node) for operand, dtype in zip(job.operands, job.types, strict=True)]
        self.statements += [line.format(*texts) for line in job.lines[:-1]]
        name = self.module.fresh("y")
        self.statements.append(f"{name} = {job.lines[-1].format(*texts)}")
        exact = job.name.startswith("to_")
        self.types[name] = node.result.dtype if exact else compute_type(node.result.dtype)
        return LoweredValue.of(name, node.result)

    def _operand(self, operand: Any, dtype: torch.dtype, node: AtenNode) -> str:
        if not isinstance(operand, LoweredValue):
            if not isinstance(operand, int | float | bool):
                raise NotLowered("a size takes part in it")
            return literal(operand, dtype)
        if operand.fill is not None:
            return literal(operand.fill, dtype)
        if operand.name not in self.types and operand.name not in self.extras:
            self._load(operand, node)
        name = self.extras.get(operand.name, operand.name)
        return name if self.types[name] == dtype else f"{name}.to({tl_type(dtype)})"

    def _load(self, value: LoweredValue, node: AtenNode) -> None:
        """Load an argument beside the tile: a value a column, a value a row, or one an element."""
        strides = align("p", value, LoweredValue.of("", node.result).shape).strides
        moving = [dim for dim, stride in enumerate(strides) if stride != 0]
        last = len(strides) + self._columns(node.result)
        planes = self.scaled and bool(self.filters)
        if value.name not in self.traced.tensors and not self.within:
            raise NotLowered("a view of an input takes part in it")
        if not moving:
            text = "tl.load({0}_ptr)"
        elif moving == [last] and strides[last] == 1:
            text = "tl.load({0}_ptr + cols, mask=cols < n, other=0.0)[None, :]"
        elif len(strides) == 2 and moving == [0] and strides[0] == 1:
            text = "tl.load({0}_ptr + rows, mask=rows < m, other=0.0)[:, None]"
        elif planes and len(moving) == len(strides) and value.contiguous:
            text = "tl.load(({0}_ptr + offsets)[:, None] + (cols * channel_stride)[None, :], mask=inside, other=0.0)"
        elif len(moving) == len(strides) and (self._last(value) if last == 1 and self.filters else value).contiguous:
            self.tiled = True
            inside = "mask=(rows < m)[:, None] & (cols < n)[None, :]"
            text = f"tl.load({{0}}_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :], {inside}, other=0.0)"
        else:
            raise NotLowered(f"{value.name} is broadcast in a way of its own")
        name = self.extras[value.name] = self.module.fresh("beside" if self.within else f"{value.name}_tile")
        self.beside.append((value, "inside" in text))
        self.statements.append(f"{name} = {text.format(name)}")
        self.types[name] = value.dtype

    def _finish(self, outputs: Sequence[Any]) -> None:
        if len(outputs) != 1 or self.traced.changed or not self.a:
            raise NotLowered("it has several results" if self.a else "it has no product")
        (value,) = outputs
        if not isinstance(value, LoweredValue) or value.name not in self.types:
            raise NotLowered("its result is no value of the product")
        if value.dtype not in (*DTYPES, torch.float32):
            raise NotLowered(f"its result is {value.dtype}")
        if not self.filters and len(value.shape) != self.traced.tensors[self.a.removesuffix(".T")].dim():
            raise NotLowered("its result has other dimensions than its left matrix")
        self.result, self.dtype, self.rank = value.name, value.dtype, len(value.shape)

    def text(self, form: Form, places: str = "") -> str:
        """Kernels and `run`. `places`: of a convolution, the body of a function."""
        kernel = GATHER + SHAPED if self.filters else KERNEL if form == "triton" else ""
        text = self.filled(kernel, self.statements)
        if form == "gluon":
            host = CUT if self.filters else PARTED * self.scaled + PRODUCT
            text += self.filled(GLUON + host, [in_gluon(line) for line in self.statements])
            text += self.filled(SUMMED, self.statements) if self.scaled else ""
        flat = self.rank == 2 or bool(self.filters)
        whole = [*self.extras] + [self.a] * (self.scaled and not flat)
        turn = self.scaled and not self.b_transposed and not self.filters
        return text + (CONVOLVE if self.filters else RUN).format(
            arguments=", ".join(self.traced.names), left=self.a if flat else f"{self.a}.flatten(0, -2)",
            right=f"{self.b}.T" if turn else self.b,
            shape=f"(*{self.a}.shape[:-1], {self.b}.shape[{0 if self.b_transposed else 1}])", dtype=self.dtype,
            wholes="".join(f" and {name}.is_contiguous()" for name in whole), first=self.a,
            fits=PAYS if self.scaled else SERVED,
            out="out" if flat else "out.flatten(0, -2)", extras="".join(f"{name}, " for name in self.extras),
            places=places, multiply="cut" if form == "gluon" else "gather",
            turned=".permute(0, 3, 1, 2)" if self.turned else "",
        )  # fmt: skip

    def filled(self, kernel: str, statements: Sequence[str]) -> str:
        """A kernel with what follows the product, and with the lines that are meant for such operands."""
        text = re.sub(
            r"^( *)EPILOGUE(.*)\n",
            lambda place: "".join(f"{place[1]}{line}{place[2]}\n" for line in statements),
            re.sub(r"\bacc\b", self.acc, kernel),
            flags=re.MULTILINE,
        )
        parted = self.scaled and self.module.precision == "ieee"
        planes = self.scaled and bool(self.filters)
        kept = {
            "MATRIX": not self.filters,
            "WINDOWS": self.filters,
            "SCALED": self.scaled,
            "LAYERED": self.scaled and not self.filters,
            "FLAT": not self.scaled or self.filters,
            "WHOLE": not parted,
            "PARTED": parted,
            "BOXES": not planes,
            "PLANES": planes,
            "HALVED": self.scaled and not parted,
            "TURNED": (self.b_transposed or self.scaled) and not self.filters and not parted,
            "STRAIGHT": not self.b_transposed and not self.filters and not self.scaled,
            "ALONE": not self.tiled and self.dtype != torch.float32,
        }
        lines = []
        for line in text.splitlines(keepends=True):
            code, _, marks = line.rstrip().rpartition("  # ")
            if not kept.keys() >= {*marks.replace("+", " ").split()} or not marks:
                lines.append(line)
            elif any(all(kept[mark] for mark in both.split("+")) for both in marks.split()):
                lines.append(f"{code}\n")
        text = "".join(lines)
        pointers, extras = ("".join(f"{name}{end}, " for name in self.extras.values()) for end in ("_ptr", ""))
        text = text.replace("BESIDE, ", pointers)
        pointers = "a_inverse_ptr, b_inverse_ptr, " * self.scaled + pointers
        if planes:
            text = re.sub(r"\b(c_smem|stage), ", "", text.replace("c_desc", "c_ptr"))
        absent = "PHASES|BOX|GEOMETRY|SIDES|STRIDES|residue"
        if not kept["LAYERED"]:
            absent = f"{'' if planes else 'STRIDES|' if self.filters else f'{absent}|'}layers|layer|LATER"
        text = re.sub(rf",\s+({absent})(: gl.constexpr)?\b", "", text)
        text = re.sub(
            rf"\b({'|'.join(NAMES)})\b(: \w+\.constexpr|)",
            lambda found: ", ".join(f"{name}{found[2]}" for name in NAMES[found[1]]),
            text,
        )
        for mark, value in {"POINTERS, ": pointers, "EXTRAS, ": extras, "RESULT": self.result}.items():
            text = text.replace(mark, value)
        return text
