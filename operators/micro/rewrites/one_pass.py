"""`one-pass-row`: the whole row in registers, read once; rows too long for that keep the loops."""

from __future__ import annotations

import ast

from evo_kernel.syntax import parse_expression
from evo_kernel.types import TaskCard
from operators.micro.edits import Edit
from operators.micro.host_code import launches_for
from operators.micro.kernels import SourceKernel, SourceLaunch
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite
from operators.micro.rewrites.drop_masks import condition
from operators.micro.rewrites.first_step import with_sums, without_starts
from operators.micro.rewrites.rows import Numbering, Passes, at_zero, loads_apart, only_shapes, passes_of
from operators.micro.syntax import copy_of, spell

LIMIT = 32768  # elements of a row: 256 a thread at 4 warps, 32 at 32 warps


class OnePassRow(Rewrite):
    name, family, lacks = "one-pass-row", "algorithm", "has no passes of one block size over a row"

    def find(self, module: KernelModule, kernel: SourceKernel, form: str) -> Passes | None:
        return _passes(module, kernel)

    def pays(self, module: KernelModule, kernel: SourceKernel, task: TaskCard, found: Passes) -> bool:
        """Whether some case's row is short enough, as far as can be told."""
        seen = [one for one in launches_for(module, task) if one.launch.kernel == kernel.name]
        sizes = [one.values.get(found.stop) for one in seen]
        return not sizes or any(not isinstance(size, int) or size <= LIMIT for size in sizes)

    def rewrite(self, module: KernelModule, kernel: SourceKernel, found: Passes) -> str:
        node, body = copy_of(kernel.node), []
        node.name = module.fresh(f"{kernel.name.removesuffix('_kernel')}_one_pass_kernel")
        loops = {id(loop.node): loop for loop in found.loops}
        for statement in kernel.body:
            body += at_zero(loops[id(statement)]) if id(statement) in loops else [statement]
        body = without_starts(with_sums(loads_apart(kernel, body), found.stop, set(kernel.names)))
        node.body = Numbering().run(body)
        edits = [_launch_edit(module, launch, found, node.name) for launch in module.launches_of(kernel.name)]
        return module.edited(edits, module.add_kernel(spell(node) + "\n"))


def _passes(module: KernelModule, kernel: SourceKernel) -> Passes | None:
    passes = passes_of(kernel)
    launches = module.launches_of(kernel.name)
    if passes is None or not launches or kernel.calls("tl.dot") or not only_shapes(kernel, passes.block):
        return None
    if any(isinstance(s, ast.If | ast.Return) for s in ast.walk(kernel.node)):
        return None
    for launch in launches:
        if passes.stop not in launch.arguments or passes.block not in launch.arguments:
            return None
        if any(_is_fallback(guard, launch, passes) for guard in launch.guards) or _is_bound_elsewhere(launch, passes):
            return None
    return passes


def _test(launch: SourceLaunch, passes: Passes) -> str:
    return f"{spell(launch.arguments[passes.stop])} <= {LIMIT}"


def _is_fallback(guard: ast.If, launch: SourceLaunch, passes: Passes) -> bool:
    return spell(guard.test) == spell(parse_expression(_test(launch, passes)))


def _launch_edit(module: KernelModule, launch: SourceLaunch, passes: Passes, name: str) -> Edit:
    call = copy_of(launch.call)
    assert isinstance(call.func, ast.Subscript)
    size = spell(launch.arguments[passes.stop])
    block, whole = spell(launch.arguments[passes.block]), f"triton.next_power_of_2({size})"
    told = {condition(size, block, False): condition(size, whole, False)}
    told |= {condition(size, block, True): condition(size, whole, True)}
    new = {p.name: told[text] for p in passes.kernel.parameters if (text := _spelled(launch, p.name)) in told}
    _bind(passes.kernel, call, {passes.block: whole, **new})
    grid = spell(call.func.slice)
    bare = spell(ast.Call(ast.Name("", ast.Load()), call.args, call.keywords))
    text = f"if {_test(launch, passes)}:\n    {name}[{grid if grid.startswith('(') else f'({grid})'}]{bare}\nelse:\n"
    old = module.source_of(launch.statement)
    return module.replace(launch.statement, text + _indent(old, launch.statement.col_offset))


def _spelled(launch: SourceLaunch, parameter: str) -> str:
    return spell(launch.arguments[parameter]) if parameter in launch.arguments else ""


def _bind(kernel: SourceKernel, call: ast.Call, values: dict[str, str]) -> None:
    """Passes other values for some parameters of a call of a kernel."""
    for position, parameter in enumerate(kernel.parameters):
        if parameter.name not in values:
            continue
        value = parse_expression(values[parameter.name])
        if position < len(call.args):
            call.args[position] = value
        else:
            next(k for k in call.keywords if k.arg == parameter.name).value = value


def _is_bound_elsewhere(launch: SourceLaunch, passes: Passes) -> bool:
    """Whether another constexpr is made of the block's size, in a way other than `drop-masks` writes it."""
    size, block = _spelled(launch, passes.stop), launch.arguments[passes.block]
    known = {condition(size, spell(block), whole) for whole in (False, True)}
    for name in set(passes.kernel.constexprs) & set(launch.arguments) - {passes.block}:
        parts = {spell(part) for part in ast.walk(launch.arguments[name]) if isinstance(part, ast.expr)}
        if spell(block) in parts and _spelled(launch, name) not in known and not isinstance(block, ast.Constant):
            return True
    return False


def _indent(text: str, column: int) -> str:
    """Statement text one level deeper (its later lines carry `column` spaces already)."""
    lines = [line[column:] if line[:column].isspace() else line for line in text.split("\n")]
    return "\n".join("    " + line for line in ([text.split("\n", maxsplit=1)[0], *lines[1:]]))
