"""Templates for a matrix product and the pointwise operations that follow it: one persistent kernel for Hopper.

Two forms, product_FORM.txt: `triton`, with tensor descriptors, which rewrites change; `gluon`, with a warp that loads
by TMA, and one or two warp groups with wgmma.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import fx

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.lowering.layout import LoweredValue, align, same
from evo_kernel.tasks.lowering.lower import lower
from evo_kernel.tasks.lowering.module import LoweredModule, tl_type
from evo_kernel.tasks.lowering.pointwise import PointwiseJob, compute_type, literal
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowering_of
from evo_kernel.tasks.lowering.trace import Traced, trace
from evo_kernel.tasks.task import Task, functional, without_data
from evo_kernel.types import CaseKind, Source

aten = torch.ops.aten
DTYPES = (torch.float16, torch.bfloat16)
Form = Literal["triton", "gluon"]
GLUON_NAMES = {
    *("load", "where", "maximum", "minimum", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf"),
    *("PropagateNan", "abs", "floor", "ceil", "float32", "float16", "bfloat16", "int1", "int32", "int64"),
}


def product_template(task: Task, form: Form = "triton") -> Source:
    """A first kernel for a reference that is one product of 16-bit matrices and pointwise operations on it.

    Sizes that tensor descriptors cannot serve go to what `lower` writes. Raises LoweringError for other references, and
    for operations that a form lacks.
    """
    case = next(case for case in task.cases if case.kind is CaseKind.SEARCH)
    inputs = [without_data(spec) for spec in task.input_specs(case)]
    traced = trace(functional(task.reference_function, task.mutates), inputs)
    product = Product(traced, LoweredModule(traced, [inputs], task.tolerance.precision))
    try:
        product.read()
    except NotLowered as reason:
        raise LoweringError(f"The reference is not one product and pointwise operations on it: {reason}.") from reason
    plain = re.sub(r"\bdef run\(", "def run_plain(", lower(task).text)
    return Source(plain + product.text(form))


@dataclass
class Product:
    """What a traced reference does after its product, as statements over a tile of the result."""

    traced: Traced
    module: LoweredModule
    a: str = ""  # the argument that is the left matrix, its leading dimensions flattened
    b: str = ""
    acc: str = ""  # the variable that holds a tile of the product
    b_transposed: bool = False  # its rows are columns of the product
    extras: dict[str, str] = field(default_factory=dict)  # argument → the variable that it is loaded to
    tiled: bool = False  # one of them has a value an element, whose layout takes shared memory too
    statements: list[str] = field(default_factory=list)
    types: dict[str, torch.dtype] = field(default_factory=dict)  # of variables in statements
    rank: int = 2
    result: str = ""  # the variable that is stored
    dtype: torch.dtype = torch.float32

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
            elif isinstance(node.meta.get("val"), torch.Tensor | tuple | list):
                if node.op != "call_function" or any(
                    isinstance(parent.meta.get("val"), torch.Tensor) and parent not in values
                    for parent in node.all_input_nodes
                ):
                    raise NotLowered(f"it has {node.target}")
                values[node] = self._value(AtenNode(node, values, self.module.fresh(node.name.strip("_"))))

    def _value(self, node: AtenNode) -> Any:
        match node.fx.target:
            case aten.permute.default | aten.t.default | aten.transpose.int if node.value(0).name not in self.types:
                source = node.value(0)
                if len(source.shape) != 2:
                    raise NotLowered("it permutes more than two dimensions")
                turned = source.name.endswith(".T")
                return LoweredValue.of(source.name.removesuffix(".T") if turned else f"{source.name}.T", node.result)
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
        lowering = lowering_of(node.fx.target)
        if lowering is None or not lowering.__module__.endswith(("pointwise", "activations")):
            raise NotLowered(f"it has {node.operation}")
        return lowering(self.module, node)

    def _multiply(self, node: AtenNode, a: LoweredValue, b: LoweredValue) -> LoweredValue:
        if self.a:
            raise NotLowered("it has two products")
        if a.dtype not in DTYPES or b.dtype != a.dtype or a.name in self.types or b.name in self.types:
            raise NotLowered("its matrices are not inputs of 16 bits")
        if a.name.endswith(".T") or self.traced.tensors[b.name.removesuffix(".T")].dim() != 2:
            raise NotLowered("its left matrix is transposed, or its right one a view")
        self.a, self.b, self.b_transposed = a.name, b.name.removesuffix(".T"), b.name.endswith(".T")
        self.acc = self.module.fresh("acc")
        self.types[self.acc] = torch.float32
        return LoweredValue.of(self.acc, node.result)

    def _pointwise(self, node: AtenNode, job: PointwiseJob) -> LoweredValue:
        """Statements for a pointwise operation; intermediate results are not rounded to 16 bits."""
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
        last = len(strides) - 1
        if value.name not in self.traced.tensors:
            raise NotLowered("a view of an input takes part in it")
        if moving == [last] and strides[last] == 1:
            text = "tl.load({0}_ptr + cols, mask=cols < n, other=0.0)[None, :]"
        elif last == 1 and moving == [0] and strides[0] == 1:
            text = "tl.load({0}_ptr + rows, mask=rows < m, other=0.0)[:, None]"
        elif len(moving) == len(strides) and value.contiguous:
            self.tiled = True
            inside = "mask=(rows < m)[:, None] & (cols < n)[None, :]"
            text = f"tl.load({{0}}_ptr + rows.to(tl.int64)[:, None] * n + cols[None, :], {inside}, other=0.0)"
        else:
            raise NotLowered(f"{value.name} is broadcast in a way of its own")
        name = self.extras[value.name] = self.module.fresh(f"{value.name}_tile")
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
        if len(value.shape) != self.traced.tensors[self.a].dim():
            raise NotLowered("its result has other dimensions than its left matrix")
        self.result, self.dtype, self.rank = value.name, value.dtype, len(value.shape)

    def text(self, form: Form) -> str:
        """The kernel and `run`."""
        kernel = "\n\n" + Path(__file__).with_name(f"product_{form}.txt").read_text(encoding="utf-8")
        statements = [in_gluon(line) for line in self.statements] if form == "gluon" else self.statements
        text = re.sub(
            r"^( *)EPILOGUE\n",
            lambda place: "".join(f"{place[1]}{line}\n" for line in statements),
            re.sub(r"\bacc\b", self.acc, kernel),
            flags=re.MULTILINE,
        )
        pointers = "".join(f"{name}_ptr, " for name in self.extras.values())
        extras = "".join(f"{name}, " for name in self.extras.values())
        left = self.a if self.rank == 2 else f"{self.a}.flatten(0, -2)"
        arguments = ", ".join(self.traced.names)
        columns = f"{self.b}.shape[{0 if self.b_transposed else 1}]"
        shape = f"(*{self.a}.shape[:-1], {columns})"
        wholes = "".join(f" and {name}.is_contiguous()" for name in self.extras)
        run = RUN.format(
            arguments=arguments, left=left, right=self.b, shape=shape, dtype=self.dtype, wholes=wholes,
            out="out" if self.rank == 2 else "out.flatten(0, -2)", first=self.a,
            extras="".join(f"{name}, " for name in self.extras),
        )  # fmt: skip
        kept = {
            "TURNED": self.b_transposed,
            "STRAIGHT": not self.b_transposed,
            "ALONE": not self.tiled and self.dtype != torch.float32,
        }
        lines = []
        for line in text.splitlines(keepends=True):
            code, _, mark = line.rstrip().rpartition("  # ")
            if mark not in kept:
                lines.append(line)
            elif kept[mark]:
                lines.append(f"{code}\n")
        text = "".join(lines)
        for mark, value in {"POINTERS, ": pointers, "EXTRAS, ": extras, "RESULT": self.result}.items():
            text = text.replace(mark, value)
        return text + run


RUN = '''

def fits(a, b):
    """Whether tensor descriptors can serve these: rows begin at multiples of 16 bytes."""
    return a.is_contiguous() and b.is_contiguous() and all(size % 8 == 0 for size in (a.shape[1], *b.shape))


def run({arguments}):
    if not (fits({left}, {right}){wholes}):
        return run_plain({arguments})
    out = torch.empty({shape}, dtype={dtype}, device={first}.device)
    product({left}, {right}, {extras}{out})
    return out
'''


def in_gluon(line: str) -> str:
    """A statement of Triton in Gluon's words. Raises LoweringError for functions that Gluon lacks."""
    line = line.replace("tl.sigmoid(", "sigmoid(")
    for name in re.findall(r"\btl\.(\w+)", line):
        if name not in GLUON_NAMES:
            raise LoweringError(f"Gluon has no {name}.")
    return re.sub(r"\btl\.(?!PropagateNan)", "gl.", line)
