"""Compiles a source without a GPU, and tells what its machine code needs and does, kernel by kernel.

Resources and instructions are those of the code that a judge would run: only the listings of source lines are added.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evo_kernel.fitness.compile.assembler import Assembler
from evo_kernel.fitness.compile.compiler import Compiler, Explanation
from evo_kernel.fitness.compile.instructions import ListedLine, Places, disassemble, listed_lines, placed_loops
from evo_kernel.fitness.costmodel.features import data_path, schedule, tensor_core
from evo_kernel.fitness.costmodel.targets import Target, occupancy, target_for
from evo_kernel.fitness.plan.launch_plan import Binary, CompiledPlan, Kernel, Launch
from evo_kernel.fitness.record.recorder import Recorder, RecordFault, record_case, refuse_unconfined
from evo_kernel.tasks.task import Task
from evo_kernel.types import CaseKind, Source, Status

KEY = ("wgmma", "mma", "tcgen05", "tma.load", "tma.store", "cp.async", "ld.global", "st.global", "atomic", "spill")
"""Instruction classes that are always told, where there are any: tensor cores, copies, spills."""
_FIGURES = {
    "all",
    "load_bytes",
    "double",
    "loops",
    "hinted",
    "generic",
    "in_divisions",
    "called",
    "inner",
    "ahead",
    "early",
}
"""Counts that are of no class of instructions."""
_WAITING, _SHORT = {"barrier", "warp-specialise", "branch", "move", "int", "int.uniform"}, 8
"""Classes and number of the instructions of a loop that waits."""
_MESSAGE = re.compile(r"\(C\d{4,}\)|\bwarning\b", re.IGNORECASE)
_PREFIX = re.compile(r"^ptxas\S*\s*(?:/\S+|\S+\.ptx)?[\s,]*(?:line \d+\s*;)?\s*(?:info|warning|error)?\s*:\s*")
_SETMAXNREG = re.compile(r"^USETMAXREG.*\b0x([0-9a-f]+)$")
_PTX_LINE = re.compile(r"\bline (\d+)")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)(?:.*inlined_at\s+(\d+)\s+(\d+))?")
_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')
OWN_FILES: tuple[str, str] = ("kernel.py", "kernel.cu")
"""What the recorder calls a source, and NVRTC a text of CUDA C++."""
SHOWN = 7
"""Instruction classes that a line of text has room for."""


@dataclass(frozen=True)
class LoopReport:
    """A loop of the machine code, or a function in it. `instructions`: by class, without those of loops inside it."""

    file: str  # where its branch back comes from; empty if unknown
    line: int
    text: str  # that line, if it is of the source
    inner: int  # loops inside it
    ahead: int  # rounds that copies run ahead of their use
    kind: str  # "loop"; "wait": it tries a barrier, or setmaxnreg, until it succeeds; "function": called from elsewhere
    count: int  # all of its instructions
    instructions: Mapping[str, int]


@dataclass(frozen=True)
class KernelReport:
    """One kernel as it is launched: with one grid or several."""

    name: str
    language: str
    grids: tuple[tuple[int, int, int], ...]  # of its launches, in order, each once
    launches: int
    num_warps: int
    registers: int
    setmaxnreg: tuple[int, ...]  # registers that groups of warps change to, each once
    spill_bytes: int  # of local memory a thread
    shared_bytes: int
    blocks_per_sm: int
    occupancy: float  # resident warps ÷ the most that an SM holds
    limiter: str
    waves: float  # largest grid ÷ blocks resident at once
    tensor_core: str
    data_path: str
    schedule: str
    instructions: Mapping[str, int]  # all of the code, by class
    loops: tuple[LoopReport, ...]  # in the order of the code
    warnings: tuple[str, ...]  # of the assembler
    compiler: str
    ptx: str = field(repr=False)
    sass: str = field(repr=False)

    def as_data(self, sass: bool, ptx: bool) -> dict[str, Any]:
        data = asdict(self)
        return {name: value for name, value in data.items() if (name, False) not in (("sass", sass), ("ptx", ptx))}

    def lines(self) -> list[str]:
        """For people and models."""
        grids = " and ".join(" x ".join(str(n) for n in grid if n > 1) or "1" for grid in self.grids[:3])
        times = f", launched {self.launches} times" if self.launches > 1 else ""
        alike: dict[tuple[str, int], list[LoopReport]] = {}
        for number, loop in enumerate(self.loops):
            if loop.kind != "wait":
                alike.setdefault((loop.file, loop.line or -number), []).append(loop)
        loops = [line for copies in alike.values() for line in _loop_lines(copies)]
        if waiting := sum(loop.kind == "wait" for loop in self.loops):
            loops.append(f"  loops        {waiting} more only wait for a barrier or for registers")
        outside = Counter(self.instructions)
        for loop in self.loops:
            outside.subtract(loop.instructions)
        return [
            f"{self.name}  grid {grids}, {self.num_warps} warps{times}; {self.compiler}",
            f"  resources    {self.registers} registers, {self.spill_bytes} B spilled, "
            f"{self.shared_bytes} B shared memory"
            + (f"; setmaxnreg to {', '.join(map(str, self.setmaxnreg))}" if self.setmaxnreg else ""),
            f"  occupancy    {self.occupancy:.0%}: {self.blocks_per_sm} blocks an SM, limited by {self.limiter}; "
            f"{self.waves:.2f} waves",
            f"  code         {'no' if self.tensor_core == 'none' else self.tensor_core} tensor cores, data by "
            f"{self.data_path}, {self.schedule}; " + _mix({k: self.instructions.get(k, 0) for k in KEY}),
            *loops,
            f"  {'no loop' if loops else 'all    '}      {sum(outside.values())} instructions: {_mix(outside)}",
            *(f"  warning      {warning}" for warning in self.warnings),
        ]


@dataclass(frozen=True)
class CompileReport:
    """One source with one knob setting, compiled for one case; or its fault, a sentence that begins with a status."""

    case: str
    kernels: tuple[KernelReport, ...] = ()
    fault: str = ""

    def as_data(self, sass: bool = False, ptx: bool = False) -> dict[str, Any]:
        kernels = [kernel.as_data(sass, ptx) for kernel in self.kernels]
        return {"case": self.case, "fault": self.fault, "kernels": kernels}

    def as_text(self) -> str:
        return self.fault or "\n".join(line for kernel in self.kernels for line in kernel.lines())


def compile_report(
    task: Task, source: Source, case_name: str | None, arch: int, assembler: Assembler, deadline_s: float = 60.0,
    unconfined: bool = False,
) -> CompileReport:  # fmt: skip
    """Record and compile a source for one case (None: the first search case), in children of its own.

    Raises InfraError, and UserError for a case or an architecture that is not known.
    """
    case = task.case(case_name) if case_name is not None else task.cases_of(CaseKind.SEARCH)[0]
    target = target_for(arch)
    compiler = Compiler(arch, deadline_s, assembler=assembler, explain=True)
    recorder = Recorder(compiler, arch, deadline_s, orders=lambda: task.output_orders)
    try:
        recorder.start()
        if not unconfined:
            refuse_unconfined(recorder.confinement)
        plan = recorder.record(source, (record_case(task, case),), [()]).plans[(case.name, ())]
    finally:
        recorder.close()
        compiler.close()
    if not isinstance(plan, RecordFault) and not plan.plan.launches:
        plan = RecordFault(Status.REJECTED, "run launches no kernel of its own")
    if isinstance(plan, RecordFault):
        return CompileReport(case.name, fault=f"{plan.status}: {plan.reason}")
    return CompileReport(case.name, kernel_reports(plan, compiler.explanations, target, source))


def kernel_reports(
    compiled: CompiledPlan, explanations: Mapping[str, Explanation], target: Target, source: Source
) -> tuple[KernelReport, ...]:
    """One for each kernel of the plan that is launched, in the order of first launches."""
    launches: dict[int, list[Launch]] = {}
    for launch in compiled.plan.launches:
        launches.setdefault(launch.kernel, []).append(launch)
    return tuple(
        _kernel(
            compiled.plan.kernels[number], compiled.binaries[number], made,
            explanations[compiled.plan.kernels[number].key], target, source,
        )
        for number, made in launches.items()
    )  # fmt: skip


def _kernel(
    kernel: Kernel, binary: Binary, launches: Sequence[Launch], told: Explanation, target: Target, source: Source
) -> KernelReport:
    fits = occupancy(target, binary.registers, binary.block_shared_bytes, binary.num_warps)
    largest = max(launches, key=lambda launch: math.prod(launch.grid))
    listed = listed_lines(disassemble(binary.cubin))
    texts: dict[str, list[str]] = dict(
        zip(OWN_FILES, (source.text.splitlines(), kernel.code.splitlines()), strict=True)
    )
    return KernelReport(
        name=kernel.name, language=kernel.language,
        grids=tuple(dict.fromkeys(launch.grid for launch in launches)), launches=len(launches),
        num_warps=binary.num_warps, registers=binary.registers, spill_bytes=binary.spill_bytes,
        setmaxnreg=tuple(sorted({int(found[1], 16) for one in listed if (found := _SETMAXNREG.search(one.text))})),
        shared_bytes=binary.block_shared_bytes, blocks_per_sm=fits.blocks_per_sm,
        occupancy=fits.warps_per_sm / target.warps_per_sm, limiter=fits.limiter,
        waves=math.prod(largest.grid) * binary.num_ctas / max(1, fits.blocks_per_sm * target.sm_count),
        tensor_core=tensor_core(binary), data_path=data_path(binary), schedule=schedule(binary, largest, target),
        instructions=_classes(binary.instructions),
        loops=_loops(binary.cubin, listed, texts), warnings=warnings_of(told.log, told.ptx),
        compiler=binary.compiler, ptx=told.ptx, sass=_listing(listed),
    )  # fmt: skip


def _loops(cubin: bytes, listed: Sequence[ListedLine], texts: Mapping[str, Sequence[str]]) -> tuple[LoopReport, ...]:
    """In the order of the code. `texts`: lines of the files that are known."""
    places = {line.address: line.places for line in listed}
    made = []
    for (_, end), counts in sorted(placed_loops(cubin), key=lambda loop: loop[0]):
        file, line = _own(places.get(end, ()))
        text = texts.get(file, ())[line - 1 : line] if line else ()
        mix = _classes(counts)
        waits = mix.keys() <= _WAITING and mix.keys() & {"barrier", "warp-specialise"} and counts["all"] <= _SHORT
        kind = "function" if counts["called"] else "wait" if waits else "loop"
        told = counts["inner"], counts["ahead"], kind, counts["all"], mix
        made.append(LoopReport(file, line, "".join(text).strip(), *told))
    return tuple(made)


def _own(places: Places) -> tuple[str, int]:
    """File name and line, of the source where that is among them."""
    named = [(Path(file).name, line) for file, line in places] or [("", 0)]
    return next((place for place in named if place[0] in OWN_FILES), named[0])


def _listing(listed: Sequence[ListedLine]) -> str:
    """Machine code for people: addresses, labels, and the source line wherever that changes."""
    made, at = [], ("", 0)
    for line in listed:
        if line.places and at != (at := _own(line.places)):
            made.append(f"# {_place(*at)}")
        made.append(line.text if line.text.endswith(":") else f"{line.address:05x}  {line.text}")
    return "\n".join(made)


def _place(file: str, line: int) -> str:
    return f"line {line}" if file == OWN_FILES[0] else f"{file}:{line}"


def warnings_of(log: str, ptx: str) -> tuple[str, ...]:
    """Warnings, and notes with a number such as C7510, of what an assembler said; each once.

    Lines of the PTX that they name are followed by those of the source, where the PTX tells them.
    """
    found = [_PREFIX.sub("", line.strip()) for line in log.splitlines() if _MESSAGE.search(line)]
    lines = ptx.splitlines()
    return tuple(dict.fromkeys(_PTX_LINE.sub(lambda at: at[0] + _source_of(int(at[1]), lines), line) for line in found))


def _source_of(number: int, ptx: Sequence[str]) -> str:
    """The source line of a line of PTX, in brackets: of the last `.loc` before it; empty if there is none."""
    at = next((found for line in ptx[number - 1 :: -1] if (found := _LOC.match(line))), None)
    if at is None:
        return ""
    names = {found[1]: found[2] for line in ptx if (found := _FILE.match(line))}
    places = [(names.get(file, ""), int(line)) for file, line in ((at[1], at[2]), (at[3], at[4])) if file]
    return f" of the PTX ({_place(*_own(tuple(places)))})"


def _classes(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: n for name, n in counts.items() if n and name not in _FIGURES and not name.startswith("in_loop.")}


def _loop_lines(copies: Sequence[LoopReport]) -> list[str]:
    """Of loops from one line, which are copies: for groups of warps, or unrolled. Their sizes, and the largest one."""
    loop = max(copies, key=lambda one: one.count)
    where = f"{_place(loop.file, loop.line)} `{loop.text}`" if loop.line else "of no known line"
    sizes = " and ".join(str(one.count) for one in copies)
    notes = [f"{loop.inner} loops inside"] if loop.inner else []
    notes += [f"copies {loop.ahead} rounds ahead"] if loop.ahead else []
    said = "".join(f"; {note}" for note in notes)
    return [f"  {loop.kind:<12} {where}", f"               {sizes} instructions: {_mix(loop.instructions)}{said}"]


def _mix(counts: Mapping[str, int]) -> str:
    """The largest counts, and all that KEY names."""
    ranked = sorted((name for name, count in counts.items() if count > 0), key=lambda name: -counts[name])
    shown = [name for number, name in enumerate(ranked) if number < SHOWN or name in KEY]
    return ", ".join(f"{name} {counts[name]}" for name in shown) or "-"
