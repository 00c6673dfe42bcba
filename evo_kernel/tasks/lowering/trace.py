"""Reference → aten graph with symbolic sizes: the reading half of lowering.

One graph serves every case of the task that meets its conditions: what the trace took for granted on the way, in Python
over the inputs' sizes (two sizes are equal, a size is at least 4, an input is contiguous).
"""

from __future__ import annotations

import ast
import keyword
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._sympy.printers import PythonPrinter

from evo_kernel.errors import LoweringError
from evo_kernel.syntax import parse_expression
from evo_kernel.tasks.layout import write
from evo_kernel.tasks.lowering.algebra import simplified
from evo_kernel.tasks.lowering.decompositions import Respelled, decomposition_table
from evo_kernel.tasks.lowering.failures import VALUES, brief, own_failure, quiet, reads_values
from evo_kernel.tasks.task import positional_names

RESERVED = {"torch", "triton", "tl", "math", "run"}
"""Names that the generated module uses itself."""

MOST_OPERATIONS = 3000
"""Of a reference, as PyTorch dispatches them: a loop that is unrolled makes more, and takes minutes to write out."""

EXECUTE_AT_MOST = 1 << 14
"""Elements: a case with sizes of one is tried on the traced graph with inputs shrunk to this."""

ARITHMETIC = {
    "math": math, "float": float, "int": int, "bool": bool, "type": type, "abs": abs, "min": min, "max": max
}  # fmt: skip
"""What printed conditions and size expressions may call."""

Expr = sympy.Expr


class _Printer(PythonPrinter):
    """Size expressions as plain Python: they only ever see ints and floats."""

    def _print_ToFloat(self, expr: sympy.Expr) -> str:
        return f"float({self._print(expr.args[0])})"

    def _helper_sqrt(self, expr: sympy.Expr) -> str:
        return f"math.sqrt({self._print(expr)})"


class TooLarge(LoweringError):
    """The reference has too many operations, or writing kernels for it takes too long."""


class _Counted(TorchDispatchMode):
    """Counts operations while a reference is traced. `check` is called for each, and may raise TooLarge."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__()
        self._check, self._count = check, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        self._count += 1
        if self._count > MOST_OPERATIONS:
            raise TooLarge(
                f"The reference executes more than {MOST_OPERATIONS} operations: no kernels are written for so many. "
                'Give the task a first kernel: SEED = "kernel.py".'
            )
        self._check()
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Traced:
    """One traced graph: aten nodes that carry fake values in `meta["val"]`, and what the trace assumed."""

    graph: fx.GraphModule
    reference: Callable[..., Any]
    names: tuple[str, ...]  # of the arguments of run
    inputs: tuple[Any, ...]  # fake tensors and Python values, one per argument
    symbols: Mapping[sympy.Symbol, tuple[int, int]]  # size symbol → (argument, dimension)
    conditions: tuple[str, ...]  # Python over the names of sizes (`size_name`), all of which must hold
    environment: ShapeEnv = field(repr=False, compare=False)  # what is known of the sizes

    @property
    def tensors(self) -> dict[str, Any]:
        """Name of an argument → its fake tensor."""
        return {n: v for n, v in zip(self.names, self.inputs, strict=True) if isinstance(v, torch.Tensor)}

    @property
    def changed(self) -> list[str]:
        """Arguments that the reference changes in place, which are its last outputs (see `functional`)."""
        return [self.names[position] for position in getattr(self.reference, "mutates", ())]

    @property
    def device(self) -> str:
        """An expression for the inputs' device."""
        return next((f"{name}.device" for name in self.tensors), '"cuda"')

    def size_name(self, symbol: sympy.Symbol) -> str:
        """The Python name of a size symbol inside `run`."""
        return self._size_names[symbol]

    @property
    def size_names(self) -> tuple[str, ...]:
        return tuple(self._size_names.values())

    @cached_property
    def _size_names(self) -> dict[sympy.Symbol, str]:
        names = (f"n{count}" for count in range(10_000))
        return {symbol: next(name for name in names if name not in self.names) for symbol in self.symbols}

    def text(self, expression: Expr | float) -> str:
        """A size expression as Python over the names of sizes."""
        if not isinstance(expression, sympy.Basic):
            return repr(expression)
        renamed = {symbol: sympy.Symbol(name) for symbol, name in self._size_names.items()}
        printed = _Printer().doprint(expression.xreplace(renamed))
        return ast.unparse(parse_expression(printed))

    def sizes_of(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Values of the named sizes for concrete inputs."""
        return {self._size_names[s]: int(inputs[argument].shape[dim]) for s, (argument, dim) in self.symbols.items()}

    def evaluate(self, expression: Expr | float, inputs: Sequence[Any]) -> Any:
        """The value of a size expression for concrete inputs."""
        return self._value(self.text(expression), inputs)

    def _value(self, text: str, inputs: Sequence[Any]) -> Any:
        scope = {**ARITHMETIC, **self.sizes_of(inputs), **dict(zip(self.names, inputs, strict=True))}
        return eval(text, {"__builtins__": {}}, scope)  # the text is our own printing of a size expression

    def test_against(self, others: Sequence[Sequence[Any]], served: Sequence[Sequence[Any]]) -> str:
        """The shortest test in Python over the arguments that none of the other inputs passes, and all served do."""
        usual = [f"{name} > 1" for name in self.size_names]  # what is served may have ones all the same
        candidates = [text for text in usual if all(self._value(text, one) for one in served)] + [*self.conditions]
        chosen, kinds = list[str](), list[str]()
        for inputs in others:
            if kind := next(filter(None, map(_kind_apart, self.names, self.inputs, inputs)), ""):
                kinds.append(kind)
            elif all(self._value(text, inputs) for text in chosen):
                chosen += [text for text in candidates if not self._value(text, inputs)][:1]
        places = {self.size_name(s): f"{self.names[where]}.shape[{dim}]" for s, (where, dim) in self.symbols.items()}
        # Numbers have no shapes, and shapes of other ranks no size.
        kinds.sort(key=lambda text: "isinstance" not in text)
        tests = dict.fromkeys([*kinds, *chosen])
        return re.sub(r"\bn\d+\b", lambda m: places.get(m[0], m[0]), " and ".join(tests)) or "True"

    def covers(self, inputs: Sequence[Any]) -> bool:
        """Whether the graph computes the reference for inputs of these shapes, dtypes, strides and Python values."""
        if not all(map(_same_kind, self.inputs, inputs)):
            return False
        if any(size == 0 for size in self.sizes_of(inputs).values()):
            return False
        if not all(self._value(condition, inputs) for condition in self.conditions):
            return False
        # A symbolic size is assumed to be at least two; a one may broadcast or squeeze differently.
        return all(size > 1 for size in self.sizes_of(inputs).values()) or self._agrees(inputs)

    def _agrees(self, inputs: Sequence[Any]) -> bool:
        """Run graph and reference side by side, on these sizes or smaller ones of their kind: do they agree?"""
        try:
            shrunk = self._shrunk(inputs)
            if shrunk is None or not all(self._value(condition, shrunk) for condition in self.conditions):
                return False
        except ZeroDivisionError:  # groups of channels: fewer channels are left than groups
            return False
        generator = torch.Generator().manual_seed(0)
        real = [_realise(value, generator) if isinstance(value, torch.Tensor) else value for value in shrunk]
        try:
            mine = self.graph(*(value for value in real if isinstance(value, torch.Tensor)))
            theirs = self.reference(*real)
        except RuntimeError:  # a view or broadcast of the graph does not fit these sizes
            return False
        return all(_close(a, b) for a, b in zip(flatten(mine), flatten(theirs), strict=False))

    def _shrunk(self, inputs: Sequence[Any]) -> list[Any] | None:
        """Inputs (without data) whose sizes are halved until they are small; ones stay ones."""
        sizes = self.sizes_of(inputs)
        while True:
            made = [self._resized(fake, sizes) for fake in self.inputs]
            if sum(value.numel() for value in made if isinstance(value, torch.Tensor)) <= EXECUTE_AT_MOST:
                return made
            smaller = {name: size if size == 1 else max(2, size // 2) for name, size in sizes.items()}
            if smaller == sizes:
                return None
            sizes = smaller

    def _resized(self, fake: Any, sizes: Mapping[str, int]) -> Any:
        if not isinstance(fake, torch.Tensor):
            return fake
        shape, strides = (
            [int(eval(self.text(expression_of(x)), {"__builtins__": {}}, {**ARITHMETIC, **sizes})) for x in numbers]
            for numbers in (fake.shape, fake.stride())
        )
        return torch.empty_strided(shape, strides, dtype=fake.dtype, device="meta")


def flatten(outputs: Any) -> tuple[Any, ...]:
    """Outputs of a reference as a tuple: it may return one tensor or several."""
    return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)


def trace(
    reference: Callable[..., Any],
    inputs: Sequence[Any],
    fixed: frozenset[tuple[int, int]] = frozenset(),
    table: Mapping[Any, Callable[..., Any]] | None = None,
    check: Callable[[], None] = lambda: None,
    simplify: bool = False,
) -> Traced:
    """Trace `reference` on fake tensors shaped like `inputs` (real, fake or meta tensors, and Python values).

    Sizes are symbols, but for those named in `fixed` (argument, dimension), which are numbers. `table`: which
    operations are broken up, and how; lowering's own where left out. `check`: called for each operation, to end it by
    an exception. `simplify`: compute sums of products without the products.

    Raises LoweringError when the reference cannot be traced, for instance because it decides on tensor values.
    """
    environment = ShapeEnv(duck_shape=False)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    mode.cache_enabled = bool(fixed)  # of symbols, an entry takes longer to make than its few hits save
    fakes = tuple(_fake(mode, value, index, fixed) for index, value in enumerate(inputs))
    names = _argument_names(reference, len(inputs))
    tensors = {name: fake for name, fake in zip(names, fakes, strict=True) if isinstance(fake, torch.Tensor)}

    def of_tensors(*given: torch.Tensor) -> Any:
        """The reference with its plain numbers bound: those are constants of the trace."""
        left = iter(given)
        with _Counted(check):
            return reference(*(next(left) if isinstance(fake, torch.Tensor) else fake for fake in fakes))

    table = decomposition_table() if table is None else table
    try:
        graph = _functional(_make_graph(of_tensors, list(tensors.values()), table), tensors, table)
        if simplify and (simpler := simplified(graph)) is not None:
            graph = _functional(_make_graph(simpler, list(tensors.values()), table), tensors, table)
    except TooLarge:
        raise
    except LoweringError as error:
        if (failure := own_failure(reference, inputs)) is not None:
            raise LoweringError(failure) from error
        raise
    symbols, conditions = _assumptions(environment, names, fakes, graph)
    _refuse_unknown_sizes(graph, symbols)
    return Traced(graph, reference, names, fakes, symbols, conditions, environment)


def renewed(traced: Traced) -> Traced:
    """The trace with what has been assumed of its sizes since, by whoever went on working with its graph."""
    symbols, conditions = _assumptions(traced.environment, traced.names, traced.inputs, traced.graph)
    return replace(traced, symbols=symbols, conditions=conditions)


def _refuse_unknown_sizes(graph: fx.GraphModule, symbols: Mapping[sympy.Symbol, tuple[int, int]]) -> None:
    """Every size must follow from the inputs' sizes: results as long as the data says have no launch plan."""
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, tuple | list) else (value,):
            if isinstance(tensor, torch.SymInt | torch.SymFloat | torch.SymBool):
                if expression_of(tensor).free_symbols - set(symbols):
                    raise LoweringError(VALUES)
            elif isinstance(tensor, torch.Tensor):
                free = set().union(*(expression_of(size).free_symbols for size in tensor.shape))
                if free - set(symbols):
                    raise LoweringError(
                        f"The size of what {node.target} returns depends on tensor values, so that no launch can be "
                        "planned for it. Use an operation of fixed size (torch.where instead of x[mask])."
                    )


def _make_graph(
    function: Callable[..., Any], fakes: Sequence[Any], table: Mapping[Any, Callable[..., Any]]
) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        with quiet(), Respelled():
            traced = make_fx(
                lambda *arguments: flatten(function(*arguments)),
                decomposition_table=table,
                tracing_mode="symbolic",
                _allow_non_fake_inputs=True,
            )(*fakes)
    except TooLarge:
        raise
    except Exception as error:  # whatever the user's reference or the tracer raises means: it cannot be traced
        if reads_values(error):
            raise LoweringError(VALUES) from error
        raise LoweringError(
            f"The reference cannot be traced on fake tensors ({brief(error)}). Make it run on tensors without data, or "
            'give the task a first kernel: SEED = "kernel.py".'
        ) from error
    return traced


def _functional(
    graph: fx.GraphModule, inputs: Mapping[str, Any], table: Mapping[Any, Callable[..., Any]]
) -> fx.GraphModule:
    """Rewrite in-place operations as functional ones; the graph is traced again only where it has any. `inputs`: fake
    tensors by name."""
    operations = (node.target for node in graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    if any(operation._schema.is_mutable for operation in operations):
        graph = _make_graph(torch.func.functionalize(graph, remove="mutations"), list(inputs.values()), table)
        # Functionalising reads a mutated view back into itself; that copy is the value it copies.
        names = dict(zip((one for one in graph.graph.nodes if one.op == "placeholder"), inputs, strict=True))
        for node in list(graph.graph.nodes):
            if node.target is torch.ops.aten.copy_.default and node.args[0] in names:
                name = names[node.args[0]]
                raise LoweringError(
                    f"The reference writes into its input `{name}`. Write to a copy instead ({name}.clone()), or leave "
                    "out inplace=True."
                )
    graph.graph.eliminate_dead_code()
    return graph


def _fake(mode: FakeTensorMode, value: Any, index: int, fixed: frozenset[tuple[int, int]]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    from torch._dynamo.source import ConstantSource

    if isinstance(value, FakeTensor):  # from another mode: only its metadata counts
        value = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    kinds = [DimDynamic.STATIC if (index, dim) in fixed else DimDynamic.DYNAMIC for dim in range(value.dim())]
    context = StatelessSymbolicContext(dynamic_sizes=kinds)
    fake = mode.from_tensor(value, source=ConstantSource(f"argument_{index}"), symbolic_context=context)
    sizes = {expression_of(size) for size in fake.shape}
    for stride in fake.stride():
        if isinstance(step := expression_of(stride), sympy.Symbol) and step not in sizes:
            int(stride)  # a number: no size tells it
    with mode:
        return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="cpu")


def _argument_names(reference: Callable[..., Any], count: int) -> tuple[str, ...]:
    """The reference's own parameter names where they are usable, x0, x1, ... otherwise."""
    names = positional_names(reference)[:count]
    usable = [n for n in names if n not in RESERVED and not keyword.iskeyword(n) and "kernel" not in n]
    return tuple(usable) if len(usable) == count else tuple(f"x{index}" for index in range(count))


def _assumptions(
    environment: ShapeEnv, names: Sequence[str], fakes: Sequence[Any], graph: fx.GraphModule
) -> tuple[dict[sympy.Symbol, tuple[int, int]], tuple[str, ...]]:
    """Where each size symbol is read from, and all that the trace took for granted, as Python."""
    symbols: dict[sympy.Symbol, tuple[int, int]] = {}
    draft = Traced(graph, lambda: None, tuple(names), tuple(fakes), symbols, (), environment)
    tensors = [(argument, fake) for argument, fake in enumerate(fakes) if isinstance(fake, torch.Tensor)]
    for argument, fake in tensors:
        for dim, size in enumerate(fake.shape):
            raw = size.node._expr if isinstance(size, torch.SymInt) else None
            if isinstance(raw, sympy.Symbol) and environment.replace(raw) == raw:
                symbols.setdefault(raw, (argument, dim))
    plain = [pair for pair in zip(names, fakes, strict=True) if isinstance(pair[1], int | float)]
    conditions = [text for pair in plain for text in _of_number(*pair)]
    for argument, fake in tensors:
        name, shape = names[argument], [expression_of(size) for size in fake.shape]
        for dim, now in enumerate(shape):
            if not isinstance(now, sympy.Symbol) or symbols.get(now) != (argument, dim):
                conditions.append(f"{name}.shape[{dim}] == {draft.text(now)}")
        for dim, stride in enumerate(fake.stride()):
            text = f"{name}.stride({dim}) == {draft.text(expression_of(stride))}"
            conditions.append(text if shape[dim].is_Integer else f"({name}.shape[{dim}] == 1 or {text})")
    for guard in environment.guards:
        expression = environment.replace(guard.expr)
        if expression is not sympy.true and expression.free_symbols <= set(symbols):
            conditions.append(draft.text(expression))
    return symbols, tuple(dict.fromkeys(conditions))


def _of_number(name: str, value: float) -> list[str]:
    """That an argument is this number: 2, 2.0 and True are equal, and give results of other dtypes."""
    if math.isnan(value):
        same = f"{name} != {name}"
    else:
        same = f"{name} == {value!r}" if math.isfinite(value) else f"{name} == float({str(value)!r})"
    return [same, f"type({name}) is {type(value).__name__}"]


def expression_of(size: Any) -> Expr:
    """A size, stride or symbolic number as a sympy expression, simplified by what the trace found out."""
    if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
        return size.node.expr
    return sympy.sympify(size)


def _same_kind(fake: Any, value: Any) -> bool:
    if isinstance(fake, torch.Tensor):
        return isinstance(value, torch.Tensor) and (fake.dtype, fake.dim()) == (value.dtype, value.dim())
    return not isinstance(value, torch.Tensor)


def _kind_apart(name: str, fake: Any, value: Any) -> str:
    """A test that an argument passes as the trace had it, and not as this value; empty where they are of one kind."""
    if _same_kind(fake, value):
        return ""
    if not isinstance(fake, torch.Tensor):
        return f"not isinstance({name}, torch.Tensor)"
    if not isinstance(value, torch.Tensor):
        return f"isinstance({name}, torch.Tensor)"
    return f"{name}.dtype == {fake.dtype}" if fake.dtype != value.dtype else f"{name}.dim() == {fake.dim()}"


def _close(mine: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Same shape, same values up to rounding: a wrong broadcast is wrong by far more."""
    if (mine.shape, mine.dtype) != (theirs.shape, theirs.dtype):
        return False
    slack = torch.finfo(mine.dtype).eps ** 0.5 if mine.dtype.is_floating_point else 0.0
    return torch.allclose(mine, theirs, rtol=slack, atol=slack, equal_nan=True)


def _realise(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A real tensor of the same layout: small numbers for floats, zeros otherwise (valid as any index)."""
    real = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
    is_float = real.is_floating_point()
    write(real, torch.rand(value.shape, generator=generator) + 0.5 if is_float else torch.zeros(value.shape))
    return real
