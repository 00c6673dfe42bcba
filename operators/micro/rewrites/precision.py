"""Input precision of contractions, within the task's contract.

Half-precision operands go to the tensor cores as they are (their products are exact in fp32). fp32 operands take TF32
where the task allows it; where it does not, products of their parts that together keep nearly all of fp32: three in
TF32 (Markidis et al., "NVIDIA Tensor Core Programmability, Performance & Precision", 2018), or six in bfloat16 (Henry
et al., "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019).
"""

from __future__ import annotations

import ast

from evo_kernel.types import TaskCard
from operators.micro.edits import Edit
from operators.micro.kernels import SourceKernel
from operators.micro.module import KernelModule
from operators.micro.rewrites.grids import GridRewrite
from operators.micro.syntax import argument, called, spell

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
        if (
            left is None
            or right is None
            or not (_only_in_dots(kernel, dot.args[0]) and _only_in_dots(kernel, dot.args[1]))
        ):
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
    """The dtypes that a pointer has over the task's cases; {"?"} when it is no input of `run`."""
    inputs = [a.arg for a in module.run.args.args]
    found = set()
    for launch in module.launches_of(kernel.name):
        root = module.root_of(launch.arguments[pointer]) if pointer in launch.arguments else None
        for case in task.cases:
            known = root in inputs and root not in module.buffers and len(case.inputs) == len(inputs)
            found.add(case.inputs[inputs.index(root)][0].removeprefix("torch.") if known and root else "?")
    return found or {"?"}
