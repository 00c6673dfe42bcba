"""What the contraction and grid rewrites share: grids, where values come from, and new kernel texts."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from evo_kernel.types import TaskCard
from operators.micro.kernels import ALLOCATIONS, VIEWS, HostFunction, SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.syntax import called, int_value, names_read, names_written, self_root, spell, statements
from operators.micro.text import LINE_LENGTH, wrapped

CONTRACTIONS = ("tl.dot",)


def grid_launches(module: KernelModule, kernel: SourceKernel) -> tuple[SourceLaunch, ...]:
    """The launches of a kernel, if each has a tuple grid of the same rank; else none."""
    launches = module.launches_of(kernel.name)
    ranks = {len(launch.grid) for launch in launches}
    return launches if len(ranks) == 1 and ranks != {0} else ()


def axis_calls(kernel: SourceKernel, function: str) -> list[tuple[ast.Call, int]]:
    """Calls of `tl.program_id` or `tl.num_programs` with their axis (-1 where it is no literal)."""
    found = []
    for call in kernel.calls(function):
        node = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "axis"), None)
        axis = int_value(node)
        found.append((call, -1 if axis is None else axis))
    return found


def has_plain_axes(kernel: SourceKernel) -> bool:
    """Whether every program index is asked for with a literal axis, and nothing leaves the kernel early."""
    calls = axis_calls(kernel, "tl.program_id") + axis_calls(kernel, "tl.num_programs")
    returns = any(isinstance(part, ast.Return) for part in ast.walk(kernel.node))
    return all(axis >= 0 for _, axis in calls) and not returns


def followed(kernel: SourceKernel, node: ast.AST, stop: frozenset[str] = frozenset()) -> Iterator[ast.AST]:
    """The node and whatever it is computed from, through every definition; names in `stop` are not followed."""
    seen: set[str] = set(stop)
    todo: list[ast.AST] = [node]
    while todo:
        part = todo.pop()
        yield part
        for name in names_read(part) - seen:
            seen.add(name)
            places = kernel.definitions.get(name, ())
            todo += [place.iter if isinstance(place, ast.For) else place for place in places]


def origins(kernel: SourceKernel, node: ast.AST, stop: frozenset[str] = frozenset()) -> frozenset[str]:
    """What a value is computed from: parameters, loop targets, `program_id(axis)`, and names in `stop` as they are."""
    found: set[str] = set()
    for part in followed(kernel, node, stop):
        calls = [c for c in ast.walk(part) if isinstance(c, ast.Call) and called(c) == "tl.program_id" and c.args]
        found |= {f"program_id({spell(call.args[0])})" for call in calls}
        for name in names_read(part):
            places = () if name in stop else kernel.definitions.get(name, ())
            if not places or any(isinstance(place, ast.For) for place in places):
                found.add(name)
    return frozenset(found)


class GridRewrite(Rewrite):
    """A rewrite of any kernel that `run` may launch, whatever the cases, but what only serves where another cannot."""

    def kernels(self, module: KernelModule, task: TaskCard) -> list[SourceKernel]:
        reached = {launch.kernel for launch in module.reached}
        return [k for name, k in module.kernels.items() if name in reached and not _is_fallback(module, k)]


def _is_fallback(module: KernelModule, kernel: SourceKernel) -> bool:
    """Whether the kernel only serves inputs for which a kernel with descriptors cannot run: nothing to gain there."""
    launches = module.launches_of(kernel.name)
    tests = [[guard for guard in launch.guards if "storage_offset()" in spell(guard.test)] for launch in launches]
    return bool(launches) and all(
        any(part is launch.call for guard in guards for s in guard.orelse for part in ast.walk(s))
        for launch, guards in zip(launches, tests, strict=True)
    )


def contracts(kernel: SourceKernel) -> bool:
    return bool(kernel.calls(*CONTRACTIONS))


def grouped(node: ast.expr) -> str:
    """The expression's text, in parentheses where another operator could tear it apart."""
    text = spell(node)
    return text if isinstance(node, ast.Name | ast.Call | ast.Constant | ast.Subscript | ast.Attribute) else f"({text})"


def product(nodes: Iterable[ast.expr]) -> str:
    factors = [node for node in nodes if int_value(node) != 1]
    if len(factors) == 1:
        return spell(factors[0])
    return " * ".join(grouped(node) for node in factors) or "1"


def grid_text(parts: Sequence[str]) -> str:
    return f"({parts[0]},)" if len(parts) == 1 else f"({', '.join(parts)})"


def device_of(module: KernelModule, launch: SourceLaunch) -> str | None:
    """`x.device` of some argument of the launch that is certainly a tensor."""
    kernel = module.kernels[launch.kernel]
    arguments = [launch.arguments.get(name) for name in kernel.pointers]
    roots = [module.root_of(node) for node in arguments if node is not None]
    host = module.host_of(launch.call)
    return next((f"{root}.device" for root in roots if root and _is_tensor(host, root)), None)


def _is_tensor(host: HostFunction, name: str) -> bool:
    """Whether a name of a function only ever holds arguments, allocations and views of itself: what a library call
    returns may be a tuple (`torch.linalg.svd`)."""
    writes = [s for s in statements(host.node.body) if name in own_targets(s)]
    for statement in writes:
        call = statement.value if isinstance(statement, ast.Assign) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            return False
        made = call.func.attr in ALLOCATIONS or (call.func.attr in VIEWS and self_root(call) == name)
        if not made or any(not isinstance(t, ast.Name) for t in statement.targets):  # type: ignore[attr-defined]
            return False
    return bool(writes) or name in host.arguments


def own_targets(statement: ast.stmt) -> set[str]:
    """Names that the statement itself assigns, not the statements inside it."""
    return names_written(*[part for part in ast.iter_child_nodes(statement) if not isinstance(part, ast.stmt)])


def body_text(module: KernelModule, body: Sequence[ast.stmt]) -> str:
    """Consecutive statements as written (comments between them included), without their common indentation."""
    if not body:
        return ""
    lines = module.text.splitlines(keepends=True)
    return textwrap.dedent("".join(lines[body[0].lineno - 1 : body[-1].end_lineno])).rstrip("\n")


def statement_text(module: KernelModule, statement: ast.stmt) -> str:
    """One statement as written, at column 0, without a comment behind it."""
    first, *rest = module.source_of(statement).split("\n")
    margin = " " * statement.col_offset
    return "\n".join([first, *[line.removeprefix(margin) for line in rest]])


def kernel_text(name: str, parameters: Sequence[str], body: str) -> str:
    """A `@triton.jit` function; long signatures are wrapped."""
    head = f"def {name}({', '.join(parameters)}):"
    head = head if len(head) <= LINE_LENGTH else f"def {name}(\n{wrapped(parameters)}\n):"
    return f"@triton.jit\n{head}\n{textwrap.indent(body, '    ')}\n"


def launch_text(name: str, grid: Sequence[str], arguments: Sequence[str]) -> str:
    head = f"{name}[{grid_text(grid)}]"
    line = f"{head}({', '.join(arguments)})"
    return line if len(line) <= LINE_LENGTH else f"{head}(\n{wrapped(arguments)}\n)"


def declared(kernel: SourceKernel, names: set[str]) -> list[str]:
    """The declarations of those parameters that `names` holds, in order."""
    return [
        f"{p.name}: tl.constexpr" if p.kind == "constexpr" else p.name for p in kernel.parameters if p.name in names
    ]


def arguments_in_order(names: Sequence[str], values: Mapping[str, str], constexprs: Collection[str]) -> list[str]:
    """Launch arguments: positional up to the first constexpr, keywords from there on."""
    parts, positional = [], True
    for name in names:
        positional = positional and name not in constexprs
        parts.append(values[name] if positional else f"{name}={values[name]}")
    return parts
