"""What the code of a cubin does: its instructions by class, and its loops.

Opcodes are named by the disassembler in Triton's wheel; operands are read from the 16 bytes of an instruction, as its
listings show them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import re
import resource
import signal
import subprocess
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from evo_kernel.errors import InfraError
from evo_kernel.fitness.compile.machine_code import code_words, entry_address, executed_functions

DISASSEMBLER_S, PATIENCE_S = 20, 120
"""Of processor time, which belongs to the code; in all, which belongs to the machine."""
_ACCESS_BYTES = (1, 1, 2, 2, 4, 8, 16, 16)  # by bits 73-75 of a load
_DIVIDES = "IDIV"  # no opcode of these GPUs
_RELATIVE = {"BRA", "CALL"}
_NOWHERE = 1 << 60
_ZERO = 255  # the number of the register that holds 0
_TRUE = 7  # the number of the predicate that always holds
_GLOBAL = {"ld.global", "st.global", "cp.async", "tma.load", "tma.store", "atomic"}
_REACHES_GLOBAL = {"CCTL", "UBLKPF", "UTMAPF", "UBLKRED", "RED", "SULD", "SUST", "SURED", "SUATOM", "TEX", "TLD"}
_SHARED = {"ATOMS", "REDS"}
_GENERIC = {"LD", "ST", "ATOM"}  # whose addresses may be in global, shared or local memory
_UNKNOWN_NEXT = {"EXIT", "BRX", "BRXU", "JMP", "JMX", "JMXU", "KILL"}
_NORMAL_EVICTION = 1  # bits 84-86 of a load or store (.EF is 0, .EL is 2)


class Instruction(NamedTuple):
    """One instruction. `target`: of a relative branch or call."""

    address: int
    opcode: str
    target: int
    low: int
    high: int

    @property
    def family(self) -> str:
        if self.opcode == "HFMA2" and self.low >> 24 & 255 == _ZERO:  # a constant or an absolute value, plus zero
            return "move"
        return _CLASS.get(self.opcode) or ("int.uniform" if self.opcode.startswith("U") else "int")

    @property
    def unit(self) -> str:
        """The unit that executes it and is slower than issuing, as in opcodes.toml; else empty."""
        return _UNIT.get(self.opcode, "")

    @property
    def slots(self) -> int:
        """Of its unit: a product of 64 bits (IMAD.WIDE), or the upper half of one (IMAD.HI), takes two."""
        return 2 if self.opcode == "IMAD" and self.low & 15 in (5, 7) else 1

    @property
    def touches_global(self) -> bool:
        """Whether it accesses global memory, or prefetches from it."""
        return (self.family in _GLOBAL or self.opcode in _REACHES_GLOBAL) and self.opcode not in _SHARED

    @property
    def unconditional(self) -> bool:
        """Whether every thread executes it; of a branch, whether every thread takes it."""
        if (self.low >> 12) & 0xF != _TRUE:
            return False
        return self.opcode != "BRA" or ((self.low >> 24) & 0x3FF == 0 and (self.high >> 23) & 0x1F == _TRUE)

    @property
    def successors(self) -> tuple[int, ...]:
        """Addresses at which a thread can go on; a call returns. Not of what ends a thread or jumps to a register."""
        following = self.address + 16
        if self.opcode == "BRA":
            return (self.target,) if self.unconditional else (self.target, following)
        if self.opcode == "CALL":
            return self.target, following
        if self.opcode == "BSSY":  # names the place at which its threads meet
            return following, following + _signed(self.low >> 32, 32)
        return () if self.opcode == "RET" and self.unconditional else (following,)

    @property
    def bytes_loaded(self) -> int:
        """What one thread gets from global memory."""
        return _ACCESS_BYTES[(self.high >> 9) & 7] if self.family in ("ld.global", "cp.async") else 0

    @property
    def products(self) -> int:
        """Products of 16 × 8 × 16 16-bit floats, or as long ones of others, that one warp's tensor cores make.

        Four warps together make those of 64 × N × 16; N / 8 - 1 is in bits 53-57.
        """
        return 1 + (self.low >> 53 & 31) if self.family == "wgmma" else int(self.family == "mma")


def instruction_counts(cubin: bytes) -> Mapping[str, int]:
    """Static instruction counts by class.

    `all` counts every instruction, `loops` the backward branches, `in_loop.<class>` the instructions of a class between
    the target of a backward branch and the branch, `alu` and its like those of a slower unit, `hinted` the
    loads and stores with an eviction priority of their own, `generic` the accesses that may be of local memory, too,
    `load_bytes` what the global loads of one thread bring, each once, and `products` those of `Instruction.products`
    (in loops likewise). Raises ValueError, and InfraError without a disassembler.
    """
    code = _with_functions(cubin)
    spans = [(one.target, one.address) for one in code if one.opcode == "BRA" and one.target < one.address]
    counts = _by_class(code) | {"all": len(code), "loops": len(spans)}
    accesses = [one for one in code if one.family in ("ld.global", "st.global")]
    if hinted := sum((one.high >> 20) & 7 != _NORMAL_EVICTION for one in accesses):
        counts["hinted"] = hinted
    if generic := sum(one.opcode in _GENERIC for one in code):
        counts["generic"] = generic
    within = {address for start, end in spans for address in range(start, end + 1, 16)}
    if inside := [one for one in code if one.address in within]:
        counts |= {f"in_loop.{name}": count for name, count in (_by_class(inside) | {"all": len(inside)}).items()}
    return counts


def _by_class(code: Sequence[Instruction]) -> dict[str, int]:
    """Instructions by family, slots by unit, `load_bytes` and `products`."""
    counts = Counter(one.family for one in code)
    for one in code:
        if one.unit:
            counts[one.unit] += one.slots
    counts["load_bytes"] = sum(one.bytes_loaded for one in code)
    counts["products"] = sum(one.products for one in code)
    return dict(counts)


def waits_first(cubin: bytes, entry: str) -> bool:
    """Whether all threads wait for the previous launch before they access global memory or end.

    `entry`: the entry function. False also where it jumps to an address in a register before. Raises ValueError, and
    InfraError without a disassembler.
    """
    code = {one.address: one for one in instructions(cubin)}
    pending, seen = [entry_address(cubin, entry)], set[int]()
    while pending:
        address = pending.pop()
        if address in seen:
            continue
        seen.add(address)
        one = code.get(address)
        if one is None or one.touches_global or one.opcode in _UNKNOWN_NEXT:
            return False
        if one.opcode != "ACQBULK" or not one.unconditional:
            pending += one.successors
    return True


@lru_cache(maxsize=16)  # counts and loops want the same one, one after the other
def _with_functions(cubin: bytes) -> Sequence[Instruction]:
    """Every instruction, and those of always executed functions where they are called: each call executes them.

    All are at the address of the call, and none is a branch from there. Integer divisions count as integer
    instructions.
    """
    code = instructions(cubin)
    divided, computed = executed_functions(cubin)
    bodies = divided | computed
    inside: dict[int, list[Instruction]] = {first: [] for first in bodies}
    outside: list[Instruction] = []
    for one in code:
        first = next((first for first, last in bodies.items() if first <= one.address <= last), None)
        (outside if first is None else inside[first]).append(one)
    made: list[Instruction] = []
    for one in outside:
        made.append(one)
        if one.opcode == "CALL":
            for each in inside.get(one.target, ()):
                opcode = _DIVIDES if one.target in divided else each.opcode
                made.append(Instruction(one.address, opcode, _NOWHERE, each.low, each.high))
    return made


def loops(cubin: bytes) -> tuple[dict[str, int], ...]:
    """`placed_loops` without their places."""
    return tuple(dict(counts) for _, counts in placed_loops(cubin))


def placed_loops(cubin: bytes) -> list[tuple[tuple[int, int], Mapping[str, int]]]:
    """Loops of the code and functions that it calls, each with its first and last address, the smaller first, and its
    own instructions by class: not those of inner ones.

    `all`, `alu` and its like, `load_bytes` and `products` as above. `in_divisions`: of all, those of functions that
    divide integers. `called`: 1 of a function. `inner`: loops that lie in it. `early`: rounds that copies are issued
    before their use, at most; `ahead`: at least, 0 where a round waits for a load of its own. Raises ValueError, and
    InfraError without a disassembler.
    """
    code = _with_functions(cubin)
    called = _called(code)
    spans = _spans(code, called)
    own: dict[tuple[int, int] | None, list[Instruction]] = {span: [] for span in (*spans, None)}
    for one in code:  # spans are sorted by size: the first that holds an instruction is the innermost
        own[next(((start, end) for start, end in spans if start <= one.address <= end), None)].append(one)
    made = []
    for start, end in spans:
        inside = own[(start, end)]
        around = next((o for o in spans if o[0] <= start and end <= o[1] and o != (start, end)), None)
        before = max((other[1] for other in spans if other[1] < start), default=0)
        counts = Counter(_by_class(inside) | {"all": len(inside)})
        counts["in_divisions"] = sum(one.opcode == _DIVIDES for one in inside)
        counts["called"] = int(start in called)
        counts["inner"] = sum(start <= other[0] and other[1] <= end for other in spans) - 1
        least, counts["early"] = _early(inside, [one for one in own[around] if before < one.address < start])
        counts["ahead"] = 0 if counts["ld.global"] else least
        made.append(((start, end), dict(counts)))
    return made


def _called(code: Sequence[Instruction]) -> list[int]:
    """First addresses of the functions that the code calls."""
    addresses = {one.address for one in code[1:]}
    return sorted({one.target for one in code if one.opcode == "CALL"} & addresses)


def _spans(code: Sequence[Instruction], called: Sequence[int]) -> list[tuple[int, int]]:
    """First and last address of each loop and each called function, the smaller first.

    A function reaches to the next one. Loops lie in each other or apart. A branch back into the middle of a loop from
    behind it closes none: code that is seldom needed, such as another try at a barrier, lies behind the loop and
    returns to it.
    """
    ends: dict[int, int] = {}
    for one in code:
        if one.opcode == "BRA" and one.target < one.address:
            ends[one.target] = max(one.address, ends.get(one.target, 0))
    apart = [
        (start, end) for start, end in ends.items()
        if not any(other < start <= its_end < end for other, its_end in ends.items())
    ]  # fmt: skip
    functions = [(start, end - 16) for start, end in itertools.pairwise([*called, code[-1].address + 16])]
    return sorted({*apart, *functions}, key=lambda span: span[1] - span[0])


def _early(inside: Sequence[Instruction], before: Sequence[Instruction]) -> tuple[int, int]:
    """Rounds that the copies of a loop run ahead of their use, at least and at most; `before`: the code that leads to
    it.

    Of cp.async, a round leaves some groups of copies under way when it waits, and adds its own; the same instruction
    waits for stores by TMA, of which it leaves fewer. Of TMA, what is under way was issued before the loop; in
    warp-specialised code others issue it, as far as they have room.
    """
    counts = Counter(one.family for one in inside) + Counter(one.opcode for one in inside)
    if not counts["cp.async"] + counts["tma.load"]:
        return 0, 0
    if counts["tma.load"]:
        rounds = sum(one.family == "tma.load" for one in before) // counts["tma.load"]
        return rounds, rounds
    left = [(one.low >> 38) & 63 for one in inside if one.opcode == "DEPBAR"]  # groups, by wait
    own = [groups for groups in left if groups == max(left)] if counts["UTMACMDFLUSH"] else left
    least, most = (1 + min(each, default=0) * len(each) // max(1, counts["LDGDEPBAR"]) for each in (left, own))
    return least, most


_learnt: dict[int, dict[int, str]] = {}
"""By architecture: what the disassembler called each opcode, "" where one opcode had two names.

The disassembler takes a third of a second to start, whatever the size of the code, so it is asked only about opcodes
that are neither in the table nor met by this process. A lost update costs one more question, so no lock."""


@lru_cache(maxsize=16)  # the checks, the counts and the loops want the same one, one after another
def instructions(cubin: bytes) -> Sequence[Instruction]:
    """Every instruction, functions laid end to end. Raises ValueError, and InfraError without a disassembler."""
    return decoded(cubin, _learnt)


def decoded(cubin: bytes, learnt: dict[int, dict[int, str]]) -> list[Instruction]:
    """The same, by opcodes that were learnt, to which it adds.

    An instruction has 16 bytes since capability 7.0: the opcode in bits 0-11, the offset of a relative branch in units
    of 4 bytes in bits 16-23 (low part) and from bit 34 (high part); seen in the disassembler's own listings.
    """
    flags, words = code_words(cubin)
    opcodes = learnt.setdefault(flags, dict(SM_90) if 90 in (flags & 0xFF, flags >> 8 & 0xFF) else {})
    named: dict[int, str] = {}
    if not all(opcodes.get(low & 0xFFF) for _address, low, _high in words):
        named = dict(listing(disassemble(cubin)))
        if named.keys() != {address for address, _low, _high in words}:
            raise ValueError("the disassembly and the code sections of the cubin differ")
        for address, low, _high in words:
            known = opcodes.setdefault(low & 0xFFF, named[address])
            if known != named[address]:
                opcodes[low & 0xFFF] = ""
    made = list[Instruction]()
    for address, low, high in words:
        opcode = named.get(address) or opcodes[low & 0xFFF]
        target = _target(address, low, high) if opcode in _RELATIVE else _NOWHERE
        made.append(Instruction(address, opcode, target, low, high))
    return made


def _target(address: int, low: int, high: int) -> int:
    upper = _signed((low >> 34) | ((high & 0x3FFFF) << 30), 48)
    return address + 16 + 4 * ((upper << 8) | ((low >> 16) & 0xFF))


def _signed(value: int, bits: int) -> int:
    return value - ((value >> (bits - 1)) << bits)


@lru_cache(maxsize=4)  # several readers want the same one, one after another
def disassemble(cubin: bytes) -> str:
    """SASS text of a cubin, with the source lines that it names, by the disassembler in Triton's wheel.

    Takes 10 ms to half a second.
    """
    code_words(cubin)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            with subprocess.Popen(
                [str(_disassembler()), "-c", "-gi", file.name],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            ) as process:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(process.pid, resource.RLIMIT_CPU, (DISASSEMBLER_S, DISASSEMBLER_S))
                try:
                    text, said = process.communicate(timeout=PATIENCE_S)
                except subprocess.TimeoutExpired as error:
                    process.kill()
                    raise InfraError(f"the disassembler waited {PATIENCE_S} s for a processor") from error
        except OSError as error:
            raise InfraError(f"cannot run the disassembler: {error.strerror}; reinstall triton") from error
    if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise ValueError(f"the disassembler took more than {DISASSEMBLER_S} s")
    if process.returncode:
        raise ValueError(f"the cubin cannot be disassembled: {said.strip()[:200]}")
    return text


@cache
def _disassembler() -> Path:
    spec = importlib.util.find_spec("triton")  # found, not imported
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / "backends" / "nvidia" / "bin" / "nvdisasm"
        if path.exists():
            return path
    raise InfraError("triton's wheel holds no nvdisasm; reinstall triton for NVIDIA GPUs")


_LISTED = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)


def listing(text: str) -> list[tuple[int, str]]:
    """(address, opcode) of a disassembly, functions laid end to end: each starts at 0 again."""
    listed: list[tuple[int, str]] = []
    base = 0
    for offset, opcode in _LISTED.findall(text):
        if listed and int(offset, 16) == 0:
            base = listed[-1][0] + 16
        listed.append((base + int(offset, 16), opcode))
    return listed


_LINE = re.compile(r'^\s+//## File "([^"]*)", line (\d+)(.*)$')
Places = tuple[tuple[str, int], ...]
"""(file, line) that an instruction comes from, then where that is inlined."""


class ListedLine(NamedTuple):
    """A line of a listing: an instruction, or a label, whose address is that of the next instruction."""

    address: int
    text: str
    places: Places


def listed_lines(text: str) -> list[ListedLine]:
    """Lines of a disassembly, functions laid end to end."""
    made: list[ListedLine] = []
    places: Places = ()
    base = following = 0
    open_ended = False
    for line in text.splitlines():
        if found := _LINE.match(line):
            places = (*(places if open_ended else ()), (found[1], int(found[2])))
            open_ended = "inlined at" in found[3]
        elif found := _LISTED.match(line):
            if made and int(found[1], 16) == 0:
                base = following
            address = base + int(found[1], 16)
            following = address + 16
            made.append(ListedLine(address, line.partition("*/")[2].strip(" ;"), places))
        elif line.startswith(".text."):
            places = ()
        elif line.endswith(":"):
            made.append(ListedLine(following, line, places))
    return made


with Path(__file__).with_name("opcodes.toml").open("rb") as _file:
    _OPCODES = tomllib.load(_file)
_CLASS = {opcode: family for family, opcodes in _OPCODES["classes"].items() for opcode in opcodes.split()}
_UNIT = {opcode: unit for unit, opcodes in _OPCODES["units"].items() for opcode in opcodes.split()}
_CODES = map(str.split, _OPCODES["codes"]["sm_90"].split(";"))
SM_90 = {int(code, 16): name for name, *codes in _CODES for code in codes}
"""Opcodes of capability 9.0 by bits 0-11."""
