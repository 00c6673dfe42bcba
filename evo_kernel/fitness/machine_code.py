"""What a compiled kernel says about itself, read from its cubin as hostile data.

A cubin is an ELF64 file: every offset and size in it is checked against its length before it is followed. The records
of a `.nv.info` section are (format: 1 byte, attribute: 1 byte, value or size: 2 bytes, payload); the attribute numbers
are those that `cuobjdump -elf` prints by name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from evo_kernel.errors import InfraError
from evo_kernel.fitness.opcodes import SM_90

DISASSEMBLER_DEADLINE_S = 20.0
MAX_CUBIN_BYTES = 64 << 20

_NOBITS, _RELA, _SYMTAB, _OBJECT, _FUNC = 8, 4, 2, 1, 2
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_VARIABLES = re.compile(r"\.nv\.global(\..*)?|\.nv\.constant(3|[5-9]|1\d)(\..*)?")
"""Sections of variables. Constant banks 0, 2 and 4 hold parameters, the compiler's numbers, and addresses."""
_RELOCATION = struct.Struct("<QQq")
_PAYLOAD = 4  # the record format that carries a payload
_FRAME_SIZE, _KPARAM_INFO, _REGCOUNT = 0x11, 0x17, 0x2F
_ACCESS_BYTES = (1, 1, 2, 2, 4, 8, 16, 16)  # by bits 73-75 of a load; seen in the disassembler's listings
_NORMAL_EVICTION = 1  # bits 84-86 of a load or store; seen in the disassembler's listings (.EF is 0, .EL is 2)
_CODE = (".text.", ".nv.constant", ".rodata", ".nv.global", ".nv.info.", ".nv.shared.", ".rela.text.")


@dataclass(frozen=True)
class Resources:
    """What one thread and one block of a kernel take, by its own metadata."""

    registers: int  # a thread
    spill_bytes: int  # of local memory, a thread
    shared_bytes: int  # static; what a launch asks for comes on top


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    size: int
    link: int
    info: int
    data: bytes  # empty for a section without bits in the file


def code_hash(cubin: bytes, entry: str = "") -> str:
    """Hash of what decides execution: code, constants, attributes and static memory, with symbol names left out.

    Two cubins of the same kernel under different names have the same hash; line information does not exist in cubins
    compiled with TRITON_DISABLE_LINE_INFO=1. In a cubin of several entry functions, the name of the one that is
    launched counts. Raises ValueError when the bytes are not a cubin.
    """
    sections = _sections(cubin)
    flags = _HEADER.unpack_from(cubin)[7]
    parts = sorted(_part(section) for section in sections if section.name.startswith(_CODE))
    digest = hashlib.sha256(struct.pack("<I", flags))
    for registers in sorted(_values(sections, _REGCOUNT)):
        digest.update(struct.pack("<I", registers))
    for family, size, content in parts:
        digest.update(f"{family}:{size}:{len(content)}\n".encode())
        digest.update(content)
    if sum(section.name.startswith(".text.") for section in sections) > 1:
        digest.update(entry.encode())
    return digest.hexdigest()


def resources(cubin: bytes) -> Resources:
    """Registers, local and static shared memory; the largest of its functions. Raises ValueError."""
    sections = _sections(cubin)
    shared = [s.size for s in sections if s.name.startswith(".nv.shared.") and ".reserved" not in s.name]
    if not any(s.name.startswith(".text.") for s in sections):
        raise ValueError("the cubin holds no code")
    return Resources(
        registers=max(_values(sections, _REGCOUNT), default=0),
        spill_bytes=max(_values(sections, _FRAME_SIZE), default=0),
        shared_bytes=max(0, max(shared, default=0) - 1024),  # 1024: the driver's own, counted in the section
    )


def variables(cubin: bytes) -> tuple[str, ...]:
    """Variables in global and constant memory that live as long as the module, the compiler's own among them.

    What lies there and has no name counts as one, under its section's. Raises ValueError.
    """
    sections = _sections(cubin)
    named = [(name, sections[place].name) for name, place in _symbols(sections, _OBJECT) if place < len(sections)]
    found = [name for name, home in named if _VARIABLES.fullmatch(home)]
    homes = {home for _, home in named}
    return (*found, *(s.name for s in sections if s.size and _VARIABLES.fullmatch(s.name) and s.name not in homes))


def missing_functions(cubin: bytes) -> tuple[str, ...]:
    """Functions that the code calls and the driver has to bring. Raises ValueError."""
    return tuple(name for name, place in _symbols(_sections(cubin), _FUNC) if place == 0)


def _symbols(sections: list[_Section], kind: int) -> Iterator[tuple[str, int]]:
    """(name, section) of the symbols of a type. Raises ValueError."""
    for table in (s for s in sections if s.kind == _SYMTAB):
        if table.link >= len(sections):
            raise ValueError("not a cubin: its symbol table names no strings")
        strings = sections[table.link].data
        whole = len(table.data) // _SYMBOL.size * _SYMBOL.size
        for name, info, _other, place, _value, _size in _SYMBOL.iter_unpack(table.data[:whole]):
            if info & 0xF == kind:
                yield strings[name : max(name, strings.find(b"\0", name))].decode("latin-1"), place


def parameter_bytes(cubin: bytes, entry: str = "") -> tuple[int, ...]:
    """Size of each parameter of an entry function, in order; `entry` may be left out if it is the only one.

    Raises ValueError.
    """
    wanted = f".nv.info.{entry}"
    entries = [s for s in _sections(cubin) if (s.name == wanted if entry else s.name.startswith(wanted))]
    found: dict[int, int] = {}
    for section in entries:
        for attribute, payload in _records(section.data):
            if attribute == _KPARAM_INFO and len(payload) >= 12:
                _index, ordinal, _offset, packed = struct.unpack_from("<IHHI", payload)
                if found.setdefault(ordinal, packed >> 18) != packed >> 18:
                    raise ValueError("the cubin holds more than one entry function")
    if sorted(found) != list(range(len(found))):
        raise ValueError("the cubin's parameter table has gaps")
    return tuple(found[ordinal] for ordinal in range(len(found)))


def instruction_counts(cubin: bytes) -> Mapping[str, int]:
    """Static instruction counts by class.

    `all` counts every instruction, `loops` the backward branches, `in_loop.<class>` the instructions of a class between
    the target of a backward branch and the branch, `hinted` the loads and stores with an eviction priority of their
    own, and `load_bytes` what the global loads of one thread bring, each once (`in_loop.load_bytes` likewise). Raises
    ValueError, and InfraError without a disassembler.
    """
    instructions, words = _instructions(cubin), _words(_sections(cubin))
    spans = [(target, address) for address, opcode, target in instructions if opcode == "BRA" and target < address]
    counts: Counter[str] = Counter({"all": len(instructions), "loops": len(spans)})
    for (address, opcode, _target), (_address, _low, high) in zip(instructions, words, strict=True):
        family = _CLASS.get(opcode) or _family(opcode)
        counts[family] += 1
        if family in ("ld.global", "st.global") and (high >> 20) & 7 != _NORMAL_EVICTION:
            counts["hinted"] += 1
        bytes_loaded = _ACCESS_BYTES[(high >> 9) & 7] if family in ("ld.global", "cp.async") else 0
        counts["load_bytes"] += bytes_loaded
        if any(start <= address <= end for start, end in spans):
            counts[f"in_loop.{family}"] += 1
            counts["in_loop.all"] += 1
            counts["in_loop.load_bytes"] += bytes_loaded
    return dict(counts)


_learnt: dict[int, dict[int, str]] = {}
"""By architecture: what the disassembler called each opcode, "" where one opcode had two names.

The disassembler takes a third of a second to start, whatever the size of the code, so it is asked only about opcodes
that are neither in the table nor met by this process. A lost update costs one more question, so no lock."""


def _instructions(cubin: bytes) -> list[tuple[int, str, int]]:
    """(address, opcode, branch target) of every instruction; the target of what is no relative branch means nothing.

    An instruction has 16 bytes since capability 7.0: the opcode in bits 0-11, the offset of a relative branch in units
    of 4 bytes in bits 16-23 (low part) and from bit 34 (high part); seen in the disassembler's own listings.
    """
    words = _words(_sections(cubin))
    flags = _HEADER.unpack_from(cubin)[7]
    opcodes = _learnt.setdefault(flags, dict(SM_90) if 90 in (flags & 0xFF, flags >> 8 & 0xFF) else {})
    if not all(opcodes.get(low & 0xFFF) for _address, low, _high in words):
        named = dict(_parse(disassemble(cubin)))
        if named.keys() != {address for address, _low, _high in words}:
            raise ValueError("the disassembly and the code sections of the cubin differ")
        for address, low, _high in words:
            known = opcodes.setdefault(low & 0xFFF, named[address])
            if known != named[address]:
                opcodes[low & 0xFFF] = ""
        return [(address, named[address], _target(address, low, high)) for address, low, high in words]
    return [(address, opcodes[low & 0xFFF], _target(address, low, high)) for address, low, high in words]


def _words(sections: list[_Section]) -> list[tuple[int, int, int]]:
    """(address, low word, high word) of the instructions, functions laid end to end."""
    words: list[tuple[int, int, int]] = []
    for section in sections:
        if section.name.startswith(".text."):
            whole = section.data[: len(section.data) // 16 * 16]
            words += [(16 * (len(words) + n), *pair) for n, pair in enumerate(struct.iter_unpack("<QQ", whole))]
    return words


def _target(address: int, low: int, high: int) -> int:
    upper = (low >> 34) | ((high & 0x3FFFF) << 30)
    upper -= (upper >> 47) << 48
    return address + 16 + 4 * ((upper << 8) | ((low >> 16) & 0xFF))


def disassemble(cubin: bytes) -> str:
    """SASS text of a cubin by the disassembler in Triton's wheel (about 10 ms)."""
    _sections(cubin)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            done = subprocess.run(
                [str(_disassembler()), "-c", file.name],
                capture_output=True, text=True, timeout=DISASSEMBLER_DEADLINE_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ValueError(f"the disassembler took more than {DISASSEMBLER_DEADLINE_S:.0f} s") from error
        except OSError as error:
            raise InfraError(f"cannot run the disassembler: {error.strerror}; reinstall triton") from error
    if done.returncode != 0:
        raise ValueError(f"the cubin cannot be disassembled: {done.stderr.strip()[:200]}")
    return done.stdout


@cache
def _disassembler() -> Path:
    spec = importlib.util.find_spec("triton")  # found, not imported
    for place in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(place) / "backends" / "nvidia" / "bin" / "nvdisasm"
        if path.exists():
            return path
    raise InfraError("triton's wheel holds no nvdisasm; reinstall triton for NVIDIA GPUs")


_LISTED = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", re.MULTILINE)


def _parse(text: str) -> list[tuple[int, str]]:
    """(address, opcode) of a disassembly, functions laid end to end: each starts at 0 again."""
    listed: list[tuple[int, str]] = []
    base = 0
    for offset, opcode in _LISTED.findall(text):
        if listed and int(offset, 16) == 0:
            base = listed[-1][0] + 16
        listed.append((base + int(offset, 16), opcode))
    return listed


_CLASSES: dict[str, str] = {
    "ld.global": "LDG LD",
    "st.global": "STG ST",
    "cp.async": "LDGSTS",
    "tma.load": "UTMALDG UBLKCP",
    "tma.store": "UTMASTG UTMAREDG",
    "wgmma": "HGMMA IGMMA QGMMA BGMMA",
    "mma": "HMMA IMMA DMMA QMMA BMMA OMMA",
    "tcgen05": "UTCHMMA UTCIMMA UTCQMMA UTCOMMA",
    "fma": "FFMA FFMA2 DFMA HFMA2",
    "fadd": "FADD FADD2 DADD HADD2",
    "fmul": "FMUL FMUL2 DMUL HMUL2",
    "minmax": "FMNMX FMNMX3 HMNMX2 VHMNMX IMNMX VIMNMX VIMNMX3 DMNMX",
    "mufu": "MUFU",
    "convert": "F2F F2I I2F F2FP I2I I2FP F2IP FRND",
    "ld.shared": "LDS LDSM",
    "st.shared": "STS STSM",
    "shuffle": "SHFL REDUX",
    "barrier": "BAR SYNCS WARPGROUP WARPSYNC DEPBAR LDGDEPBAR ARRIVES MEMBAR FENCE UTMACMDFLUSH NANOSLEEP ERRBAR",
    "branch": "BRA EXIT CALL RET BSSY BSYNC BRX JMP BREAK KILL BPT",
    "spill": "LDL STL",
    "atomic": "ATOM ATOMG RED REDG ATOMS REDS",
    "move": "MOV CS2R S2R S2UR UMOV MOV32I PRMT R2UR R2P P2R NOP SEL FSEL FSETP FSET VOTE VOTEU",
    "constant": "LDC ULDC LDCU",
    "warp-specialise": "USETMAXREG",
}
_CLASS = {opcode: family for family, opcodes in _CLASSES.items() for opcode in opcodes.split()}


def _family(opcode: str) -> str:
    """What is left: address and index arithmetic, on the uniform path or not."""
    return "int.uniform" if opcode.startswith("U") else "int"


def _sections(cubin: bytes) -> list[_Section]:
    """The sections of an ELF64 little-endian CUDA file, each inside the file. Raises ValueError."""
    if not _HEADER.size <= len(cubin) <= MAX_CUBIN_BYTES or cubin[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a cubin: no ELF64 header")
    header = _HEADER.unpack_from(cubin)
    machine, table, entry, count, names = header[2], header[6], header[11], header[12], header[13]
    if machine != 190:  # EM_CUDA
        raise ValueError(f"not a cubin: ELF machine {machine}")
    if entry != _SECTION.size or table + entry * count > len(cubin) or names >= count:
        raise ValueError("not a cubin: its section table lies outside the file")
    raw = [_SECTION.unpack_from(cubin, table + entry * index) for index in range(count)]
    for _name, kind, _flags, _addr, offset, size, *_ in raw:
        if kind != _NOBITS and offset + size > len(cubin):
            raise ValueError("not a cubin: a section lies outside the file")
    strings = cubin[raw[names][4] : raw[names][4] + raw[names][5]]
    return [
        _Section(
            name=strings[name : max(name, strings.find(b"\0", name))].decode("latin-1") if name < len(strings) else "",
            kind=kind, flags=flags, size=size, link=link, info=info,
            data=b"" if kind == _NOBITS else cubin[offset : offset + size],
        )
        for name, kind, flags, _addr, offset, size, link, info, _align, _entsize in raw
    ]  # fmt: skip


def _part(section: _Section) -> tuple[str, int, bytes]:
    """A section's family (its name up to the symbol), its size and its content without symbol numbers."""
    family = next(prefix for prefix in _CODE if section.name.startswith(prefix))
    if family == ".nv.constant":  # .nv.constant0.name: the bank belongs to the family
        family = section.name[: section.name.find(".", len(family))]
    if section.kind == _RELA:
        whole = len(section.data) // _RELOCATION.size * _RELOCATION.size
        fixed = [(o, i & 0xFFFFFFFF, a) for o, i, a in _RELOCATION.iter_unpack(section.data[:whole])]
        return family, section.size, repr(fixed).encode()
    return family, section.size, section.data


def _records(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + 4 <= len(data):
        form, attribute, value = struct.unpack_from("<BBH", data, position)
        position += 4
        if form == _PAYLOAD:
            if position + value > len(data):
                raise ValueError("not a cubin: a .nv.info record runs past its section")
            yield attribute, data[position : position + value]
            position += value
        else:
            yield attribute, struct.pack("<H", value)


def _values(sections: list[_Section], attribute: int) -> list[int]:
    """Values of a (symbol, value) attribute of the file-wide .nv.info."""
    return [
        struct.unpack_from("<I", payload, 4)[0]
        for section in sections
        if section.name == ".nv.info"
        for number, payload in _records(section.data)
        if number == attribute and len(payload) >= 8
    ]
