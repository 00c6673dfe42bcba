"""The form of a source that rewrites read: what published kernels spell in many ways, spelled in one.

`canonical` changes the text, never what it computes. Statements get lines of their own; `f = triton.jit(f)` becomes a
decorator, a kernel that is a static method a function, `run = f` a function too, and a launch of
`torch.library.wrap_triton(kernel)` or of an argument one of the kernel that it is.
One configuration of `@triton.autotune` becomes constants that launches pass, `@triton.heuristics` become arguments of
launches. A grid given by a name or a lambda stands in the launch. Numbers of tiles, warps and stages get names, for the
tuner to set. What cannot be told from the text stays as it is. A text in this form comes back byte for byte.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from evo_kernel.syntax import parse_expression, parse_module, walk
from operators.micro import kernels as parts
from operators.micro.host_values import Evaluator
from operators.micro.kernels import HostFunction, SourceKernel, SourceLaunch
from operators.micro.syntax import (
    argument,
    called,
    fresh_name,
    int_value,
    mapped,
    names_read,
    names_written,
    own_part,
    self_root,
    spell,
    statements,
    substitute,
)
from operators.micro.text import Edit, TextMap, splice

_TILES = re.compile(
    r"(BLOCK|TILE)(_?(SIZE|DIM))?(_?[A-Z0-9]{1,4})?|[A-Z]{1,2}_?(BLOCK|TILE)(_SIZE)?|XBLOCK", re.IGNORECASE
)
"""Parameters whose number says how much a program handles, and nothing of the data."""


def canonical(text: str) -> ParsedText:
    """The text in canonical form. Raises SyntaxError, ValueError, RecursionError."""
    source = ParsedText(text)
    for step in (
        _own_lines, _decorated, _functions_of_classes, _without_classes, _plain_run, _kernels_by_name, _untuned,
        _without_heuristics, _grids, _named_numbers,
    ):  # fmt: skip
        if edits := list(step(source)):
            source = ParsedText(splice(source.text, edits))
    return source


class ParsedText(TextMap):
    """A text with its tree; kernels and launches where they are asked for."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.tree = parse_module(text)

    @cached_property
    def kernels(self) -> Mapping[str, SourceKernel]:
        return parts.kernels_of(self.tree)

    @cached_property
    def functions(self) -> Sequence[tuple[HostFunction, Sequence[SourceLaunch]]]:
        """Functions of the host, each with its launches."""
        return [(host, list(parts.launches_of(host, self.kernels))) for host in parts.hosts_of(self.tree)]

    def launches(self) -> Iterator[tuple[SourceKernel, list[SourceLaunch]]]:
        """Kernels, each with its launches."""
        found = [launch for _, launches in self.functions for launch in launches]
        for kernel in self.kernels.values():
            yield kernel, [launch for launch in found if launch.kernel == kernel.name]

    @property
    def names(self) -> set[str]:
        defined = {s.name for s in self.tree.body if isinstance(s, ast.FunctionDef | ast.ClassDef)}
        return defined | {part.id for part in walk(self.tree) if isinstance(part, ast.Name)}

    def define(self, values: Mapping[str, int]) -> Edit:
        """Constants of the module, before its first function."""
        first = next(s for s in self.tree.body if isinstance(s, ast.FunctionDef | ast.ClassDef | ast.If | ast.Try))
        line = min([first.lineno, *[d.lineno for d in getattr(first, "decorator_list", ())]])
        while line > 1 and self.lines[line - 2].startswith("#"):
            line -= 1
        at = self.starts[line - 1]
        return Edit(at, at, "".join(f"{name} = {value}\n" for name, value in values.items()) + "\n\n")

    def without_decorator(self, node: ast.FunctionDef, decorator: ast.expr) -> Edit:
        return Edit(self.starts[decorator.lineno - 1], self.starts[(decorator.end_lineno or decorator.lineno)], "")


# -- lines ---------------------------------------------------------------------------------------------------------


def _own_lines(source: ParsedText) -> Iterator[Edit]:
    """Statements that share a line, on lines of their own."""
    for suite, holder in _suites(source.tree.body, None):
        crowded = any(one.end_lineno == other.lineno for one, other in pairwise(suite))
        if holder is not None and suite[0].lineno == _head(holder):
            yield source.replace(holder, spell(holder))
        elif crowded:
            first, last = source.span(suite[0])[0], source.span(suite[-1])[1]
            whole = source.starts[suite[0].lineno - 1] + suite[0].col_offset == first
            if whole:
                text = source.indented("\n".join(map(spell, suite)), suite[0].col_offset).lstrip(" ")
                yield Edit(first, last, text)


def _head(holder: ast.stmt) -> int:
    """The line on which the head of a compound statement ends."""
    heads = [part for part in ast.iter_child_nodes(holder) if isinstance(part, ast.expr | ast.arguments | ast.withitem)]
    lines = [part.end_lineno or 0 for head in heads for part in walk(head) if isinstance(part, ast.expr | ast.arg)]
    decorators = {d.end_lineno for d in getattr(holder, "decorator_list", ())}
    return max([holder.lineno, *[line for line in lines if line not in decorators]])


def _suites(body: list[ast.stmt], holder: ast.stmt | None) -> Iterator[tuple[list[ast.stmt], ast.stmt | None]]:
    """Suites that are to be looked at, outermost first; none inside one that is written anew."""
    shared = any(one.end_lineno == other.lineno for one, other in pairwise(body))
    inline = holder is not None and bool(body) and body[0].lineno == _head(holder)
    if body and (shared or inline):
        yield body, holder
        return
    for statement in body:
        if isinstance(statement, ast.Try | ast.ClassDef):
            inner = [statement.body]
        else:
            inner = [getattr(statement, name, []) for name in ("body", "orelse")]
        suites = [suite for suite in inner if suite and isinstance(suite[0], ast.stmt)]
        tight = [s for s in suites if s[0].lineno == _head(statement) and not isinstance(statement, ast.ClassDef)]
        if tight:
            yield tight[0], statement
            continue
        for suite in suites:
            yield from _suites(suite, statement)


def _decorated(source: ParsedText) -> Iterator[Edit]:
    """`f = triton.jit(f)`, and `f = triton.heuristics(...)(f)` behind it, as decorators of f."""
    for number, function in enumerate(source.tree.body):
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            continue
        wraps = list[ast.Assign]()
        for statement in source.tree.body[number + 1 :]:
            match statement:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(args=[ast.Name(id=inner)], keywords=[])
                ) if name == inner == function.name and self_root(statement.value) == "triton":
                    wraps.append(statement)
                case ast.FunctionDef() | ast.ClassDef():  # they see what f is when they are called
                    continue
                case _ if function.name in {*names_read(statement), *names_written(statement)}:
                    break
        layers = [source.source_of(wrap.value.func) for wrap in wraps if isinstance(wrap.value, ast.Call)]
        if layers[:1] == ["triton.jit"]:
            yield source.insert_before_function(function, "\n".join(f"@{layer}" for layer in reversed(layers)))
            yield from map(source.delete, wraps)


def _functions_of_classes(source: ParsedText) -> Iterator[Edit]:
    """Kernels that are static methods, as functions of the module before their class, which keeps their names."""
    taken = source.names
    for kind in [one for one in source.tree.body if isinstance(one, ast.ClassDef) and not one.decorator_list]:
        inside = _defined_in(kind)
        for name, node in inside.items():
            static = [one for one in getattr(node, "decorator_list", ()) if spell(one) == "staticmethod"]
            if not isinstance(node, ast.FunctionDef) or not parts.is_jit(node) or not static:
                continue
            given = [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
            start, end = source.starts[node.decorator_list[0].lineno - 1], source.span(node)[1]
            text = source.indented(source.text[start:end], 0)
            if names_read(*given) & inside.keys() or re.search(r"\b__\w*[a-zA-Z0-9]\b", text) or text[0] != "@":
                continue  # what stands in a class sees its names, has private ones, and strings stand where they do
            function = fresh_name(f"{kind.name}_{name}", taken)
            taken.add(function)
            text = re.sub(r"^@staticmethod\n", "", text, count=1, flags=re.MULTILINE)
            text = re.sub(rf"^def {name}\b", f"def {function}", text, count=1, flags=re.MULTILINE)
            at = source.starts[kind.lineno - 1]
            yield Edit(at, at, f"{text}\n\n\n")
            yield Edit(start, end, f"{' ' * node.col_offset}{name} = staticmethod({function})")


def _defined_in(kind: ast.ClassDef) -> dict[str, ast.stmt]:
    """The statements of a class by the names that they define."""
    found = {name: statement for statement in kind.body for name in names_written(own_part(statement))}
    return found | {s.name: s for s in kind.body if isinstance(s, ast.FunctionDef | ast.ClassDef)}


def _without_classes(source: ParsedText) -> Iterator[Edit]:
    """`Class.name`, where that is `staticmethod(kernel)`, as the kernel."""
    kinds = {kind.name: _defined_in(kind) for kind in source.tree.body if isinstance(kind, ast.ClassDef)}
    bound = names_written(source.tree) | {part.arg for part in walk(source.tree) if isinstance(part, ast.arg)}
    for part in walk(source.tree):
        match part:
            case ast.Attribute(value=ast.Name(id=kind), attr=name, ctx=ast.Load()) if kind not in bound:
                match kinds.get(kind, {}).get(name):
                    case ast.Assign(value=ast.Call(func=ast.Name(id="staticmethod"), args=[ast.Name(id=kernel)])) if (
                        kernel in source.kernels and kernel not in bound
                    ):
                        yield source.replace(part, kernel)


def _plain_run(source: ParsedText) -> Iterator[Edit]:
    """`run = f` as a function that calls f."""
    if any(isinstance(s, ast.FunctionDef) and s.name == "run" for s in source.tree.body):
        return
    for statement in source.tree.body:
        if isinstance(statement, ast.Assign) and [spell(t) for t in statement.targets] == ["run"]:
            called_one = source.source_of(statement.value)
            yield source.replace(statement, f"def run(*inputs):\n    return {called_one}(*inputs)")


def _kernels_by_name(source: ParsedText) -> Iterator[Edit]:
    """A launch of a kernel that a name stands for, by the kernel's own name."""
    kernels = source.kernels
    passed = {name for part in walk(source.tree) for name in _given(part) if name in kernels}
    for host, _ in source.functions:
        for statement in statements(host.node.body):
            match statement:
                case ast.Expr(value=ast.Call(func=ast.Subscript(value=ast.Name(id=name)))) if name in host.arguments:
                    asked = {spell(s.test) for s in statements(host.node.body) if isinstance(s, ast.If)}
                    known = passed - {*host.arguments, *names_written(host.node)}
                    new = [kernel for kernel in sorted(known) if f"{name} is {kernel}" not in asked]
                    start, end = source.span(statement)
                    launch, margin = source.text[start:end], " " * statement.col_offset
                    text = f"else:\n{source.indented(margin + launch, 4)}"
                    for kernel in new:
                        ours = source.indented(margin + kernel + launch.removeprefix(name), 4)
                        text = f"if {name} is {kernel}:\n{ours}\n{'el' if text.startswith('if') else ''}{text}"
                    if new:
                        yield source.replace(statement, text)
                    continue
                case ast.Expr(value=ast.Call(func=ast.Subscript(value=ast.Name(id=name) as place))) if (
                    name not in kernels
                ):
                    chosen = _only_value(host, name)
                case ast.Expr(value=ast.Call(func=ast.Subscript(value=ast.Call(args=[chosen]) as place))) if (
                    called(place).split(".")[-1] == "wrap_triton"
                ):
                    pass
                case _:
                    continue
            start, end = source.span(statement)
            before, after = source.span(place)
            head, tail = source.text[start:before], source.text[after:end]
            match chosen:
                case ast.Name(id=kernel) if kernel in kernels:
                    yield Edit(before, after, kernel)
                case ast.IfExp(body=ast.Name(id=one), orelse=ast.Name(id=other)) if {one, other} <= set(kernels):
                    pair = [source.indented(f"{head}{kernel}{tail}", 4) for kernel in (one, other)]
                    text = f"if {spell(chosen.test)}:\n{pair[0]}\nelse:\n{pair[1]}"
                    yield source.replace(statement, text)


def _given(part: ast.AST) -> Iterator[str]:
    """Names that are the arguments of a call, or defaults of a function's."""
    values: Sequence[ast.expr | None] = ()
    if isinstance(part, ast.Call) and called(part) != "staticmethod":
        values = [*part.args, *[keyword.value for keyword in part.keywords]]
    elif isinstance(part, ast.arguments):
        values = [*part.defaults, *part.kw_defaults]
    yield from (value.id for value in values if isinstance(value, ast.Name))


def _only_value(host: HostFunction, name: str) -> ast.expr | None:
    """What a name of a function is assigned, where that is one expression of names that are assigned nowhere else."""
    places = host.assigned.get(name, [])
    match places:
        case [ast.Assign(targets=[ast.Name()], value=value)]:
            later = [s for s in statements(host.node.body) if s.lineno > places[0].lineno]
            return value if not names_read(value) & names_written(*map(own_part, later)) else None
    return None


# -- decorators ----------------------------------------------------------------------------------------------------


def _untuned(source: ParsedText) -> Iterator[Edit]:
    """The first configuration of `@triton.autotune` as constants that the launches pass. Nothing where the module asks
    for what was chosen (`kernel.best_config`): a plain kernel cannot say."""
    if any(isinstance(part, ast.Attribute) and part.attr == "best_config" for part in ast.walk(source.tree)):
        return
    taken, constants = source.names, dict[str, int]()
    for kernel, launches in source.launches():
        decorator = _decorator(kernel.node, "autotune")
        config = _first_config(source.tree, decorator) if decorator is not None else None
        if decorator is None or config is None or not launches or not _can_pass(launches, config):
            continue
        stem, passed = kernel.name.removesuffix("_kernel").strip("_").upper(), []
        for name, value in config.items():
            if isinstance(value, int) and not isinstance(value, bool):
                constant = fresh_name(f"{stem}_{name.upper()}", taken)
                taken.add(constant)
                constants[constant] = value
                passed.append(f"{name}={constant}")
            else:
                passed.append(f"{name}={value!r}")
        yield source.without_decorator(kernel.node, decorator)
        yield from [source.add_arguments(launch.call, ", ".join(passed)) for launch in launches if passed]
    if constants:
        yield source.define(constants)


def _decorator(node: ast.FunctionDef, name: str) -> ast.Call | None:
    return next((d for d in node.decorator_list if called(d).split(".")[-1] == name and isinstance(d, ast.Call)), None)


def _first_config(tree: ast.Module, decorator: ast.Call) -> dict[str, object] | None:
    configs = argument(decorator, "configs", 0)
    values = Evaluator(tree).value(configs) if configs is not None else None
    first = values[0] if isinstance(values, tuple) and values else None
    if not isinstance(first, dict) or any(not isinstance(name, str) for name in first):
        return None
    plain = all(isinstance(value, int | float | str) for value in first.values())
    return first if plain and "pre_hook" not in first else None


def _can_pass(launches: Sequence[SourceLaunch], names: Mapping[str, object]) -> bool:
    """Whether every launch takes more keywords, and none of these yet."""
    given = [{*launch.arguments, *launch.options, *[k.arg for k in launch.call.keywords]} for launch in launches]
    return all(None not in one and not one & set(names) for one in given)


def _without_heuristics(source: ParsedText) -> Iterator[Edit]:
    """What `@triton.heuristics` computes of the arguments as arguments of the launches."""
    for kernel, launches in source.launches():
        decorator = _decorator(kernel.node, "heuristics")
        rules = argument(decorator, "values", 0) if decorator is not None else None
        if decorator is None or not isinstance(rules, ast.Dict) or not launches or _decorator(kernel.node, "autotune"):
            continue
        names = [str(key.value) if isinstance(key, ast.Constant) else "" for key in rules.keys]
        if not _can_pass(launches, dict.fromkeys(names)):
            continue
        functions = {f.name: f for f in parts.functions_of(source.tree)}
        ruled = dict(zip(names, rules.values, strict=True))
        added = [_told(kernel, launch, ruled, functions) for launch in launches]
        if None in added:
            continue
        yield source.without_decorator(kernel.node, decorator)
        for launch, text in zip(launches, added, strict=True):
            yield source.add_arguments(launch.call, str(text))


def _told(
    kernel: SourceKernel,
    launch: SourceLaunch,
    rules: Mapping[str, ast.expr],
    functions: Mapping[str, ast.FunctionDef],
) -> str | None:
    given = {**_defaults(kernel), **launch.arguments, **launch.options}
    told = dict[str, str]()
    for name, rule in rules.items():
        if not name or (value := _ruled(rule, functions, given)) is None:
            return None
        given[name], told[name] = value, spell(value)
    return ", ".join(f"{name}={text}" for name, text in told.items())


def _ruled(rule: ast.expr, functions: Mapping[str, ast.FunctionDef], given: Mapping[str, ast.expr]) -> ast.expr | None:
    """What a rule makes of what a launch passes: a lambda's expression, or a call of a function with what it names."""
    match rule:
        case ast.Lambda(args=ast.arguments(args=[ast.arg(arg=name)]), body=body):
            return _with_arguments(body, name, given)
        case ast.Name(id=name) if name in functions:
            words = {part.value for part in walk(functions[name]) if isinstance(part, ast.Constant)}
            named = ", ".join(f"{key!r}: {spell(value)}" for key, value in given.items() if key in words)
            return parse_expression(f"{name}({{{named}}})")
    return None


def _defaults(kernel: SourceKernel) -> dict[str, ast.expr]:
    spec = kernel.node.args
    names = [a.arg for a in spec.posonlyargs + spec.args]
    return dict(zip(reversed(names), reversed(spec.defaults), strict=False))


def _with_arguments(node: ast.expr, name: str, given: Mapping[str, ast.expr]) -> ast.expr | None:
    """An expression in which `name["X"]` is what a launch passes as X; None where it uses `name` in another way."""

    def change(part: ast.AST) -> ast.expr | None:
        match part:
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str() as key)) if owner == name:
                return given.get(key)
        return None

    changed = mapped(node, change)
    return None if name in names_read(changed) else changed


# -- grids ---------------------------------------------------------------------------------------------------------


def _grids(source: ParsedText) -> Iterator[Edit]:
    """Grids as tuples in the launch, without axes of one program that no kernel asks for."""
    kernels = source.kernels
    for host, launches in source.functions:
        for launch in launches:
            assert isinstance(launch.call.func, ast.Subscript)
            written, kernel = launch.call.func.slice, kernels[launch.kernel]
            plain = len(kernel.node.decorator_list) == 1  # else a decorator may give what the launch does not
            given = {**(_defaults(kernel) if plain else {}), **launch.arguments, **launch.options}
            grid = _grid(written, host, launch, given)
            if grid is None:
                continue
            elements = list(grid.elts)
            while len(elements) > 1 and int_value(elements[-1]) == 1 and not _asks(kernel, len(elements) - 1):
                elements.pop()
            if isinstance(written, ast.Tuple) and len(elements) == len(written.elts):
                continue
            text = f"({', '.join(map(spell, elements))}{',' if len(elements) == 1 else ''})"
            start, end = source.span(written)
            yield Edit(start, end, text)


def _grid(node: ast.expr, host: HostFunction, launch: SourceLaunch, given: Mapping[str, ast.expr]) -> ast.Tuple | None:
    """A launch's grid as a tuple; None where the text does not tell."""
    match node:
        case ast.Tuple():
            return node if node.elts and not any(isinstance(e, ast.Starred) for e in node.elts) else None
        case ast.List():
            return _grid(ast.Tuple(node.elts, ast.Load()), host, launch, given)
        case ast.Lambda(args=ast.arguments(args=[ast.arg(arg=name)]), body=body):
            changed = _with_arguments(body, name, given)
            return _grid(changed, host, launch, given) if isinstance(changed, ast.Tuple | ast.List) else None
        case ast.Name(id=name):
            return _named_grid(name, host, launch, given)
        case ast.Call() if called(node).split(".")[-1] == "cdiv":
            return ast.Tuple([node], ast.Load())
    return None


def _named_grid(name: str, host: HostFunction, launch: SourceLaunch, given: Mapping[str, ast.expr]) -> ast.Tuple | None:
    """The grid that a name holds where it is launched: what its last assignment before gives it."""
    places = [s for s in host.assigned.get(name, ()) if s.lineno < launch.statement.lineno]
    if not places or not any(any(places[-1] is s for s in suite) for suite in _around(host.node.body, launch)):
        return None
    match places[-1]:
        case ast.FunctionDef(
            args=ast.arguments(args=[ast.arg(arg=meta)]), body=[*before, ast.Return(value=ast.expr() as body)]
        ):
            values = dict[str, ast.expr | str]()
            for one in before:
                if not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Name) or len(one.targets) > 1:
                    return None
                values[one.targets[0].id] = substitute(one.value, values)
            body = substitute(body, values)
            node: ast.expr = ast.Lambda(ast.arguments([], [ast.arg(meta)], None, [], [], None, []), body)
        case ast.Assign(targets=[ast.Name()], value=value):
            node = value
        case _:
            return None
    later = [s for s in statements(host.node.body) if places[-1].lineno < s.lineno <= launch.statement.lineno]
    fixed = isinstance(node, ast.Lambda) or not names_read(node) & names_written(*map(own_part, later))
    return _grid(node, host, launch, given) if fixed and not isinstance(node, ast.Name) else None


def _around(body: list[ast.stmt], launch: SourceLaunch) -> Iterator[list[ast.stmt]]:
    """The suites that hold a launch, outermost first."""
    for statement in body:
        if any(part is launch.call for part in walk(statement)):
            yield body
            for name in ("body", "orelse", "finalbody"):
                yield from _around(getattr(statement, name, []), launch)


def _asks(kernel: SourceKernel, axis: int) -> bool:
    """Whether a kernel asks for its place along an axis of the grid, as far as can be told."""
    calls = kernel.calls("tl.program_id", "tl.num_programs")
    asked = [int_value(argument(call, "axis", 0)) for call in calls]
    return not calls or axis in asked or None in asked


# -- numbers -------------------------------------------------------------------------------------------------------


def _named_numbers(source: ParsedText) -> Iterator[Edit]:
    """Numbers of tiles, warps and stages that launches pass, as constants of the module."""
    known, taken, made = parts.constants_of(source.tree), source.names, dict[str, int]()
    kernels = source.kernels
    for host, launches in source.functions:
        replaced = set[int]()
        for launch in launches:
            stem = launch.kernel.removesuffix("_kernel").strip("_").upper()
            fixed = kernels[launch.kernel].constexprs
            sized = {name: value for name, value in launch.arguments.items() if name in fixed and _is_tile(name)}
            counted = {name: value for name, value in launch.options.items() if name in ("num_warps", "num_stages")}
            for name, value in {**sized, **counted}.items():
                place = _number(host, value)
                if place is None or id(place) in replaced or (name in sized and not _is_power(place.value)):
                    continue
                constant = fresh_name(f"{stem}_{name.upper()}", {*taken, *known})
                taken.add(constant)
                replaced.add(id(place))
                made[constant] = int(place.value)  # type: ignore[arg-type]
                yield source.replace(place, constant)
    if made:
        yield source.define(made)


def _is_tile(name: str) -> bool:
    return _TILES.fullmatch(name) is not None


def _is_power(value: object) -> bool:
    return isinstance(value, int) and value >= 16 and not value & (value - 1)


def _number(host: HostFunction, value: ast.expr) -> ast.Constant | None:
    """The literal that an argument is: itself, or of the only assignment of a name."""
    if isinstance(value, ast.Name):
        found = _only_value(host, value.id) if value.id not in host.arguments else None
        if found is None:
            return None
        value = found
    return value if isinstance(value, ast.Constant) and int_value(value) is not None else None
