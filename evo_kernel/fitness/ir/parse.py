"""Parses the printed form of Triton IR (`ttir`) into frozen operations. The text is hostile: sizes are bounded.

Only what MLIR's printer writes is read: one operation a line, regions opened by `{` at the end of a line and closed on
a line of their own. Anything else raises IRError. Operations that the executor does not know are parsed like the
others; executing them is what fails, with their name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from evo_kernel.fitness.ir.types import BITS, IRError, Type

MAX_TEXT = 8 << 20
MAX_OPERATIONS = 100_000
MAX_DEPTH = 64
MAX_DICTIONARIES = 64
"""Of attributes, at one operation: each is cut out of its line."""
MAX_FRAMES, MAX_LOCATION = 64, 1 << 12
"""Of an operation's location: names that are looked up, and characters of each."""
MAX_ELEMENTS = 1 << 20
"""Elements of one tensor: Triton's own bound (TRITON_MAX_TENSOR_NUMEL)."""


@dataclass(frozen=True, slots=True)
class IRValue:
    """A name in static single assignment form, with its type."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Successor:
    """Where a branch goes, and what it hands to the block's arguments."""

    label: str
    operands: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation. `head`: its text between name and types. `ordinal`: its number in the order of the text."""

    name: str
    results: tuple[IRValue, ...]
    operands: tuple[str, ...]
    attributes: Mapping[str, str]
    words: tuple[str, ...]
    types: tuple[Type, ...]
    head: str
    ordinal: int
    line: int
    regions: tuple[Region, ...] = ()
    successors: tuple[Successor, ...] = ()

    def integer(self, attribute: str, default: int | None = None) -> int:
        """An integer attribute such as `axis = 1 : i32`. Raises IRError where it is missing and has no default."""
        text = self.attributes.get(attribute)
        if text is None:
            if default is None:
                raise IRError(f"{self.name} has no attribute {attribute}")
            return default
        found = re.match(r"-?\d+", text)
        if not found:
            raise IRError(f"{self.name}: {attribute} = {text[:40]} is not an integer")
        return int(found[0])

    def flag(self, attribute: str) -> bool:
        """A boolean or unit attribute."""
        return self.attributes.get(attribute, "false") in ("true", "unit") or attribute in self.words


@dataclass(frozen=True, slots=True, eq=False)
class IRBlock:
    label: str
    arguments: tuple[IRValue, ...]
    operations: tuple[Operation, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    blocks: tuple[IRBlock, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Of a region with one block."""
        return self.blocks[0].operations

    @property
    def arguments(self) -> tuple[IRValue, ...]:
        return self.blocks[0].arguments


@dataclass(frozen=True, eq=False)
class Function:
    name: str
    arguments: tuple[IRValue, ...]
    results: tuple[Type, ...]
    body: Region
    public: bool


@dataclass(frozen=True, eq=False)
class IRModule:
    """`entry` is the public function, the kernel; the others are called by it."""

    entry: Function
    functions: Mapping[str, Function]
    attributes: Mapping[str, str] = field(default_factory=dict)

    def operations(self) -> Iterator[Operation]:
        """All operations of all functions, outer before inner."""
        for function in self.functions.values():
            yield from _walk(function.body)


def _walk(region: Region) -> Iterator[Operation]:
    for block in region.blocks:
        for operation in block.operations:
            yield operation
            for inner in operation.regions:
                yield from _walk(inner)


@lru_cache(maxsize=256)
def parse(text: str) -> IRModule:
    """The module that a text says. Raises IRError."""
    if len(text) > MAX_TEXT:
        raise IRError(f"IR of {len(text)} characters; at most {MAX_TEXT} are read")
    return _Parser(text).module()


# --- types ----------------------------------------------------------------------------------------------------------

_SCALAR = re.compile(r"[a-z][A-Za-z0-9]*")
_SIGNED = re.compile(r"^[su]i(?=\d)")  # blocks of descriptors name the sign


def parse_type(text: str) -> Type:
    """A type as MLIR prints it. Raises IRError."""
    type_, rest = _type(text.strip(), 0)
    if rest.strip():
        raise IRError(f"unreadable type {text[:80]}")
    return type_


def _type(text: str, depth: int) -> tuple[Type, str]:
    """The type at the start of a text, and what follows."""
    if depth > 4:
        raise IRError("types are nested too deep")
    if text.startswith(("!tt.ptr<", "!tt.tensordesc<")):
        inside, rest = _bracketed(text[text.index("<") :])
        if text.startswith("!tt.ptr<"):
            return Type("ptr", None, _type(split_top(inside, ",")[0], depth + 1)[0]), rest
        pointee = _type(inside, depth + 1)[0] if inside.startswith("tensor<") else _tensor(inside, depth)
        return Type("desc", None, pointee), rest
    if text.startswith("tensor<"):
        inside, rest = _bracketed(text[len("tensor") :])
        return _tensor(inside, depth), rest
    if text.startswith("!"):
        name = re.match(r"![\w.]+", text)
        if name is None:
            raise IRError(f"unreadable type {text[:80]}")
        rest = text[name.end() :]
        inside, rest = _bracketed(rest) if rest.startswith("<") else ("", rest)
        return Type(name[0], None, None, inside), rest
    found = _SCALAR.match(text)
    if found is None:
        raise IRError(f"unreadable type {text[:80]}")
    return Type(_SIGNED.sub("i", found[0])), text[found.end() :]


def _tensor(inside: str, depth: int) -> Type:
    body, *encoding = split_top(inside, ",")
    shape: list[int] = []
    while found := re.match(r"(\d{1,9})x", body):
        shape.append(int(found[1]))
        body = body[found.end() :]
    element = _type(body, depth + 1)[0]
    made = Type(element.element, tuple(shape), element.pointee, ",".join(encoding).strip())
    if made.elements > MAX_ELEMENTS or len(shape) > 20 or (element.element not in BITS and element.element != "ptr"):
        raise IRError(f"a tensor<{inside[:80]}> is more than the executor holds")
    return made


def _bracketed(text: str) -> tuple[str, str]:
    """What is inside the bracket that a text starts with, and what follows it."""
    depth = 0
    for position, character in enumerate(text):
        if character in "<([{":
            depth += 1
        elif character in ")]}" or (character == ">" and text[position - 1] != "-"):
            depth -= 1
            if depth == 0:
                return text[1:position], text[position + 1 :]
    raise IRError(f"an open bracket in {text[:80]}")


def split_top(text: str, separator: str) -> list[str]:
    """Parts of a text between separators that stand outside all brackets, stripped."""
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        character = text[position]
        if depth == 0 and text.startswith(separator, position):
            parts.append(text[start:position].strip())
            position = start = position + len(separator)
            continue
        if character in "<([{":
            depth += 1
        elif character in ")]}" or (character == ">" and text[position - 1 : position] != "-"):
            depth -= 1
        position += 1
    return [*parts, text[start:].strip()]


def _types(text: str) -> list[Type]:
    text = text.strip()
    if text.startswith("("):
        text = _bracketed(text)[0]
    return [parse_type(part) for part in split_top(text, ",")] if text else []


# --- lines ----------------------------------------------------------------------------------------------------------

_NAME = r"%[A-Za-z0-9_$.-]+"
_USE = re.compile(rf"{_NAME}(?:#\d+)?")
_RESULT = re.compile(rf"({_NAME})(?::(\d{{1,4}}))?")
_LINE = re.compile(
    rf'(?:(?P<results>{_NAME}(?::\d+)?(?:, {_NAME}(?::\d+)?)*) = )?(?P<quote>"?)(?P<name>[a-z_][\w.]*)"?'
)
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FRAME = re.compile(r'"(?P<file>[^"]*)":(?P<line>\d{1,7})|(?P<name>#\w+)')
_LABEL = re.compile(r"(\^\w+)(?:\((.*)\))?:\s*(?://.*)?$")
_ARGUMENT = re.compile(rf"({_NAME}): ")


class _Lines:
    """Lines of the text without locations, each with its number and the source line that its location names."""

    def __init__(self, text: str) -> None:
        self._aliases: dict[str, str] = {}
        self.lines: list[tuple[str, str]] = []  # text, location
        for raw in text.split("\n"):
            line = raw.strip()
            if line.startswith("#"):
                name, _, value = line.partition(" = ")
                self._aliases[name] = value
            elif line:
                self.lines.append(_without_locations(line))
        self.position = 0
        own = _FRAME.search(self._aliases.get("#loc", ""))  # the printer names the function's so
        self._file = own["file"] if own else None

    def next(self) -> tuple[str, int]:
        if self.position >= len(self.lines):
            raise IRError("the text ends within a region")
        line, location = self.lines[self.position]
        self.position += 1
        return line, self._line_number(location)

    def _line_number(self, location: str) -> int:
        """Of the kernel's own file, which its function is in: of the frames of a call the innermost that lies there."""
        pending, seen = [location], set[str]()
        while pending and len(seen) < MAX_FRAMES:
            text = pending.pop()
            if (found := _FRAME.search(text)) is None:
                continue
            pending.append(text[found.end() :][:MAX_LOCATION])
            if found["line"] and found["file"] == self._file:
                return int(found["line"])
            if (name := found["name"]) and name not in seen:
                seen.add(name)
                pending.append(self._aliases.get(name, "")[:MAX_LOCATION])
        return 0


def _without_locations(line: str) -> tuple[str, str]:
    """A line without its `loc(...)`, and the last of them."""
    location, kept, position = "", [], 0
    while (start := line.find(" loc(", position)) >= 0:
        depth, end = 0, start
        for end in range(start, len(line)):
            depth += (line[end] == "(") - (line[end] == ")")
            if line[end] == ")" and depth == 0:
                break
        location = line[start + 4 : end + 1]
        kept.append(line[position:start])
        position = end + 1
    return "".join([*kept, line[position:]]).rstrip(), location


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = _Lines(text)
        self._count = 0

    def module(self) -> IRModule:
        line, _ = self._lines.next()
        if not line.startswith("module") or not line.endswith("{"):
            raise IRError("the text does not start with a module")
        found = re.search(r"attributes (\{.*\}) \{$", line)
        attributes = _attributes(found[1], []) if found else {}
        functions: dict[str, Function] = {}
        while (line := self._lines.next()[0]) != "}":
            function = self._function(line)
            if function.name in functions:
                raise IRError(f"two functions are called {function.name}")
            functions[function.name] = function
        if self._lines.position != len(self._lines.lines):
            raise IRError("the text goes on after its module")
        public = [f for f in functions.values() if f.public]
        if len(public) != 1:
            raise IRError(f"a module of {len(public)} public functions; one is the kernel")
        return IRModule(public[0], functions, attributes)

    def _function(self, line: str) -> Function:
        found = re.match(r'tt\.func (public|private)? ?@("?)([\w.$<>(),: -]+?)\2\(', line)
        if not found or not line.endswith("{"):
            raise IRError(f"not a function: {line[:80]}")
        inside, rest = _bracketed(line[found.end() - 1 :])
        arguments = tuple(self._argument(part) for part in split_top(inside, ",") if part)
        rest = rest.strip()
        results: list[Type] = []
        if rest.startswith("->"):
            text = rest[2:].strip().removesuffix("{").strip()
            text = re.sub(r"\s*attributes \{.*\}$", "", text)
            results = _types(text)
        body, ending = self._region(1)
        if ending != "}":
            raise IRError(f"unreadable end of a function: {ending[:80]}")
        return Function(found[3], arguments, tuple(results), body, found[1] != "private")

    def _argument(self, text: str) -> IRValue:
        found = _ARGUMENT.match(text)
        if not found:
            raise IRError(f"unreadable argument: {text[:80]}")
        type_, _ = _type(text[found.end() :], 0)  # attributes follow
        return IRValue(found[1], type_)

    def _region(self, depth: int, arguments: tuple[IRValue, ...] = ()) -> tuple[Region, str]:
        """Blocks up to the line that closes the region, and that line."""
        if depth > MAX_DEPTH:
            raise IRError("regions are nested too deep")
        blocks: list[IRBlock] = []
        label, operations = "", []
        while True:
            line, number = self._lines.next()
            if line.startswith("}"):
                blocks.append(IRBlock(label, arguments, tuple(operations)))
                _check_branches(blocks)
                return Region(tuple(blocks)), line
            if line.startswith("^"):
                found = _LABEL.match(line)
                if not found:
                    raise IRError(f"unreadable block label: {line[:80]}")
                if operations or label:
                    blocks.append(IRBlock(label, arguments, tuple(operations)))
                    operations = []
                label = found[1]
                arguments = tuple(self._argument(part) for part in split_top(found[2] or "", ",") if part)
                continue
            operations.append(self._operation(line, number, depth))

    def _operation(self, line: str, number: int, depth: int) -> Operation:
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise IRError(f"more than {MAX_OPERATIONS} operations")
        ordinal = self._count
        found = _LINE.match(line)
        if not found:
            raise IRError(f"unreadable operation: {line[:80]}")
        names = _result_names(found["results"] or "")
        strings: list[str] = []
        tail = _STRING.sub(lambda s: _mask(strings, s[1]), line[found.end() :]).strip()
        name = found["name"]
        regions: list[Region] = []
        if tail.endswith("{"):
            tail = tail[:-1].rstrip().removesuffix("(").rstrip()
            header, block_arguments = _header(name, tail)
            while True:
                region, ending = self._region(depth + 1, block_arguments)
                regions.append(region)
                block_arguments = ()
                if not ending.endswith("{"):
                    break
            ending = _STRING.sub(lambda s: _mask(strings, s[1]), ending)[1:].strip()
            tail = f"{header} {ending.removeprefix(')')}".strip()
        return _check_counts(_assemble(name, names, tail, strings, ordinal, number, tuple(regions)))


def _check_branches(blocks: Sequence[IRBlock]) -> None:
    """Raises IRError where a branch goes to no block, or hands it too little or too much."""
    sizes = {block.label: len(block.arguments) for block in blocks}
    for block in blocks:
        if not block.operations and len(blocks) > 1:
            raise IRError(f"the block {block.label[:80]} is empty")
        for successor in block.operations[-1].successors if block.operations else ():
            if sizes.get(successor.label) != len(successor.operands):
                raise IRError(f"a branch to {successor.label[:80]} does not fit any block")
        if any(operation.successors for operation in block.operations[:-1]):
            raise IRError("a branch stands within a block")


_REGIONS = {"scf.for": (1,), "scf.while": (2,), "scf.if": (1, 2), "tt.reduce": (1,), "tt.scan": (1,)}
_OPERANDS = {
    "tt.load": (1, 2, 3), "tt.store": (2, 3), "tt.atomic_rmw": (2, 3), "tt.atomic_cas": (3,),
    "scf.condition": range(1, MAX_OPERATIONS), "tt.descriptor_load": range(1, 8), "tt.descriptor_store": range(2, 9),
    "tt.descriptor_reduce": range(2, 9), "tt.descriptor_gather": (3,), "tt.descriptor_scatter": (4,),
}  # fmt: skip


def _check_counts(operation: Operation) -> Operation:
    """Raises IRError where regions or operands are not as many as those who read the operation rely on."""
    name = operation.name
    if name in _REGIONS and len(operation.regions) not in _REGIONS[name]:
        raise IRError(f"{name} with {len(operation.regions)} regions")
    if name in _OPERANDS and len(operation.operands) not in _OPERANDS[name]:
        raise IRError(f"{name} with {len(operation.operands)} operands")
    return operation


def _mask(strings: list[str], value: str) -> str:
    strings.append(value)
    return f'"{len(strings) - 1}"'


def _result_names(text: str) -> list[str]:
    names: list[str] = []
    for found in _RESULT.finditer(text):
        names += [found[1]] if found[2] is None else [f"{found[1]}#{n}" for n in range(int(found[2]))]
    return names


def _header(name: str, tail: str) -> tuple[str, tuple[IRValue, ...]]:
    """The head of an operation with regions, and the arguments of its first region that it names."""
    if name == "scf.for":
        found = re.match(rf"(unsigned )?({_NAME}) = (\S+) to (\S+) step (\S+)\s*", tail)
        if not found:
            raise IRError(f"unreadable scf.for: {tail[:80]}")
        rest, arguments, initial, types = tail[found.end() :], [], [], []
        if rest.startswith("iter_args("):
            inside, rest = _bracketed(rest[len("iter_args") :])
            arguments, initial = _bound(inside)
            types_text, rest = _bracketed(rest.strip().removeprefix("->").strip())
            types = _types(f"({types_text})")
        kind = rest.strip().removeprefix(":").strip() or "index"
        values = [IRValue(found[2], parse_type(kind)), *_values(arguments, types)]
        result = f" : () -> ({', '.join(map(_spell, types))})" if types else ""
        head = f"{found[1] or ''}{found[3]}, {found[4]}, {found[5]}, {', '.join(initial)}{result}"
        return head, tuple(values)
    if name == "scf.while":
        arguments, initial = [], []
        if not tail.startswith(":"):
            inside, tail = _bracketed(tail)
            arguments, initial = _bound(inside)
        signature = tail.strip().removeprefix(":")
        before = _types(split_top(signature, "->")[0])
        return f"{', '.join(initial)} : {signature}", _values(arguments, before)
    if name == "scf.if":
        condition, _, types = tail.partition("->")
        return f"{condition} : () -> {types}" if types else condition, ()
    return tail, ()


def _values(names: Sequence[str], types: Sequence[Type]) -> tuple[IRValue, ...]:
    if len(names) != len(types):
        raise IRError(f"{len(names)} values of {len(types)} types")
    return tuple(IRValue(name, type_) for name, type_ in zip(names, types, strict=True))


def _spell(type_: Type) -> str:
    return str(type_) if not type_.encoding else str(type_)[:-1] + f", {type_.encoding}>"


def _bound(inside: str) -> tuple[list[str], list[str]]:
    """Names and initial values of `%a = %x, %b = %y`."""
    pairs = [part.split(" = ") for part in split_top(inside, ",") if part]
    if any(len(pair) != 2 for pair in pairs):
        raise IRError(f"unreadable arguments of a loop: {inside[:80]}")
    return [pair[0].strip() for pair in pairs], [pair[1].strip() for pair in pairs]


_KEY_VALUE = re.compile(r"([A-Za-z_][\w.]*) = ([\w.]+)")


def _assemble(
    name: str, names: list[str], tail: str, strings: list[str], ordinal: int, line: int, regions: tuple[Region, ...]
) -> Operation:
    """An operation from its name and what follows it, strings masked."""
    parts = split_top(tail, " : ") if not tail.startswith(": ") else ["", tail[2:]]
    head, types_text = (parts[0], parts[-1]) if len(parts) > 1 else (tail, "")
    if name == "arith.constant" and len(parts) == 1:  # true and false have no type
        types_text = "i1"
    if name == "tt.elementwise_inline_asm" and len(parts) == 1:  # without operands
        head, _, made = tail.rpartition("-> ")
        types_text = f"-> {made}"
    attributes: dict[str, str] = {}
    head, attributes = _take_attributes(head, strings)
    types_text, more = _take_attributes(types_text, strings)
    attributes |= more
    operand_types, result_types = _signature(name, types_text, len(names))
    successors: tuple[Successor, ...] = ()
    if name in ("cf.br", "cf.cond_br"):
        head, successors = _successors(tail)
    plain = _USE.sub(" ", head)
    for key, value in _KEY_VALUE.findall(plain):
        attributes.setdefault(key, value)
    if name == "tt.call":
        callee = re.match(r'@([\w.$]+|"\d+")', head)
        if not callee:
            raise IRError("tt.call without a callee")
        attributes["callee"] = _unmask(callee[1], strings)
    words = tuple(re.findall(r'[A-Za-z_][\w.]*|"\d+"', _KEY_VALUE.sub(" ", plain)))
    if len(result_types) < len(names) and result_types:
        result_types = [*result_types, *[result_types[-1]] * (len(names) - len(result_types))]
    if len(result_types) < len(names):
        raise IRError(f"{name} does not say the types of its results")
    return Operation(
        name=name,
        results=_values(names, result_types[: len(names)]),
        operands=tuple(_USE.findall(head)),
        attributes=attributes,
        words=tuple(_unmask(word, strings) for word in words),
        types=tuple(operand_types),
        head=re.sub(r'"(\d+)"', lambda n: f'"{strings[int(n[1])]}"', head),
        ordinal=ordinal,
        line=line,
        regions=regions,
        successors=successors,
    )


def _unmask(text: str, strings: list[str]) -> str:
    return re.sub(r'"(\d+)"', lambda n: strings[int(n[1])], text)


def _take_attributes(text: str, strings: list[str]) -> tuple[str, dict[str, str]]:
    """A text without its dictionaries of attributes, and those."""
    attributes: dict[str, str] = {}
    if text.count("{") > MAX_DICTIONARIES:
        raise IRError(f"more than {MAX_DICTIONARIES} dictionaries of attributes at one operation")
    while (start := text.find("{")) >= 0:
        inside, rest = _bracketed(text[start:])
        before = text[:start]
        if before.endswith("<") and rest.startswith(">"):
            before, rest = before[:-1], rest[1:]
        attributes |= _attributes(f"{{{inside}}}", strings)
        text = before + " " + rest
    return text.strip(), attributes


def _attributes(text: str, strings: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in split_top(text.strip()[1:-1], ","):
        key, _, value = part.partition(" = ")
        if key:
            found[_unmask(key.strip(), strings)] = _unmask(value.strip(), strings) if value else "unit"
    return found


def _signature(name: str, text: str, results: int) -> tuple[list[Type], list[Type]]:
    """Types of operands and of results, as far as the text says them."""
    if not text:
        return [], []
    if name == "tt.make_tensor_descriptor":
        _, *rest = split_top(text, ",")
        inside = _bracketed(rest[0])[0] if rest and rest[0].startswith("<") else ""
        return [], [Type("desc", None, parse_type(inside) if inside.startswith("tensor<") else _tensor(inside, 0))]
    before, *after = split_top(text, " -> ") if " -> " in text else split_top(text, " to ")
    if text.startswith("-> "):
        before, after = "", [text[3:]]
    if after:
        left = [t for part in split_top(before, " * ") for t in _types(part)]
        return left, _types(after[-1])
    given = [t for part in split_top(before, " * ") for t in _types(part)]
    if not results or not given:
        return given, []
    first = given[0]
    if name == "tt.load":
        if first.pointee is None:
            raise IRError("tt.load from what is no pointer")
        return given, [Type(first.pointee.element, first.shape, first.pointee.pointee, first.encoding)]
    if name in ("arith.cmpi", "arith.cmpf"):
        return given, [first.of("i1")]
    if name == "arith.select":
        return given, [given[-1]]
    return given, [first]


def _successors(tail: str) -> tuple[str, tuple[Successor, ...]]:
    """The condition, if any, and where a branch goes."""
    found = []
    for label, _, inside in re.findall(r"(\^\w+)(\(([^()]*)\))?", re.sub(r"<[^<>]*>|tensor<[^ ,)]*>", "", tail)):
        found.append(Successor(label, tuple(_USE.findall(inside.split(" : ")[0]))))
    return tail.split("^", maxsplit=1)[0], tuple(found)
