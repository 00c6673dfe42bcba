"""Makes a program from draws: a kernel that is right by construction, its launch and its buffers."""

from __future__ import annotations

from benchmarks.fuzz import ops_blocks, ops_control, ops_dots, ops_elementwise, ops_memory
from benchmarks.fuzz.draws import Draws, Seeded, chance, choice, weighted
from benchmarks.fuzz.maker import Make, Maker
from benchmarks.fuzz.programs import ENTRY, Program

_GROUPS: tuple[tuple[tuple[tuple[Make, int], ...], int], ...] = (
    (ops_elementwise.OPERATIONS, 45),
    (ops_blocks.OPERATIONS, 28),
    (ops_memory.OPERATIONS, 14),
    (ops_control.OPERATIONS, 11),
)  # type: ignore[assignment]
_INNER = _GROUPS[0][0] + _GROUPS[1][0]
_GRIDS = ((1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (2, 2, 1), (3, 2, 1), (2, 1, 2), (1, 3, 2), (2, 2, 2))
LEAVES = 3  # values that are stored


def from_seed(seed: int) -> Program:
    return generate(Seeded(seed), seed)


def generate(draws: Draws, seed: int = 0) -> Program:
    """One program. Blocks are small, so that it compiles in a fraction of a second."""
    fused = chance(draws, 25)
    with_dot = chance(draws, 12)
    grid = choice(draws, _GRIDS[:2] if with_dot else _GRIDS)
    m = Maker(draws, grid, fused, _INNER)
    m.line("pid = tl.program_id(0) + tl.num_programs(0) * (tl.program_id(1) + tl.num_programs(1) * tl.program_id(2))")
    if chance(draws, 8):
        m.line(f"if pid == {draws.integer(0, m.programs - 1)}:")
        m.line("    return")
    for _ in range(draws.integer(1, 3)):
        m.load(m.some_type("i", "u", "f", "f"), m.shape())
    if with_dot:
        _apply(m, weighted(draws, ops_dots.OPERATIONS))
    for _ in range(draws.integer(1, 8)):
        _apply(m, weighted(draws, weighted(draws, _GROUPS)))
    _store_leaves(m)
    return finished(m, seed)


def _apply(m: Maker, make: Make) -> None:
    m.operations.append(make.__name__)
    make(m)


def _store_leaves(m: Maker) -> None:
    """The newest values that nothing took, then the newest others."""
    leaves = [v for v in m.scope if v.name not in m.used] or m.scope
    for value in leaves[-LEAVES:]:
        m.store(value)


def finished(m: Maker, seed: int, undefined: str = "") -> Program:
    """The program that a maker has made."""
    names = ", ".join(name for name, _, _ in m.parameters)
    source = "\n".join([*m.helpers, f"@triton.jit\ndef {ENTRY}({names}):", *m.lines]) + "\n"
    warps = choice(m.draws, (4, 1, 2, 4))
    return Program(
        seed=seed,
        source=source,
        signature=tuple((name, kind) for name, kind, _ in m.parameters),
        options={"num_warps": warps, "enable_fp_fusion": m.fused},
        grid=m.grid,
        buffers=tuple(m.buffers),
        args=tuple(value for _, _, value in m.parameters),
        outputs=tuple(m.outputs),
        operations=tuple(m.operations),
        undefined=undefined,
    )
