"""`exp2` and `input-precision`: cheaper arithmetic within the task's contract.

`exp2`: exponentials in base 2, where the factor log2(e) folds into a factor that is there already.

The hardware has only 2^x; `tl.exp(x)` is `2^(x · log2(e))` with a multiplication for each element. Two folds:

* `tl.exp(c * x)` with a literal c: the literal takes the factor;
* scores that a scalar parameter scales (attention): the launch passes `scale · log2(e)`, and every exponential of
  differences of scores is taken in base 2. Offered only where scaled scores go nowhere but into maxima and exponents.

`input-precision`: of contractions.

Half-precision operands go to the tensor cores as they are (their products are exact in fp32). fp32 operands take TF32
where the task allows it; where it does not, products of their parts that together keep nearly all of fp32: three in
TF32 (Markidis et al., "NVIDIA Tensor Core Programmability, Performance & Precision", 2018), or six in bfloat16 (Henry
et al., "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019).
"""

from __future__ import annotations

import ast

from evo_kernel.syntax import parse_expression
from evo_kernel.types import TaskCard
from operators.micro.host_code import launches_for
from operators.micro.host_values import HostTensor
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.rewrites.grids import GridRewrite
from operators.micro.syntax import argument, called, mapped, names_written, spell, statements
from operators.micro.text import Edit

LOG2_E = 1.4426950408889634
PASSING = ("tl.maximum", "tl.max", "tl.where", "tl.trans", "tl.broadcast_to")


class Exp2(Rewrite):
    name, family, form = "exp2", "algorithm", "fold"
    lacks = "has no exponential with a factor that could take log2(e)"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> list[str]:
        return ["literal", *[p.name for p in kernel.parameters]]

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[Edit]:
        if form in ("literal", ""):  # `tl.exp(c * x)` with a literal c, none inside another
            found = [(c, f) for c in kernel.calls("tl.exp") if c.args and (f := _factor(c.args[0])) is not None]
            return [module.replace(c, _folded(c, *f)) for c, f in found if "tl.exp" not in spell(c.args[0])]
        if not _is_scale(module, kernel, form):
            return []
        values = [launch.arguments[form] for launch in module.launches_of(kernel.name)]
        edits = [module.replace(call.func, "tl.exp2") for call in kernel.calls("tl.exp")]
        return edits + [module.replace(value, f"({spell(value)}) * {LOG2_E}") for value in values]


def _factor(node: ast.expr) -> tuple[ast.expr, float] | None:
    """The literal factor of a product, and its value."""
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for side in (node.left, node.right):
            value = _number(side)
            if value is not None:
                return side, value
        node = node.left
    return None


def _number(node: ast.expr) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _number(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    return None


def _folded(call: ast.Call, factor: ast.expr, value: float) -> str:
    folded = parse_expression(repr(value * LOG2_E))
    return f"tl.exp2({spell(mapped(call.args[0], lambda part: folded if part is factor else None))})"


def _is_scale(module: KernelModule, kernel: SourceKernel, name: str) -> bool:
    """Whether a scalar parameter scales scores which only maxima and exponents see."""
    launches = module.launches_of(kernel.name)
    if not launches or any(name not in launch.arguments for launch in launches) or not kernel.calls("tl.exp"):
        return False
    read = any(isinstance(p, ast.Name) and p.id == name for s in kernel.body for p in ast.walk(s))
    folded = any("1.442695" in spell(launch.arguments[name]) for launch in launches)
    is_scalar = any(p.name == name and p.kind == "scalar" for p in kernel.parameters)
    return is_scalar and read and not folded and _Scores(kernel, name).closed()


class _Scores:
    """Which names hold scaled scores (or maxima of them), and whether they stay among exponents."""

    def __init__(self, kernel: SourceKernel, scale: str) -> None:
        self.kernel, self.scale = kernel, scale
        self.names: set[str] = set()
        self.target = ""  # the name whose assignment is looked at: a running maximum may read itself

    def closed(self) -> bool:
        while True:
            grown = {n for s in statements(self.kernel.body) for n in self._assigned(s)}
            if grown <= self.names:
                break
            self.names |= grown
        return (
            bool(self.names)
            and all(self._fits(s) for s in statements(self.kernel.body))
            and all(self.is_exponent(call) for call in self.kernel.calls("tl.exp"))
        )

    def _assigned(self, statement: ast.stmt) -> set[str]:
        value = statement.value if isinstance(statement, ast.Assign) else None
        self.target = next(iter(names_written(statement)), "") if value is not None else ""
        return names_written(statement) if value is not None and self._is_score(value) else set()

    def _is_score(self, node: ast.expr) -> bool:
        """An expression proportional to the scale (or infinite)."""
        match node:
            case ast.Name():
                return node.id in self.names
            case ast.BinOp(op=ast.Mult()):
                sides = (node.left, node.right)
                scaled = [spell(s) == self.scale for s in sides]
                return any(scaled) and not self._mentions(sides[0] if scaled[1] else sides[1])
            case ast.Subscript():
                return self._is_score(node.value)
            case ast.Call() if called(node) in PASSING:
                values = node.args[1:] if called(node) == "tl.where" else node.args
                scores = [a for a in values if self._is_score(a)]
                rest = [a for a in values if a not in scores and spell(a) != self.target]
                whole = called(node) in ("tl.maximum", "tl.where")
                harmless = all(_is_infinite_or_zero(a) for a in rest) if whole else not self._mentions(*rest)
                return bool(scores) and harmless
        return False

    def _mentions(self, *nodes: ast.AST) -> bool:
        names = {p.id for n in nodes for p in ast.walk(n) if isinstance(p, ast.Name)}
        return bool(names & (self.names | {self.scale}))

    def _fits(self, statement: ast.stmt) -> bool:
        """Whether a statement uses scores only as scores, in comparisons with infinity, or in exponents."""
        if isinstance(statement, ast.For | ast.If | ast.While):
            return isinstance(statement, ast.For) and not self._mentions(*ast.iter_child_nodes(statement.iter))
        if isinstance(statement, ast.Assign) and names_written(statement) & self.names:
            return self._is_score(statement.value) or self._starts(statement.value)

        def change(part: ast.AST) -> ast.expr | None:
            is_exp = isinstance(part, ast.Call) and called(part) == "tl.exp" and self.is_exponent(part)
            return ast.Constant(0) if is_exp else None

        return not self._mentions(mapped(statement, change))

    @staticmethod
    def _starts(value: ast.expr) -> bool:
        """The value that a running maximum starts from."""
        return (called(value) in ("tl.full", "tl.zeros") and "inf" in spell(value)) or _is_infinite_or_zero(value)

    def is_exponent(self, call: ast.Call) -> bool:
        inner = call.args[0]
        if not isinstance(inner, ast.BinOp) or not isinstance(inner.op, ast.Sub):
            return False
        return self._is_score(inner.left) and self._is_score(inner.right)


def _is_infinite_or_zero(node: ast.expr) -> bool:
    return spell(node) in ("float('-inf')", "-float('inf')", "0.0", "0")


HALVES = ("bfloat16", "float16")
SPLIT = ("tf32x3", "bf16x6")  # as exact as fp32 multiply-adds, on tensor cores


class InputPrecision(GridRewrite):
    """`operands=half` drops widening before a dot; `tf32` relaxes fp32 dots; `tf32x3`, `bf16x6` split them."""

    name, family, form = "input-precision", "algorithm", "operands"
    lacks = "has no dot whose operands could be read more cheaply"

    def forms(self, module: KernelModule, kernel: SourceKernel, task: TaskCard) -> tuple[str, ...]:
        if _narrowing(module, kernel, task):
            return ("half",)
        if not any(dtype.endswith("float32") for case in task.cases for dtype, _shape, _strides in case.inputs):
            return ()
        return ("tf32",) if task.precision == "tf32" else SPLIT

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> list[Edit]:
        if form != "half":
            return [module.replace(node, f'"{form}"') for node in exact_dots(kernel, form)]
        widened = {id(call): call for pair in _dot_pairs(kernel) for _, call in pair}
        return [module.replace(call, module.source_of(call.func.value)) for call in widened.values()]  # type: ignore[attr-defined]


def exact_dots(kernel: SourceKernel, but: str = "") -> list[ast.expr]:
    """The input precisions of fp32 dots that keep all of fp32, but for one form of them."""
    given = [argument(call, "input_precision") for call in kernel.calls("tl.dot")]
    return [node for node in given if isinstance(node, ast.Constant) and node.value in {"ieee", *SPLIT} - {but}]


def _widened(kernel: SourceKernel, node: ast.expr) -> tuple[str, ast.Call] | None:
    """(pointer, the `tl.load(...).to(tl.float32)`) of a dot's operand that was widened right after its load."""
    value = kernel.value_of(node.id) if isinstance(node, ast.Name) else node
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or value.func.attr != "to":
        return None
    load = value.func.value
    if not value.args or spell(value.args[0]) != "tl.float32" or called(load) != "tl.load":
        return None
    base = next((access.base for access in kernel.accesses if access.call is load), None)
    return (base, value) if base is not None else None


def _dot_pairs(kernel: SourceKernel) -> list[tuple[tuple[str, ast.Call], tuple[str, ast.Call]]]:
    """Both operands of every dot, if every dot has widened operands that nothing else reads; else none."""
    pairs = []
    for dot in kernel.calls("tl.dot"):
        left, right = _widened(kernel, dot.args[0]), _widened(kernel, dot.args[1])
        if left is None or right is None or not all(_only_in_dots(kernel, operand) for operand in dot.args[:2]):
            return []
        pairs.append((left, right))
    return pairs


def _only_in_dots(kernel: SourceKernel, node: ast.expr) -> bool:
    if not isinstance(node, ast.Name):
        return True
    operands = {id(operand) for dot in kernel.calls("tl.dot") for operand in dot.args[:2]}
    reads = [p for p in ast.walk(kernel.node) if isinstance(p, ast.Name) and p.id == node.id]
    return all(id(read) in operands for read in reads if isinstance(read.ctx, ast.Load))


def _narrowing(module: KernelModule, kernel: SourceKernel, task: TaskCard) -> bool:
    """Whether both operands of every dot come from inputs of one half-precision dtype, in all cases."""
    pairs = _dot_pairs(kernel)
    dtypes = [_dtypes(module, kernel, base, task) for pair in pairs for base, _ in pair]
    return bool(pairs) and all(d == dtypes[0] and len(d) == 1 and d <= set(HALVES) for d in dtypes)


def _dtypes(module: KernelModule, kernel: SourceKernel, pointer: str, task: TaskCard) -> set[str]:
    """The dtypes that a pointer has over the task's cases; "?" where that cannot be told."""
    values = [one.values.get(pointer) for one in launches_for(module, task, kernel)]
    return {v.dtype.removeprefix("torch.") if isinstance(v, HostTensor) else "?" for v in values} or {"?"}
