"""Evaluates host code by its text, over shapes: what `run` and the functions that it calls compute, without running.

Whatever it does not know is None. A branch that it cannot decide is followed both ways, and what the two leave
different is unknown. Loops are walked once, unless they make a list; decorators are taken for transparent. So an answer
is a hint, never a proof.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, product
from typing import Any

from operators.micro.syntax import called, spell

Value = object  # int, float, bool, str, tuple, dict, HostTensor, Callee, Instance, ast.ClassDef, or None for unknown
MOST_STATEMENTS = 5000  # of one evaluation
DEEPEST = 12  # calls inside one another
LONGEST = 1 << 12  # values of a comprehension


@dataclass(frozen=True)
class HostTensor:
    dtype: str
    shape: tuple[int | None, ...]
    strides: tuple[int | None, ...] = ()


@dataclass(frozen=True, eq=False)
class Callee:
    """A function of the module, with the names around it and the object that it is a method of."""

    node: ast.FunctionDef | ast.Lambda
    scope: dict[str, Value]
    owner: Instance | None = None


@dataclass(frozen=True, eq=False)
class Instance:
    """An object of a class of the module; also the `ctx` of an `autograd.Function`."""

    kind: ast.ClassDef
    attributes: dict[str, Value] = field(default_factory=dict)


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_SIMPLE: dict[str, Callable[..., Any]] = {
    "triton.cdiv": lambda a, b: -(-a // b),
    "cdiv": lambda a, b: -(-a // b),
    "triton.next_power_of_2": lambda a: 1 << (a - 1).bit_length(),
    "min": min,
    "max": max,
    "int": int,
    "len": len,
    "range": lambda *bounds: tuple(range(*bounds)) if len(range(*bounds)) <= LONGEST else None,
    "itertools.product": lambda *parts: tuple(islice(product(*parts), LONGEST)),
    "math.prod": math.prod,
    "math.ceil": math.ceil,
    "math.sqrt": math.sqrt,
}
_TARGET = {
    "triton.runtime.driver.active.get_current_target().backend": "cuda",
    "torch.cuda.is_available()": True,
    "IS_AMD": False,
    "IS_HIP": False,
    "IS_NVIDIA": True,
}
"""Questions about the machine whose answer is known, also by imported names: kernels are judged for NVIDIA GPUs."""
_NOTHING = (TypeError, ValueError, ZeroDivisionError, IndexError, KeyError, OverflowError, AttributeError)
"""What an unknown operand raises, or a case that the code was not written for."""


class Evaluator:
    """Evaluates the code of one module. `notice` is told each statement before it is evaluated, and by whom."""

    def __init__(self, tree: ast.Module, notice: Callable[[ast.stmt, Evaluator], None] = lambda *_: None) -> None:
        self.notice = notice
        self.entered: set[ast.AST] = set()  # functions that were evaluated
        self.values: dict[str, Value] = {}
        self._returned: list[Value] = []
        self._depth = self._statements = 0
        self._globals: dict[str, Value] = {}
        self._assigned: dict[str, ast.expr] = {}
        for statement in tree.body:
            if isinstance(statement, ast.FunctionDef | ast.ClassDef):
                self._globals[statement.name] = self._defined(statement)
            elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                self._assigned[statement.targets[0].id] = statement.value

    def _defined(self, node: ast.FunctionDef | ast.ClassDef) -> Value:
        return node if isinstance(node, ast.ClassDef) else Callee(node, {})

    # -- calls -----------------------------------------------------------------------------------------------------

    def call(self, callee: Callee, arguments: Sequence[Value], keywords: Mapping[str, Value]) -> Value:
        """What a function returns, where all its returns agree."""
        node = callee.node
        given = list(arguments) if callee.owner is None else [callee.owner, *arguments]
        if self._depth >= DEEPEST or self._statements >= MOST_STATEMENTS:
            return None
        outer = self.values, self._returned
        self.values, self._returned = {**callee.scope, **self._bound(node.args, given, keywords)}, []
        self._depth += 1
        self.entered.add(node)
        try:
            if isinstance(node, ast.Lambda):
                return self.value(node.body)
            self.block(node.body)
            first, *others = self._returned or [None]
            return first if all(other is first or other == first for other in others) else None
        finally:
            self._depth -= 1
            self.values, self._returned = outer

    def _bound(self, spec: ast.arguments, given: list[Value], keywords: Mapping[str, Value]) -> dict[str, Value]:
        names = [a.arg for a in spec.posonlyargs + spec.args]
        bound: dict[str, Value] = {name: None for name in [*names, *[a.arg for a in spec.kwonlyargs]]}
        defaults = dict(zip(reversed(names), reversed(spec.defaults), strict=False))
        defaults |= {a.arg: d for a, d in zip(spec.kwonlyargs, spec.kw_defaults, strict=True) if d is not None}
        bound |= {name: self.value(default) for name, default in defaults.items()}
        bound |= dict(zip(names, given, strict=False))
        bound |= {name: value for name, value in keywords.items() if name in bound}
        if spec.vararg is not None:
            bound[spec.vararg.arg] = tuple(given[len(names) :])
        if spec.kwarg is not None:
            bound[spec.kwarg.arg] = {name: value for name, value in keywords.items() if name not in bound}
        return bound

    def _made(self, kind: ast.ClassDef, arguments: list[Value], keywords: Mapping[str, Value]) -> Instance:
        made = Instance(kind)
        init = _method(kind, "__init__")
        if init is not None:
            self.call(Callee(init, {}, made), arguments, keywords)
        return made

    # -- statements ------------------------------------------------------------------------------------------------

    def block(self, body: Iterable[ast.stmt]) -> bool:
        """Whether the suite certainly returned."""
        return any(self.statement(statement) for statement in body)

    def statement(self, statement: ast.stmt) -> bool:
        self._statements += 1
        if self._statements > MOST_STATEMENTS:
            return True
        self.notice(statement, self)
        match statement:
            case ast.Assign(targets=targets, value=value):
                found = self.value(value)
                for target in targets:
                    self._assign(target, found)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, self.value(value))
            case ast.AugAssign(target=ast.Name() as target, op=op, value=value):
                self._assign(target, self.value(ast.BinOp(ast.Name(target.id, ast.Load()), op, value)))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)) as call) if (
                isinstance(parts := self._name(name), tuple)
            ):
                self.values[name] = (*parts, *map(self.value, call.args)) if method == "append" else None
            case ast.Expr(value=value):
                self.value(value)
            case ast.If():
                return self._if(statement)
            case ast.With() | ast.Try():
                return self.block([*statement.body, *getattr(statement, "orelse", ())])
            case ast.For() | ast.While():
                self._loop(statement)
            case ast.FunctionDef():
                self.values[statement.name] = Callee(statement, self.values)
            case ast.Return(value=value):
                self._returned.append(self.value(value) if value is not None else None)
                return True
            case ast.Raise():
                return True
        return False

    def _loop(self, statement: ast.For | ast.While) -> None:
        parts = list(ast.walk(statement))
        lists = {spell(part.value) for part in parts if isinstance(part, ast.Attribute) and part.attr == "append"}
        leaves = any(isinstance(part, ast.Break | ast.Continue | ast.Return) for part in parts)
        steps = self.value(statement.iter) if isinstance(statement, ast.For) and lists and not leaves else None
        for step in steps if isinstance(steps, tuple) else (None,):
            if isinstance(statement, ast.For):
                self._assign(statement.target, step)
            self.block(statement.body)
        if not isinstance(steps, tuple):
            self.values.update(dict.fromkeys(lists & self.values.keys()))

    def _if(self, statement: ast.If) -> bool:
        test = self.value(statement.test)
        if test is not None:
            return self.block(statement.body if test else statement.orelse)
        before = self.values
        ends: list[dict[str, Value]] = []
        for suite in (statement.body, statement.orelse):
            self.values = dict(before)
            if not self.block(suite):
                ends.append(self.values)
        self.values = before
        if ends:
            first, last = ends[0], ends[-1]
            both = {name: first[name] for name in first.keys() & last.keys() if _same(first[name], last[name])}
            before.update({name: both.get(name) for name in first.keys() | last.keys()})
        return not ends

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.values[target.id] = value
        elif isinstance(target, ast.Attribute) and isinstance(owner := self.value(target.value), Instance):
            owner.attributes[target.attr] = value
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value if isinstance(value, tuple) and len(value) == len(target.elts) else [None] * len(target.elts)
            for name, part in zip(target.elts, parts, strict=True):
                self._assign(name, part)

    # -- expressions -----------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        try:
            return self._value(node)
        except _NOTHING:
            return None

    def _value(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                return self._name(node.id)
            case ast.Tuple() | ast.List():
                return tuple(chain.from_iterable(map(self._spread, node.elts)))
            case ast.Dict():
                pairs = zip(node.keys, node.values, strict=True)
                return {self.value(k): self.value(v) for k, v in pairs if k is not None}
            case ast.BinOp() if type(node.op) in _BINARY:
                return _BINARY[type(node.op)](self.value(node.left), self.value(node.right))
            case ast.UnaryOp(op=ast.USub()):
                return operator.neg(self.value(node.operand))  # type: ignore[arg-type]
            case ast.UnaryOp(op=ast.Not()):
                operand = self.value(node.operand)
                return None if operand is None else not operand
            case ast.Compare(ops=[ast.Is() | ast.IsNot() as how], comparators=[ast.Constant(value=None)]):
                known = self.value(node.left) is not None  # an unknown value may be None as well
                return isinstance(how, ast.IsNot) if known else None
            case ast.Compare() if len(node.ops) == 1 and type(node.ops[0]) in _COMPARE:
                sides = self.value(node.left), self.value(node.comparators[0])
                return None if None in sides else _COMPARE[type(node.ops[0])](*sides)
            case ast.BoolOp():
                parts = [self.value(v) for v in node.values]
                if None in parts:
                    return None
                return all(parts) if isinstance(node.op, ast.And) else any(parts)
            case ast.IfExp():
                test = self.value(node.test)
                return None if test is None else self.value(node.body if test else node.orelse)
            case ast.Lambda():
                return Callee(node, self.values)
            case ast.ListComp() | ast.GeneratorExp():
                return tuple(self._comprehension(node))
            case ast.Attribute():
                return self._attribute(node)
            case ast.Subscript():
                return self._item(self.value(node.value), node.slice)
            case ast.Call():
                return self._call(node)
        return None

    def _name(self, name: str) -> Value:
        if name in self.values:
            return self.values[name]
        if name not in self._globals and name in self._assigned:
            self._globals[name] = None  # what it is made of may name it
            outer, self.values = self.values, {}
            self._globals[name] = self.value(self._assigned[name])
            self.values = outer
        return self._globals.get(name, _TARGET.get(name))

    def _spread(self, node: ast.expr) -> tuple[Value, ...]:
        if not isinstance(node, ast.Starred):
            return (self.value(node),)
        parts = self.value(node.value)
        if not isinstance(parts, tuple):
            raise TypeError("an unknown number of values")
        return parts

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp) -> Iterator[Value]:
        outer = self.values
        self.values = dict(outer)
        try:
            for count, _ in enumerate(self._walked(node.generators)):
                if count >= LONGEST:
                    raise ValueError("too many values")
                yield self.value(node.elt)
        finally:
            self.values = outer

    def _walked(self, generators: list[ast.comprehension]) -> Iterator[None]:
        if not generators:
            yield None
            return
        first, *rest = generators
        parts = self.value(first.iter)
        if not isinstance(parts, tuple):
            raise TypeError("an unknown number of values")
        for part in parts:
            self._assign(first.target, part)
            tests = [self.value(test) for test in first.ifs]
            if None in tests:
                raise TypeError("an unknown number of values")
            if all(tests):
                yield from self._walked(rest)

    def _attribute(self, node: ast.Attribute) -> Value:
        if (answer := _TARGET.get(spell(node))) is not None:
            return answer
        owner = self.value(node.value)
        match owner:
            case HostTensor():
                known = {"shape": owner.shape, "dtype": owner.dtype, "ndim": len(owner.shape), "is_cuda": True}
                return known.get(node.attr)
            case Instance():
                if node.attr in owner.attributes:
                    return owner.attributes[node.attr]
                method = _method(owner.kind, node.attr)
                return Callee(method, {}, None if method and _is_static(method) else owner) if method else None
            case ast.ClassDef():
                if node.attr == "apply" and (forward := _method(owner, "forward")):
                    return Callee(forward, {}, Instance(owner))
                method = _method(owner, node.attr)
                return Callee(method, {}) if method else None
        is_torch = isinstance(node.value, ast.Name) and node.value.id == "torch"
        return node.attr if is_torch else None

    def _item(self, owner: Value, index: ast.expr) -> Value:
        if isinstance(index, ast.Slice):
            bounds = [None if bound is None else self.value(bound) for bound in (index.lower, index.upper, index.step)]
            return owner[slice(*bounds)] if isinstance(owner, tuple | str) else None  # type: ignore[misc]
        return owner[self.value(index)]  # type: ignore[index]

    def _call(self, node: ast.Call) -> Value:
        name = called(node)
        if (answer := _TARGET.get(spell(node))) is not None:
            return answer
        arguments = list(chain.from_iterable(map(self._spread, node.args)))
        keywords = {k.arg: self.value(k.value) for k in node.keywords if k.arg is not None}
        callee = self.value(node.func)
        if isinstance(callee, Callee):
            return self.call(callee, arguments, keywords)
        if isinstance(callee, ast.ClassDef):
            return self._made(callee, arguments, keywords)
        if isinstance(callee, Instance):
            method = _method(callee.kind, "__call__") or _method(callee.kind, "forward")
            return self.call(Callee(method, {}, callee), arguments, keywords) if method else None
        if name in _SIMPLE:
            return _SIMPLE[name](*arguments)
        if name.endswith("Config"):
            return self._config(arguments, keywords)
        if name in ("torch.empty_like", "torch.zeros_like"):
            like = arguments[0]
            dtype = str(keywords.get("dtype") or getattr(like, "dtype", ""))
            return replace(like, dtype=dtype) if isinstance(like, HostTensor) else None
        if name in ("torch.empty", "torch.zeros"):
            shape = arguments[0] if isinstance(arguments[0], tuple) else tuple(arguments)
            return HostTensor(str(keywords.get("dtype") or "float32"), shape, _strides(shape))  # type: ignore[arg-type]
        if isinstance(node.func, ast.Attribute):
            return self._of_tensor(self.value(node.func.value), node.func.attr, arguments)
        return None

    @staticmethod
    def _config(arguments: list[Value], keywords: Mapping[str, Value]) -> Value:
        """A `triton.Config` as a dict of all that it gives to a launch."""
        values = arguments[0] if arguments else keywords.get("kwargs")
        return {**values, **{k: v for k, v in keywords.items() if k != "kwargs"}} if isinstance(values, dict) else None

    @staticmethod
    def _of_tensor(owner: Value, name: str, arguments: list[Value]) -> Value:
        if not isinstance(owner, HostTensor):
            return None
        if name in ("stride", "size", "dim", "numel"):
            if name == "dim":
                return len(owner.shape)
            if name == "numel":
                return math.prod(owner.shape)  # type: ignore[arg-type]
            values = owner.strides if name == "stride" else owner.shape
            return values[arguments[0]] if arguments else values  # type: ignore[index]
        if name in ("contiguous", "detach"):
            return owner
        if name in ("view", "reshape"):
            shape = arguments[0] if arguments and isinstance(arguments[0], tuple) else tuple(arguments)
            return _reshaped(owner, shape)
        return None


def _reshaped(tensor: HostTensor, shape: tuple[Any, ...]) -> HostTensor | None:
    if -1 in shape:
        rest = math.prod(size for size in shape if size != -1)
        shape = tuple(math.prod(tensor.shape) // rest if size == -1 else size for size in shape)  # type: ignore[arg-type]
    return HostTensor(tensor.dtype, shape, _strides(shape))


def _strides(shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
    strides: list[int | None] = []
    step: int | None = 1
    for size in reversed(shape):
        strides.append(step)
        step = step * size if step is not None and size is not None else None
    return tuple(reversed(strides))


def _same(one: Value, other: Value) -> bool:
    return one is other or one == other


def _method(kind: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((n for n in kind.body if isinstance(n, ast.FunctionDef) and n.name == name), None)


def _is_static(method: ast.FunctionDef) -> bool:
    return any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in method.decorator_list)
