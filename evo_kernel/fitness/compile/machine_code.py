"""Reads a cubin's metadata (resources, parameters, variables, symbols) as untrusted data; instructions.py reads code.

A cubin is an ELF64 file; every offset and size is checked against the file's length. The records of a `.nv.info`
section are (format: 1 byte, attribute: 1 byte, value or size: 2 bytes, payload). `cuobjdump -elf` prints the names of
attribute numbers.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

MAX_CUBIN_BYTES = 64 << 20

_NOBITS, _RELA, _REL, _SYMTAB, _OBJECT, _FUNC = 8, 4, 9, 2, 1, 2
_LOADED = 2  # SHF_ALLOC: what the driver brings to the GPU
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_VARIABLES = re.compile(r"\.nv\.global(\..*)?|\.nv\.constant(3|[5-9]|1\d)(\..*)?")
"""Sections of variables. Constant banks 0, 2 and 4 hold parameters, the compiler's numbers, and addresses."""
_DIVISION = re.compile(r"\$__internal_\d+_\$__cuda_sm\d+x?_(div|rem)_[su]\d+")
_COMPUTATION = re.compile(r"\$.*\$__internal_(accurate_pow|lgamma_pos)")
_RELOCATIONS = {_RELA: struct.Struct("<QQq"), _REL: struct.Struct("<QQ")}
_PAYLOAD = 4  # the record format that carries a payload
_FRAME_SIZE, _KPARAM_INFO, _REGCOUNT = 0x11, 0x17, 0x2F
_CODE = (".text.", ".nv.constant", ".rodata", ".nv.global", ".nv.info.", ".nv.shared.", ".rela.text.")
"""Sections that decide execution, with every relocation of one that is loaded."""


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel, from its metadata."""

    registers: int  # per thread
    spill_bytes: int  # of local memory, per thread
    stack_bytes: int  # of all functions: no chain of calls needs more, but for recursion, which the stack limit ends
    shared_bytes: int  # static, per block, without dynamic shared memory


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    flags: int
    size: int
    link: int
    info: int
    data: bytes  # empty for a section without bits in the file


@dataclass(frozen=True)
class _Symbol:
    name: str
    kind: int
    place: int  # its section; 0: nobody here has it
    value: int  # its first address in the section
    size: int


@dataclass(frozen=True)
class _Relocation:
    """A place in loaded code or data, into which the driver writes what depends on a symbol."""

    place: tuple[int, int]  # section, offset
    how: int
    symbol: _Symbol
    addend: int


def code_hash(cubin: bytes, entry: str = "") -> str:
    """Hash of code, constants, attributes and static memory, without symbol names.

    The same kernel under different names has the same hash. Cubins compiled with TRITON_DISABLE_LINE_INFO=1 have no
    line information. If a cubin has several entry functions, the name of the launched one is included. Raises
    ValueError for bytes that are not a cubin.
    """
    sections = _sections(cubin)
    flags = _HEADER.unpack_from(cubin)[7]
    parts = sorted(_part(section) for section in sections if section.name.startswith(_CODE))
    contents = [hashlib.sha256(section.data).hexdigest() for section in sections]
    moved = [_resolved(one, contents) for one in _relocations(sections)]
    digest = hashlib.sha256(struct.pack("<I", flags))
    for registers in sorted(_values(sections, _REGCOUNT)):
        digest.update(struct.pack("<I", registers))
    for family, size, content in parts:
        digest.update(f"{family}:{size}:{len(content)}\n".encode())
        digest.update(content)
    if moved:
        digest.update(repr(moved).encode())
    if sum(section.name.startswith(".text.") for section in sections) > 1:
        digest.update(entry.encode())
    return digest.hexdigest()


def resources(cubin: bytes) -> Resources:
    """Registers, local and shared memory: the maximum over its functions, of stacks the sum. Raises ValueError."""
    sections = _sections(cubin)
    shared = [s.size for s in sections if s.name.startswith(".nv.shared.") and ".reserved" not in s.name]
    if not any(s.name.startswith(".text.") for s in sections):
        raise ValueError("the cubin holds no code")
    return Resources(
        registers=max(_values(sections, _REGCOUNT), default=0),
        spill_bytes=max(_values(sections, _FRAME_SIZE), default=0),
        stack_bytes=sum(_values(sections, _FRAME_SIZE)),
        shared_bytes=max(0, max(shared, default=0) - 1024),  # the section includes 1024 bytes of the driver
    )


def variables(cubin: bytes) -> tuple[str, ...]:
    """Variables in global and constant memory, which live as long as the module; the compiler's own included.

    Data without a symbol counts as a variable with its section's name. Raises ValueError.
    """
    sections = _sections(cubin)
    named = [
        (one.name, sections[one.place].name)
        for table in sections
        for one in _symbols(table, sections)
        if one.kind == _OBJECT and one.place < len(sections)
    ]
    names = [name for name, home in named if _VARIABLES.fullmatch(home)]
    homes = {home for _, home in named}
    return (*names, *(s.name for s in sections if s.size and _VARIABLES.fullmatch(s.name) and s.name not in homes))


def missing_functions(cubin: bytes) -> tuple[str, ...]:
    """Functions that the code calls and the driver has to bring. Raises ValueError."""
    sections = _sections(cubin)
    symbols = (one for table in sections for one in _symbols(table, sections))
    return tuple(one.name for one in symbols if one.kind == _FUNC and one.place == 0)


def addressed_functions(cubin: bytes) -> tuple[str, ...]:
    """Functions whose addresses the driver writes into code or data: calls within a cubin need none. Raises ValueError.

    Where an address lies within code and no function is named, it counts as one of the section's name.
    """
    sections = _sections(cubin)
    symbols = [one.symbol for one in _relocations(sections)]
    homes = {number for number, section in enumerate(sections) if section.name.startswith(".text.")}
    return tuple(one.name or sections[one.place].name for one in symbols if one.kind == _FUNC or one.place in homes)


def executed_functions(cubin: bytes) -> tuple[dict[int, int], dict[int, int]]:
    """First and last address of the assembler's functions that each call executes, as `code_words` has addresses: those
    that divide integers, and those that compute functions of 64-bit floats.

    Its other functions are slow paths, which few numbers take. Raises ValueError.
    """
    sections = _sections(cubin)
    bases = _bases(sections)
    functions = [
        one for table in sections for one in _symbols(table, sections)
        if one.kind == _FUNC and one.place in bases and one.size >= 16
    ]  # fmt: skip
    divided, computed = (
        {
            bases[one.place] + one.value: bases[one.place] + one.value + one.size - 16
            for one in functions
            if pattern.fullmatch(one.name)
        }
        for pattern in (_DIVISION, _COMPUTATION)
    )
    return divided, computed


def entry_address(cubin: bytes, entry: str) -> int:
    """First address of an entry function, as `code_words` has addresses. Raises ValueError."""
    sections = _sections(cubin)
    bases = _bases(sections)
    for table in sections:
        for one in _symbols(table, sections):
            if (one.name, one.kind) == (entry, _FUNC) and one.place in bases:
                return bases[one.place] + one.value
    raise ValueError(f"the cubin has no function {entry[:200]}")


def _bases(sections: list[_Section]) -> dict[int, int]:
    """First address of each section of code, by its number."""
    bases, base = {}, 0
    for place, section in enumerate(sections):
        if section.name.startswith(".text."):
            bases[place] = base
            base += len(section.data) // 16 * 16
    return bases


def _symbols(table: _Section, sections: list[_Section]) -> list[_Symbol]:
    """The symbols of a table, in order; of any other section, none. Raises ValueError."""
    if table.kind != _SYMTAB:
        return []
    if table.link >= len(sections):
        raise ValueError("not a cubin: its symbol table names no strings")
    strings = sections[table.link].data
    whole = len(table.data) // _SYMBOL.size * _SYMBOL.size
    return [
        _Symbol(_text(strings, name), info & 0xF, place, value, size)
        for name, info, _other, place, value, size in _SYMBOL.iter_unpack(table.data[:whole])
    ]


def _relocations(sections: list[_Section]) -> Iterator[_Relocation]:
    """Those of sections that are loaded. Raises ValueError."""
    for section in sections:
        if section.kind not in _RELOCATIONS:
            continue
        if max(section.link, section.info) >= len(sections):
            raise ValueError("not a cubin: its relocations belong to no section")
        if not sections[section.info].flags & _LOADED:
            continue
        symbols, form = _symbols(sections[section.link], sections), _RELOCATIONS[section.kind]
        for offset, what, *addend in form.iter_unpack(section.data[: len(section.data) // form.size * form.size]):
            if what >> 32 >= len(symbols):
                raise ValueError("not a cubin: a relocation names no symbol")
            place = (section.info, offset)
            yield _Relocation(place, what & 0xFFFFFFFF, symbols[what >> 32], sum(addend))


def _resolved(one: _Relocation, contents: list[str]) -> tuple:
    """A relocation with its symbol by where that lies; by its name where nothing in the cubin has it."""
    symbol = one.symbol
    inside = 0 < symbol.place < len(contents)
    what = (symbol.place, contents[symbol.place], symbol.value) if inside else symbol.name
    return one.place, one.how, one.addend, what


def parameter_bytes(cubin: bytes, entry: str = "") -> tuple[int, ...]:
    """Size of each parameter of an entry function, in order; `entry` is optional if it is the only one.

    Raises ValueError.
    """
    section_name = f".nv.info.{entry}"
    entries = [s for s in _sections(cubin) if (s.name == section_name if entry else s.name.startswith(section_name))]
    sizes: dict[int, int] = {}
    for section in entries:
        for attribute, payload in _records(section.data):
            if attribute == _KPARAM_INFO and len(payload) >= 12:
                _index, ordinal, _offset, packed = struct.unpack_from("<IHHI", payload)
                if sizes.setdefault(ordinal, packed >> 18) != packed >> 18:
                    raise ValueError("the cubin holds more than one entry function")
    if sorted(sizes) != list(range(len(sizes))):
        raise ValueError("the cubin's parameter table has gaps")
    return tuple(sizes[ordinal] for ordinal in range(len(sizes)))


def code_words(cubin: bytes) -> tuple[int, list[tuple[int, int, int]]]:
    """ELF flags, which hold the architecture, and (address, low word, high word) of each instruction.

    Functions are concatenated. Raises ValueError.
    """
    words: list[tuple[int, int, int]] = []
    for section in _sections(cubin):
        if section.name.startswith(".text."):
            whole = section.data[: len(section.data) // 16 * 16]
            words += [(16 * (len(words) + n), *pair) for n, pair in enumerate(struct.iter_unpack("<QQ", whole))]
    return _HEADER.unpack_from(cubin)[7], words


def _sections(cubin: bytes) -> list[_Section]:
    """The sections of an ELF64 little-endian CUDA file. Raises ValueError if one lies outside the file."""
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
            name=_text(strings, name) if name < len(strings) else "",
            kind=kind, flags=flags, size=size, link=link, info=info,
            data=b"" if kind == _NOBITS else cubin[offset : offset + size],
        )
        for name, kind, flags, _addr, offset, size, link, info, *_ in raw
    ]  # fmt: skip


def _text(strings: bytes, start: int) -> str:
    return strings[start : max(start, strings.find(b"\0", start))].decode("latin-1")


def _part(section: _Section) -> tuple[str, int, bytes]:
    """A section's family (its name up to the symbol), its size and its content; relocations are read apart."""
    family = next(prefix for prefix in _CODE if section.name.startswith(prefix))
    if family == ".nv.constant":  # .nv.constant0.name: the bank belongs to the family
        family = section.name[: section.name.find(".", len(family))]
    if section.kind == _RELA:
        return family, section.size, b"[]"  # so hashed where there are none: populations hold such hashes
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
