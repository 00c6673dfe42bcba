"""Small systems of equations: a program holds a whole matrix, and works on it column by column.

LU by elimination with partial pivoting, Cholesky's factor, and substitution, as in any textbook (Golub & Van Loan,
"Matrix Computations"). Right sides are tiled; matrices are not: what is larger than MOST stays PyTorch's.
"""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch

from evo_kernel.tasks.lowering.layout import LoweredValue, Operand, align, collapse, product, same
from evo_kernel.tasks.lowering.module import LoweredKernel, LoweredModule
from evo_kernel.tasks.lowering.registry import AtenNode, NotLowered, lowers
from evo_kernel.tasks.lowering.trace import Expr
from evo_kernel.tasks.lowering.views import materialise

aten = torch.ops.aten

MOST = 64
"""Rows of a matrix; 4,096 numbers are what the registers of a program hold."""
PIVOT = (  # the largest of what is left of column k, and its row swapped with row k
    "column = tl.sum(tl.where(cols[None, :] == k, a, 0.0), axis=1)",
    "size = tl.where((rows >= k) & (rows < n), tl.abs(column), -1.0)",
    "at = tl.argmax(size, axis=0)",
    "pivot = tl.sum(tl.where(rows == at, column, 0.0), axis=0)",
    "upper = tl.sum(tl.where(rows[:, None] == at, a, 0.0), axis=0)",
    "lower = tl.sum(tl.where(rows[:, None] == k, a, 0.0), axis=0)",
    "column = tl.where(rows == at, tl.sum(tl.where(rows == k, column, 0.0), axis=0), column)",
    "a = tl.where(rows[:, None] == k, upper[None, :], tl.where(rows[:, None] == at, lower[None, :], a))",
)


@lowers(aten._linalg_det)
def determinant(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue | None, ...]:
    """The product of the pivots, its sign turned at each swap."""
    _alone(node)
    matrix, out = materialise(module, node.value(0)), module.empty(node.name, node.result[0])
    system = _System(module, "determinant", matrix, out.shape)
    system.reads("a", matrix)
    system.lines(f"found = tl.full([], 1.0, {system.dtype})")
    system.loop(
        *PIVOT,
        "factor = tl.where(rows > k, column / tl.where(pivot == 0.0, 1.0, pivot), 0.0)",  # 0 / 1 where nothing is left
        "a = a - factor[:, None] * upper[None, :]",
        "found = found * tl.where(at == k, pivot, -pivot)",
    )
    system.lines(f"tl.store({system.address(system.operand('out', out, ()))}, found)")
    system.launch()
    return out, None, None


@lowers(aten._linalg_solve_ex)
def solve(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue | None, ...]:
    """Gauss and Jordan: rows above the pivot, too, so that nothing is left to substitute."""
    _alone(node)
    if not node.argument(2, "left", True):
        raise NotLowered("X of X A = B; write the transposes")
    matrix, sides = (materialise(module, node.value(place)) for place in (0, 1))
    out = module.empty(node.name, node.result[0])
    vector = len(sides.shape) == 1 or _stacked_vectors(matrix, sides)
    one: Expr = sympy.Integer(1)
    batch, count = (out.shape[:-1], one) if vector else (out.shape[:-2], sides.shape[-1])
    system = _System(module, "solve", matrix, batch, count, vector)
    system.reads("a", matrix)
    system.reads("b", sides)
    system.loop(
        *PIVOT,
        "b_upper = tl.sum(tl.where(rows[:, None] == at, b, 0.0), axis=0)",
        "b_lower = tl.sum(tl.where(rows[:, None] == k, b, 0.0), axis=0)",
        "b = tl.where(rows[:, None] == at, b_lower[None, :], b)",
        "factor = column / pivot",
        "a = tl.where(rows[:, None] == k, upper[None, :] / pivot, a - factor[:, None] * upper[None, :])",
        "b = tl.where(rows[:, None] == k, b_upper[None, :] / pivot, b - factor[:, None] * b_upper[None, :])",
    )
    system.writes("b", out)
    return out, None, None, None


@lowers(aten.cholesky, aten.linalg_cholesky_ex)
def cholesky(module: LoweredModule, node: AtenNode) -> LoweredValue | tuple[LoweredValue | None, ...]:
    """Column by column; the other triangle is not read, and zero in the result."""
    several = isinstance(node.result, tuple | list)  # of linalg: whether it failed comes with it
    if several:
        _alone(node)
    matrix, upper = materialise(module, node.value(0)), bool(node.argument(1, "upper", False))
    out = module.empty(node.name, node.result[0] if several else node.result)
    system = _System(module, "cholesky", matrix, out.shape[:-2])
    system.reads("a", matrix, turned=upper)
    system.lines("found = a * 0.0")
    system.loop(
        "column = tl.sum(tl.where(cols[None, :] == k, a, 0.0), axis=1)",
        "column = tl.where(rows >= k, column / tl.sqrt(tl.sum(tl.where(rows == k, column, 0.0), axis=0)), 0.0)",
        "found = tl.where(cols[None, :] == k, column[:, None], found)",
        "a = a - column[:, None] * column[None, :]",
    )
    system.writes("found", out, turned=upper)
    return (out, None) if several else out


@lowers(aten.cholesky_solve)
def cholesky_solve(module: LoweredModule, node: AtenNode) -> LoweredValue:
    """Substitution, forwards by the factor and backwards by its transpose."""
    sides, factor = (materialise(module, node.value(place)) for place in (0, 1))
    out = module.empty(node.name, node.result)
    system = _System(module, "cholesky_solve", factor, out.shape[:-2], sides.shape[-1])
    system.reads("a", factor, turned=bool(node.argument(2, "upper", False)))
    system.reads("b", sides)
    known = (
        "pivot = tl.sum(tl.where(rows == k, column, 0.0), axis=0)",
        "known = tl.sum(tl.where(rows[:, None] == k, b, 0.0), axis=0) / pivot",
        "b = tl.where(rows[:, None] == k, known[None, :], b - tl.where({left}, column, 0.0)[:, None] * known[None, :])",
    )
    system.loop(
        "column = tl.sum(tl.where(cols[None, :] == k, a, 0.0), axis=1)",
        *(line.format(left="rows > k") for line in known),
    )
    system.loop(
        "k = n - 1 - step",
        "column = tl.sum(tl.where(rows[:, None] == k, a, 0.0), axis=0)",
        *(line.format(left="rows < k") for line in known),
        counter="step",
    )
    system.writes("b", out)
    return out


class _System:
    """A kernel while it is written: a program for each matrix of the batch, and for each tile of right sides.

    `batch`: sizes of the result's dimensions that number systems; operands may have fewer. `sides`: how many right
    sides a system has, if any; `vector`: one, which is no dimension.
    """

    def __init__(
        self,
        module: LoweredModule,
        name: str,
        matrix: LoweredValue,
        batch: Sequence[Expr],
        sides: Expr | None = None,
        vector: bool = False,
    ) -> None:
        if matrix.dtype not in (torch.float32, torch.float64):
            raise NotLowered(f"{matrix.dtype} matrices")
        n = matrix.shape[-1]
        if module.largest(n) > MOST:
            raise NotLowered(f"matrices of more than {MOST} rows")
        self._module, self._kernel, self._batch = module, LoweredKernel(name, module), tuple(batch)
        self.dtype = "tl.float64" if matrix.dtype == torch.float64 else "tl.float32"
        self._sides, self._vector = sides, vector
        self._kernel.size("n", n)
        self._kernel.constexprs["N"] = f"triton.next_power_of_2({module.size(n)})"
        self.lines(f"batch = {module.program(0)}", "rows = tl.arange(0, N)", "cols = tl.arange(0, N)")
        if self._sides is not None:
            self._kernel.size("n_sides", self._sides)
            self._kernel.knobs["BLOCK"] = module.block(self._sides, most=16, least=1)
            self.lines(f"sides = {module.program(1)} * BLOCK + tl.arange(0, BLOCK)")

    def lines(self, *lines: str) -> None:
        self._kernel.body += [f"    {line}" for line in lines]

    def loop(self, *lines: str, counter: str = "k") -> None:
        self.lines(f"for {counter} in range(0, n):", *(f"    {line}" for line in lines))

    def operand(self, param: str, value: LoweredValue, own: Sequence[Expr]) -> Operand:
        """`own`: sizes of its dimensions behind the batch's."""
        self._kernel.pointer(param, value.name)
        return align(param, value, (*self._batch, *own))

    def address(self, operand: Operand, *terms: str) -> str:
        """Where an operand's part of the batch begins, and `terms` from there."""
        groups = collapse(self._batch, range(len(self._batch)), [operand])
        indices = self._kernel.split("batch", groups, f"{operand.param}_batch")
        parts = (f"{operand.param}_ptr", self._kernel.offset(operand, groups, indices, "_batch"), *terms)
        return " + ".join(part for part in parts if part)

    def reads(self, param: str, value: LoweredValue, turned: bool = False) -> None:
        """The matrix (`a`) or the right sides (`b`), as a variable of that name. `turned`: the transpose."""
        at, mask = self._tile(param, value, param == "b", turned)
        self.lines(f"{param} = tl.load({at}, mask={mask}, other=0.0).to({self.dtype})")

    def writes(self, variable: str, value: LoweredValue, turned: bool = False) -> None:
        """The result; it ends the kernel."""
        at, mask = self._tile("out", value, variable == "b", turned)
        self.lines(f"tl.store({at}, {variable}, mask={mask})")
        self.launch()

    def launch(self) -> None:
        grid = f"{self._module.size(product(self._batch))},"
        if self._sides is not None:
            grid += f" triton.cdiv({self._module.size(self._sides)}, {{BLOCK}})"
        self._module.launch(self._kernel, f"({grid})")

    def _tile(self, param: str, value: LoweredValue, tiled: bool, turned: bool) -> tuple[str, str]:
        """Addresses and mask of a whole matrix, or of a tile of right sides."""
        column, limit = ("sides[None, :]", "n_sides") if tiled else ("cols[None, :]", "n")
        mask = f"(rows[:, None] < n) & ({column} < {limit})"
        if tiled and self._vector:
            operand = self.operand(param, value, value.shape[-1:])
            row = self._kernel.term("rows[:, None]", f"{param}_row_stride", operand, len(self._batch))
            return self.address(operand, row, f"{column} * 0"), mask
        operand = self.operand(param, value, value.shape[-2:])
        first, second = (column, "rows[:, None]") if turned else ("rows[:, None]", column)
        row = self._kernel.term(first, f"{param}_row_stride", operand, len(self._batch))
        col = self._kernel.term(second, f"{param}_col_stride", operand, len(self._batch) + 1)
        return self.address(operand, row or f"{first} * 0", col or f"{second} * 0"), mask


def _stacked_vectors(matrix: LoweredValue, sides: LoweredValue) -> bool:
    """Whether the right sides are a vector for each matrix, as PyTorch tells them from one matrix for all."""
    return len(sides.shape) == len(matrix.shape) - 1 and all(map(same, sides.shape, matrix.shape))


def _alone(node: AtenNode) -> None:
    """Raises NotLowered where something is used that comes with the result: factors, or whether a matrix was singular.

    PyTorch's own look at the latter, which raises, is left out: no launch can raise.
    """
    looks = torch.ops.aten._linalg_check_errors.default
    if any(user.args[1] != 0 and any(one.target != looks for one in user.users) for user in node.fx.users):
        raise NotLowered("what comes with its result")
