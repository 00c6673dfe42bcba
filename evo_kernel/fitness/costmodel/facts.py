"""What the time model reads of a plan, and how often its loops are walked through.

Machine code says what a round of a loop takes, and the executor how many iterations each loop of the IR makes; neither
says which loop of the code a loop of the IR became. Where code that never runs could make a kernel look faster,
iterations are given to the loop where they cost most.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from evo_kernel.fitness.costmodel.torch_costs import TorchCost, torch_cost
from evo_kernel.fitness.ir.counting import DOTS, FREE, product_of
from evo_kernel.fitness.ir.launch_traffic import LaunchTraffic, ProgramWork, TorchWork
from evo_kernel.fitness.ir.layouts import elements_of_a_thread, expanded
from evo_kernel.fitness.ir.module import COPIES_IN, LOADS, IRBlock, IRModule, Operation, loops_of
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.ir.types import Type
from evo_kernel.fitness.plan.launch_plan import CompiledPlan, Launch

LONGEST_UNROLLED = 320
"""Instructions of a loop that the compiler may have unrolled; the longest that was seen had 264."""
MOST_UNROLLED = 16.0
"""Iterations of a loop that one round of its code may stand for: of kernels with one loop in the calibration data, all
but one have at most 9."""
FUSED = 2.0
"""Results of the source, addresses among them, that one instruction may stand for."""
PRODUCT = 2 * 16 * 8 * 16
"""Operations of one of `Instruction.products`."""
_AS_LONG = {"tf32": 2.0, "tf32x3": 6.0, "bf16x3": 3.0, "bf16x6": 6.0, "fp8e5": 0.5, "fp8e4nv": 0.5, "int8": 0.5}
"""Time of a product ÷ that of one of 16-bit floats."""
_LOADS = ("ld.global", "cp.async", "tma.load")
_KINDS = {"load": _LOADS, "store": ("st.global", "tma.store"), "tensor": ("mma", "wgmma", "tcgen05")}
_ARITHMETIC = ("fma", "fma", "fadd", "fmul", "minmax", "mufu", "convert")  # a fused instruction does two operations


@dataclass(frozen=True)
class LaunchFacts:
    """What the model reads of one kernel launch: enough to model it again with other constants, without its code."""

    registers: int  # a thread
    shared_bytes: int  # a block, reserved and asked for
    num_warps: int
    num_stages: int  # that its loops have; in calibration data without `loops`, the compiler's option
    instructions: Mapping[str, int]  # as `Binary.instructions`
    traffic: LaunchTraffic
    num_ctas: int = 1  # blocks of a program
    loops: tuple[Mapping[str, int], ...] = ()  # as `Binary.loops`; empty in calibration data of before they were told
    work: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # of the IR's loops, see `loop_work`
    kinds: Mapping[str, Sequence[str]] = field(
        default_factory=dict
    )  # of the IR's loops with code of their own, likewise
    shares: Mapping[str, float] = field(default_factory=dict)  # of the IR's loops in groups of warps, likewise
    repeats: float = 1.0  # of what its blocks load for products, see `repeated_operands`

    @property
    def threads(self) -> int:
        """Of a program."""
        return 32 * self.num_warps * self.num_ctas

    @property
    def blocks(self) -> int:
        return self.traffic.programs * self.num_ctas

    @cached_property
    def known_loops(self) -> tuple[Mapping[str, int], ...]:
        """The loops; where they were not told apart, all of them as one."""
        if self.loops or not self.instructions.get("loops", 0):
            return self.loops
        inside = {name[8:]: count for name, count in self.instructions.items() if name.startswith("in_loop.")}
        copies = inside.get("cp.async", 0) + inside.get("tma.load", 0)
        waits = inside.get("ld.global", 0) or not copies
        return ({"load_bytes": 0} | inside | {"ahead": 0 if waits else max(1, self.num_stages - 1)},)


@dataclass(frozen=True)
class PlanFacts:
    """What the model reads of a plan."""

    launches: tuple[LaunchFacts, ...]
    others: tuple[TorchCost, ...] = ()  # each node that is no kernel launch


def facts_of(
    compiled: CompiledPlan, traffic: Sequence[LaunchTraffic], inside: Mapping[int, TorchWork] = MappingProxyType({})
) -> PlanFacts:
    """All that the model reads of a plan. `traffic` belongs to the plan's kernel launches, in order.

    `inside`: what torch operations do that depends on numbers, by node.
    """
    launches = []
    for launch, seen in zip(compiled.plan.launches, traffic, strict=True):
        binary = compiled.binaries[launch.kernel]
        module = parse(binary.ir) if seen.loops else None
        shares = loop_shares(module, binary.num_warps) if module else {}
        launches.append(
            LaunchFacts(
                registers=binary.registers,
                shared_bytes=binary.block_shared_bytes,
                num_warps=binary.num_warps,
                num_stages=binary.stages,
                instructions=binary.instructions,
                traffic=seen,
                num_ctas=binary.num_ctas,
                loops=binary.loops,
                work=loop_work(module, 32 * binary.num_warps * binary.num_ctas, shares) if module else {},
                kinds=loop_kinds(module) if module else {},
                shares=shares,
                repeats=repeated_operands(module, binary.num_ctas) if module else 1.0,
            )
        )
    others = ((n, node) for n, node in enumerate(compiled.plan.nodes) if not isinstance(node, Launch))
    return PlanFacts(tuple(launches), tuple(torch_cost(node, inside.get(n, TorchWork())) for n, node in others))


class Rounds:
    """How the iterations of a launch's programs are spread over its loops."""

    def __init__(self, launch: LaunchFacts) -> None:
        self._launch = launch
        self._known_rates: dict[tuple[str, str], np.ndarray] = {}
        self._outside_bytes = launch.instructions.get("load_bytes", 0) - launch.instructions.get(
            "in_loop.load_bytes", 0
        )

    def instructions(self, family: str = "all", by: ProgramWork | None = None) -> float:
        """Warp instructions executed by one program: code outside loops once, and what its iterations take.

        `by`: of that program by its loops, else in the mean.

        Each loop of the IR may be any loop of the code that holds nothing else than it does, and each loop of the code
        is one of the IR. Where loops were not told apart, all are walked through equally often, by what loads bring.
        """
        launch, counts = self._launch, self._launch.instructions
        every, inside = counts.get(family, 0), counts.get(f"in_loop.{family}", 0)
        if by is None and not (launch.loops and launch.traffic.loops):
            return launch.threads / 32 * (every - inside + inside * self._walked) + self._in_library(family, by)
        iterations = self._with_calls(launch.traffic.loops if by is None else by.iterations)
        outside = every - sum(loop.get(family, 0) for loop in self._named_loops)
        taken = {
            name: amount * launch.shares.get(name, 1.0) * self._rates_of(family, name)
            for name, amount in iterations.items()
        }
        dearest = {name: float(each.max(initial=0.0)) for name, each in taken.items()}
        own = [name for name in taken if name in launch.kinds]
        once = float(np.max([taken[name] for name in own], axis=0).sum()) if own else 0.0
        by_loop = outside + sum(dearest.values()) - max(0.0, sum(dearest[name] for name in own) - once)
        return launch.threads / 32 * by_loop + self._in_library(family, by)

    def in_one_warp(self, warps: float, by: ProgramWork | None = None) -> float:
        """Instructions of a warp in the longest loop of a group of warps, a program's share of those that run together
        as `warps`."""
        launch, iterations = self._launch, self._launch.traffic.loops if by is None else by.iterations
        longest = (n * float(self._rates_of("all", name).max(initial=0.0)) for name, n in iterations.items()
                   if name in launch.shares)  # fmt: skip
        return max(longest, default=0.0) * launch.num_warps / warps

    @cached_property
    def repeats(self) -> float:
        """How often the blocks of a cluster load what their program asks for once, in the mean: by the code of loops,
        or by the shapes of products, since what TMA brings is not in the code."""
        launch = self._launch
        if launch.num_ctas == 1:
            return 1.0
        asked = {
            name: amount * work["load_bytes"] * work.get("calls", 1.0)
            for name, amount in launch.traffic.loops.items() if (work := launch.work.get(name, {})).get("load_bytes")
        }  # fmt: skip
        made = sum(launch.traffic.loops[name] * self._rates_of("load_bytes", name).max(initial=0.0) for name in asked)
        by_code = made / sum(asked.values()) if any(asked.values()) else 1.0
        return min(max(1.0, by_code, launch.repeats), float(launch.num_ctas))

    def _rates_of(self, family: str, name: str) -> np.ndarray:
        """Instructions of one iteration of a loop of the IR, for each loop of the code that it may be; computed once,
        since the programs that are busiest may be as many as the loops."""
        if (family, name) not in self._known_rates:
            self._known_rates[family, name] = np.array([
                loop.get(family, 0) / self._times_unrolled(loop, name) if self._may_be(loop, name) else 0.0
                for loop in self._launch.loops
            ]) * self._launch.work.get(name, {}).get("calls", 1.0)  # fmt: skip
        return self._known_rates[family, name]

    def _in_library(self, family: str, by: ProgramWork | None) -> float:
        """Warp instructions in the loops of library functions. Every thread has an element of a smaller tensor."""
        told = (by or self._launch.traffic).library if family == "all" else {}
        return sum(amount * max(int(elements), self._launch.threads) / 32 for elements, amount in told.items())

    def _with_calls(self, iterations: Mapping[str, float]) -> dict[str, float]:
        """Each function at least once: code outside loops counts so too, whether or not it runs."""
        once = {name: 1.0 for name in self._names if name.startswith("call")}
        return dict(iterations) | {name: max(least, iterations.get(name, 0.0)) for name, least in once.items()}

    def _may_be(self, loop: Mapping[str, int], name: str) -> bool:
        """Whether a loop of the code may be that of the IR."""
        may_hold = self._launch.kinds.get(name)
        if loop.get("called", 0):
            return name.startswith("call")
        return may_hold is None or all(kind in may_hold for kind in _KINDS if any(loop.get(f, 0) for f in _KINDS[kind]))

    @cached_property
    def _names(self) -> set[str]:
        """Of the loops of the IR, also of those that did not run; functions have names too."""
        return {*self._launch.traffic.loops, *self._launch.work}

    @cached_property
    def _named_loops(self) -> list[Mapping[str, int]]:
        """Loops of the code that are one of the IR's; others are out of the compiler's order, and run once."""
        return [loop for loop in self._launch.loops if any(self._may_be(loop, name) for name in self._names)]

    def waits(self, by: ProgramWork | None = None) -> tuple[float, float]:
        """(latencies that a round of loads takes, share of rounds that nothing runs ahead of).

        `by`: of that program, else in the mean.
        """
        seen = by or self._launch.traffic
        loops = [loop for loop in self._launch.known_loops if any(loop.get(family, 0) for family in _LOADS)]
        if not loops or not seen.rounds:
            return max(1.0, self._least_taken), 1.0
        ahead = [self._ahead(loop) for loop in loops]
        alone = min(1.0, seen.waiting_rounds / seen.rounds)
        taken, exposed = ([1.0 / max(1.0, n) for n in ahead], [float(n < 1.0) for n in ahead])
        return (
            max(self._least_taken, alone + (1.0 - alone) * self._most(loops, taken)),
            alone + (1.0 - alone) * self._most(loops, exposed),
        )

    @property
    def _least_taken(self) -> float:
        """Latencies that a round takes, by those that were waited for when executed."""
        seen = self._launch.traffic
        return (seen.latencies or 0.0) / max(1.0, *(work.rounds for work in (seen, *seen.busiest)))

    @property
    def _walked(self) -> float:
        """How often all loops are walked through, if equally often.

        The compiler unrolls: one round of the code may be several iterations of the source. What loads bring tells how
        many: the bytes that a thread asked for, less what the code outside loops loads, ÷ what the code in loops loads.
        Loops without such loads (TMA brings whole tiles) are taken to be as in the source.
        """
        seen, counts = self._launch.traffic, self._launch.instructions
        if inside := counts.get("in_loop.load_bytes", 0):
            return max(1.0, (seen.load_bytes / self._launch.threads - self._outside_bytes) / inside)
        return max(1.0, seen.iterations / max(1, counts.get("loops", 0)))

    def _times_unrolled(self, loop: Mapping[str, int], name: str) -> float:
        """Iterations of a loop of the IR that one round of a loop's code stands for: what it has, by what one asks for.

        By the least that any kind of work tells, and only where loads or arithmetic tell: what becomes of addresses
        and of integers is too uncertain by itself. Where nothing is loaded, few integers are addresses: so a little
        arithmetic that takes more instructions than was thought tells nothing of many of them. In a cluster, whose
        blocks repeat loads, products tell too.
        """
        if loop["all"] - loop.get("in_divisions", 0) > LONGEST_UNROLLED:
            return 1.0
        asked = self._launch.work.get(name, {})
        has = {"load_bytes": loop["load_bytes"], "arithmetic": sum(loop.get(family, 0) for family in _ARITHMETIC)}
        found = [amount / asked[kind] for kind, amount in has.items() if amount and asked.get(kind)]
        if len(found) > 1 and found[1] < 1.0:  # another loop's code, or arithmetic that the compiler took out of it
            found.pop()
        if found and self._launch.num_ctas > 1 and loop.get("products", 0) and asked.get("products"):
            found.append(loop["products"] / asked["products"])
        if found and asked.get("all"):
            found.append(FUSED * loop["all"] / asked["all"])
        if found and asked.get("least") and not asked.get("load_bytes"):
            found.append(loop["all"] / asked["least"])
        return max(1.0, min(*found, MOST_UNROLLED)) if found else 1.0

    def _ahead(self, loop: Mapping[str, int]) -> float:
        """Rounds by which a loop's copies are ahead of their use.

        A ring of TMA, or of a kernel's own copies, reaches as far as shared memory holds what rounds bring, but for the
        round in use, and as rounds shared their latencies when it was executed.
        """
        launch, seen = self._launch, self._launch.traffic
        if not (loop.get("tma.load", 0) or seen.latencies) or not launch.loops:
            return float(loop["ahead"])
        rounds_a_byte = seen.rounds / max(seen.load_bytes, 1.0)
        ring = launch.shared_bytes * launch.num_ctas * rounds_a_byte / self.repeats - 1.0
        if seen.latencies:
            shared = max(work.rounds - work.waiting_rounds for work in (seen, *seen.busiest)) / seen.latencies
            ahead = min(ring, shared, 2.0 * (shared - 1.0))  # a round alone hides nothing
            return ahead if loop.get("tma.load", 0) else min(ahead, float(loop["ahead"]))
        return ring if launch.instructions.get("warp-specialise", 0) else min(float(loop["ahead"]), ring)

    def _most(self, loops: Sequence[Mapping[str, int]], costs: Sequence[float]) -> float:
        """Greatest mean cost of rounds in loops that bring what code outside loops cannot have brought.

        Masks only lower the bytes that were asked for. What TMA brings is not in the code, and taken to be enough.
        """
        seen = self._launch.traffic
        least = (seen.load_bytes / self._launch.threads - self._outside_bytes) / max(seen.rounds, 1.0)
        brought = [least if loop.get("tma.load", 0) else loop["load_bytes"] for loop in loops]
        least = min(least, max(brought))
        points = list(zip(brought, costs, strict=True))
        mixed = [
            cost + (other - cost) * (least - has) / (more - has)
            for has, cost in points for more, other in points if has < least < more
        ]  # fmt: skip
        return max([*mixed, *(cost for has, cost in points if has >= least)])


_STORE_OPERATIONS = {"tt.store", "tt.descriptor_store", "ttng.async_tma_copy_local_to_global"}
_KINDS_OF_IR = {"load": LOADS, "store": _STORE_OPERATIONS, "tensor": DOTS}
_PURE = frozenset(
    FREE | {f"tt.{name}" for name in (
        "addptr", "cat", "clampf", "fp_to_fp", "int_to_ptr", "join", "mulhiui", "precise_divf", "precise_sqrt",
        "ptr_to_int", "reduce", "reduce.return", "return", "scan", "scan.return", "split", "unsplat",
    )}
) - LOADS - {"tt.call"}  # fmt: skip
_IN_SHARED = frozenset({
    "ttg.barrier", "ttg.convert_layout", "ttg.local_load", "ttg.local_store", "ttg.memdesc_index",
    "ttg.memdesc_reshape", "ttg.memdesc_subslice", "ttg.memdesc_trans", "ttng.arrive_barrier", "ttng.wait_barrier",
    "ttg.async_commit_group", "ttg.async_wait", "ttng.async_tma_store_wait", "ttng.barrier_expect",
    "ttng.fence_async_shared", "ttng.warp_group_dot_wait",
})  # fmt: skip
"""Neither accesses to global memory nor products."""
_COMBINING = {"tt.reduce", "tt.scan"}
_UNCOUNTED = {"arith.select", "arith.negf", "math.absf"}  # by modifiers of operands, or moves
_VANISHING = {"arith.negf", "math.absf", "tt.addptr"}  # into the instructions that take their results
_PASSES_ON = {"arith.negf", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.splat", "tt.trans",
              "ttg.convert_layout"}  # fmt: skip
_INTEGERS = {"arith.fptosi": 1, "arith.fptoui": 1} | dict.fromkeys(
    ("arith.divsi", "arith.divui", "arith.remsi", "arith.remui", "arith.ceildivsi", "arith.floordivsi"), 4
)
"""Floating-point operations of what gives integers: a division makes a quotient of floats first."""
_TAKES = {
    "math.fma": 2, "tt.clampf": 2, "arith.divf": 6, "tt.precise_divf": 11, "arith.remf": 30, "tt.precise_sqrt": 7,
    "math.exp": 4, "math.log": 28, "math.log2": 30, "math.sin": 30, "math.cos": 30, "math.erf": 26,
    "tt.extern_elementwise": 70,
}  # fmt: skip
"""Of what takes more than one, the most seen in code for sm_90, a fused multiplication and addition as two."""
_LIBRARY = {
    "__nv_lgammaf": 243,
    "__nv_j0f": 105,
    "__nv_j1f": 97,
    "__nv_erfcxf": 82,
    "__nv_normcdff": 78,
    "__nv_powf": 76,
}
"""Of the functions of a library that take more than `_TAKES` has for all of them."""
_DOUBLES = {"math.exp": 32, "math.exp2": 31, "math.sqrt": 14, "math.rsqrt": 9}
_OF_DOUBLES = 4  # times as many for other 64-bit floats, where it takes more than one
_CONVERTS = re.compile(r"__nv_((float|double)2u?(int|ll)_r|ll(rint|round))")
_ASSEMBLY = re.compile(r'\s*"\s*(?P<name>[a-z0-9]+)\.approx(?P<flush>\.ftz)?\.')
_OF_ANGLES, _SCALED = 2, 3
"""Of an approximation in assembly: the reduction of an angle, and the scaling of denormal operands and of the result,
which `.ftz` leaves out."""


def loop_work(
    module: IRModule, threads: int, shares: Mapping[str, float] = MappingProxyType({})
) -> dict[str, dict[str, float]]:
    """By the loops' names, of a thread and one iteration: `load_bytes`, `arithmetic` operations, `products` of a warp,
    `all` results, and the `least` number of instructions that make them where they are no addresses.

    Where no layout says what each thread holds, it is an element of a tensor that has fewer than `threads`, and every
    scalar. `calls`: of a loop in a
    function of elements, which is in the code once for each of a thread's calls. `shares`: of the threads, see
    `loop_shares`. Raises IRError.
    """
    around = loops_of(module).around
    products = _contracted(module, threads)
    combined = {
        inner.ordinal
        for operation in module.operations() if operation.name in _COMBINING
        for region in operation.regions for block in region.blocks for inner in block.operations
    }  # fmt: skip
    times = {
        inner.ordinal: (
            operation.ordinal,
            max(1.0, _in_thread(operation.results[0].type, threads, module) / max(1, operation.integer("pack", 1))),
        )
        for operation in module.operations() if operation.name == "tt.map_elementwise"
        for inner in operation.regions[0].walk()
    }  # fmt: skip
    found: dict[str, Counter[str]] = {}
    calls: dict[str, dict[str, float]] = {}
    for operation in module.operations():
        if operation.ordinal in around and operation.ordinal not in combined:
            name, made = around[operation.ordinal], times.get(operation.ordinal)
            if made and name != around.get(made[0]):  # a loop in the function: its text is of one call
                calls[name] = {"calls": made[1]}
            each = made[1] if made and name not in calls else 1.0
            those = max(1, round(threads * shares.get(around[operation.ordinal], 1.0)))
            work = {kind: each * n for kind, n in _work(operation, those, module).items()}
            if operation.ordinal in products:
                work["arithmetic"] = each * products[operation.ordinal]
            found.setdefault(name, Counter()).update(work)
    return {name: dict(work) | calls.get(name, {}) for name, work in found.items()}


def _contracted(module: IRModule, threads: int) -> dict[int, float]:
    """By products of floats that are added: the multiplications that a thread makes of one.

    The compiler makes one instruction of a product and a sum, and multiplies anew for each sum of a product, after it
    was broadcast, too. It multiplies by itself for any other use.
    """
    made: dict[str, Operation] = {}  # regions beside each other may use the same names, one after the other
    sums: defaultdict[int, float] = defaultdict(float)
    uses: Counter[int] = Counter()
    for operation in module.operations():
        found = None
        adds = operation.name in ("arith.addf", "arith.subf")
        if adds or operation.name in _COMBINING:
            for name in operation.operands:
                source = made.get(name)
                while source and source.name in _PASSES_ON:
                    source = made.get(source.operands[0])
                if found is None and source and source.name == "arith.mulf":
                    found = source.ordinal
                    kind = operation.results[0].type if adds else operation.types[0]
                    sums[found] += _in_thread(kind, threads, module)
        for name in operation.operands:
            if (source := made.get(name)) and source.name == "arith.mulf" and source.ordinal != found:
                uses[source.ordinal] += 1
        made |= {value.name: operation for value in operation.results}
    own = {o.ordinal: _in_thread(o.results[0].type, threads, module) for o in module.operations() if o.ordinal in sums}
    return {one: sums[one] + (each if uses[one] else 0.0) for one, each in own.items()}


def repeated_operands(module: IRModule, blocks: int) -> float:
    """How often, in the mean and at least, the blocks of a program load the operands of a product: each takes the rows
    of one operand and the columns of the other for its part of the result."""
    most = 1.0
    for operation in module.operations():
        shape = (operation.results[0].type.shape or ()) if operation.name in DOTS else ()
        if len(shape) == 2:
            parts = (down for down in range(1, blocks + 1) if blocks % down == 0)
            least = min(blocks // down * shape[0] + down * shape[1] for down in parts)
            most = max(most, least / sum(shape))
    return most


def loop_kinds(module: IRModule) -> dict[str, tuple[str, ...]]:
    """By the loops' names: "load", "store" and "tensor", if the code of a loop and of loops in it may hold any.

    Only of loops that share no code with others. The compiler may make one loop of nested ones that are flattened, of
    those in branches that exclude each other, and of those in functions: these are missing.
    """
    begins = loops_of(module).begins
    found: dict[str, tuple[str, ...]] = {}

    def walk(block: IRBlock) -> None:
        for operation in block.operations:
            if operation.name in ("scf.for", "scf.while"):
                found[begins[operation.ordinal]] = tuple(sorted(_kinds(operation)))
            if operation.name in ("scf.for", "scf.while", "ttg.warp_specialize"):
                for region in operation.regions:
                    walk(region.blocks[0])

    if len(module.entry.body.blocks) == 1 and not any("tt.flatten" in o.attributes for o in module.operations()):
        walk(module.entry.body.blocks[0])
    return found


def loop_shares(module: IRModule, warps: int) -> dict[str, float]:
    """By the loops' names: the share of a program's warps that goes through it, of loops in groups of warps."""
    begins = loops_of(module).begins
    found: dict[str, float] = {}
    for operation in module.operations():
        if operation.name == "ttg.warp_specialize":
            own = [int(text) for text in operation.attributes.get("warps", "").split("x") if text]
            left = max(1, warps - -(-sum(own) // 4) * 4)  # the compiler adds idle warps up to four
            for region, those in zip(operation.regions, (left, *own), strict=False):
                found |= {begins[o.ordinal]: min(1.0, those / warps) for o in region.walk() if o.ordinal in begins}
    return found


def _kinds(loop: Operation) -> frozenset[str]:
    """What is not known to have no effect may become anything."""
    names = {inner.name for region in loop.regions for inner in region.walk()} - _PURE - _IN_SHARED
    names = {name for name in names if not name.startswith(("arith.", "math.", "scf.", "cf."))}
    if names - LOADS - _STORE_OPERATIONS - DOTS:
        return frozenset(_KINDS_OF_IR)
    return frozenset(kind for kind, made in _KINDS_OF_IR.items() if names & made)


def _in_thread(type_: Type, threads: int, module: IRModule) -> float:
    """Elements that each thread has."""
    layout = expanded(type_, module.layouts)
    return elements_of_a_thread(layout, type_.shape or ()) if layout else max(1.0, type_.elements / threads)


def _work(operation: Operation, threads: int, module: IRModule) -> Mapping[str, float]:
    name = operation.name
    if not operation.results:
        return {}
    copied = operation.types[0] if name in COPIES_IN else None
    result = copied.of(copied.pointee.element) if copied and copied.pointee else operation.results[0].type
    each = _in_thread(result, threads, module)
    if name in LOADS:
        return {"load_bytes": each * result.item_bytes}
    if name in DOTS:
        kind, flops = product_of(operation)
        arithmetic = flops / result.elements * each
        return {"arithmetic": arithmetic, "products": arithmetic * 32 / PRODUCT * _AS_LONG.get(kind, 1.0)}
    if name in _COMBINING:
        return _combined(operation, each, threads, module)
    if name in FREE:
        return {}
    shifted = name == "arith.extf" and operation.types and operation.types[0].element == "bf16"
    takes = 0.0 if shifted else _takes(operation, result)
    least = 1 / FUSED if takes else 0.0 if name in _VANISHING else 1.0
    return {"all": each, "arithmetic": each * takes, "least": each * least}


def _combined(operation: Operation, each: float, threads: int, module: IRModule) -> Mapping[str, float]:
    """A reduction in threads, warps and blocks; a scan goes through all of them for every few elements."""
    inner = [one for region in operation.regions for block in region.blocks for one in block.operations if one.results]
    takes = sum(_takes(one, one.results[0].type) for one in inner)
    elements = max((_in_thread(kind, threads, module) for kind in operation.types), default=1.0)
    times = 10 * (elements + 1) if operation.name == "tt.scan" else elements + each * math.log2(max(2, threads))
    return {"all": elements, "arithmetic": takes * times}


def _takes(operation: Operation, result: Type) -> float:
    name, symbol = operation.name, operation.attributes.get("symbol", "").strip('"')
    if name in _INTEGERS or not result.is_float or name in _UNCOUNTED:
        return _INTEGERS.get(name, int(bool(_CONVERTS.match(symbol))))
    if name == "tt.fp_to_fp" and operation.types and operation.types[0].element.startswith("f8"):
        return 2  # by way of float16
    if result.element == "f64" and name in _DOUBLES:
        return _DOUBLES[name]
    if name == "tt.elementwise_inline_asm":
        written = _ASSEMBLY.match(operation.head)
        if written is None or written["name"] == "tanh":
            return 1
        return _OF_ANGLES if written["name"] in ("sin", "cos") else 1 if written["flush"] else _SCALED
    takes = _LIBRARY.get(symbol, _TAKES.get(name, 1))
    return takes * (_OF_DOUBLES if result.element == "f64" and takes > 1 else 1)
