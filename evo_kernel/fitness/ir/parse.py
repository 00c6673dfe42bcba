"""Parses the printed form of Triton IR (`ttir`) into frozen operations. The text is untrusted: sizes are bounded.

Only the form that MLIR's printer writes is accepted: one operation per line, regions opened by `{` at the end of a line
and closed on a line of their own. Anything else raises IRError. Unknown operations are parsed too; executing them fails
with their name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from evo_kernel.fitness.ir.module import Function, IRBlock, IRModule, IRValue, Operation, Region
from evo_kernel.fitness.ir.operation_text import (
    NAME,
    STRING,
    build_operation,
    mask_strings,
    parse_header,
    result_names,
)
from evo_kernel.fitness.ir.types import MAX_DEPTH, IRError, Type, bracketed, leading_type, parse_types, split_top

MAX_TEXT = 8 << 20
MAX_OPERATIONS = 100_000
MAX_PARTITIONS = 16
MAX_FRAMES, MAX_LOCATION = 64, 1 << 12
"""Of an operation's location: names that are resolved, and characters of each."""


@lru_cache(maxsize=256)
def parse(text: str) -> IRModule:
    """Parse a module. Raises IRError."""
    if len(text) > MAX_TEXT:
        raise IRError(f"IR of {len(text)} characters; at most {MAX_TEXT} are read")
    return _Parser(text).module()


_LINE = re.compile(rf'(?:(?P<results>{NAME}(?::\d+)?(?:, {NAME}(?::\d+)?)*) = )?(?P<quote>"?)(?P<name>[a-z_][\w.]*)"?')
_FRAME = re.compile(r'"(?P<file>[^"]*)":(?P<line>\d{1,7})|(?P<name>#\w+)')
_FUNCTION = re.compile(r'tt\.func (public|private)? ?@("?)([\w.$<>(),: -]+?)\2\(')
_LABEL = re.compile(r"(\^\w+)(?:\((.*)\))?:\s*(?://.*)?$")
_PARTITION = re.compile(r"partition\d+\((.*)\) num_warps\((\d{1,2})\) \{$")
_ARGUMENT = re.compile(rf"({NAME}): ")


class _Lines:
    """Lines of the text without locations, each with its number and the source line of its location."""

    def __init__(self, text: str) -> None:
        self.aliases: dict[str, str] = {}
        self.lines: list[tuple[str, str]] = []  # text, location
        for raw in text.split("\n"):
            line = raw.strip()
            if line.startswith("#"):
                name, _, value = line.partition(" = ")
                self.aliases[name] = value
            elif line:
                self.lines.append(_without_locations(line))
        self.position = 0
        own = _FRAME.search(self.aliases.get("#loc", ""))  # the printer names the function's location so
        self._file = own["file"] if own else None

    def next(self) -> tuple[str, int]:
        if self.position >= len(self.lines):
            raise IRError("the text ends within a region")
        line, location = self.lines[self.position]
        self.position += 1
        return line, self._line_number(location)

    def _line_number(self, location: str) -> int:
        """Line in the kernel's own file; of a call's frames, the innermost in that file."""
        pending, seen = [location], set[str]()
        while pending and len(seen) < MAX_FRAMES:
            text = pending.pop()
            if (match := _FRAME.search(text)) is None:
                continue
            pending.append(text[match.end() :][:MAX_LOCATION])
            if match["line"] and match["file"] == self._file:
                return int(match["line"])
            if (name := match["name"]) and name not in seen:
                seen.add(name)
                pending.append(self.aliases.get(name, "")[:MAX_LOCATION])
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
        line_of_module, _ = self._lines.next()
        if not line_of_module.startswith("module") or not line_of_module.endswith("{"):
            raise IRError("the text does not start with a module")
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
        blocks = re.search(r'"ttg\.num-ctas" = (\d{1,3}) ', line_of_module)
        return IRModule(public[0], functions, int(blocks[1]) if blocks else 1, self._lines.aliases)

    def _function(self, line: str) -> Function:
        match = _FUNCTION.match(line)
        if not match or not line.endswith("{"):
            raise IRError(f"not a function: {line[:80]}")
        inside, rest = bracketed(line[match.end() - 1 :])
        arguments = tuple(self._argument(part) for part in split_top(inside, ",") if part)
        rest = rest.strip()
        results: list[Type] = []
        if rest.startswith("->"):
            text = rest[2:].strip().removesuffix("{").strip()
            text = re.sub(r"\s*attributes \{.*\}$", "", text)
            results = parse_types(text)
        body, ending = self._region(1)
        if ending != "}":
            raise IRError(f"unreadable end of a function: {ending[:80]}")
        return Function(match[3], arguments, tuple(results), body, match[1] != "private")

    def _argument(self, text: str) -> IRValue:
        match = _ARGUMENT.match(text)
        if not match:
            raise IRError(f"unreadable argument: {text[:80]}")
        type_, _ = leading_type(text[match.end() :], 0)  # attributes follow
        return IRValue(match[1], type_)

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
                match = _LABEL.match(line)
                if not match:
                    raise IRError(f"unreadable block label: {line[:80]}")
                if operations or label:
                    blocks.append(IRBlock(label, arguments, tuple(operations)))
                    operations = []
                label = match[1]
                arguments = tuple(self._argument(part) for part in split_top(match[2] or "", ",") if part)
                continue
            operations.append(self._operation(line, number, depth))

    def _partitions(self, depth: int) -> tuple[list[Region], str]:
        """The regions of groups of warps; how many warps each has, and what follows the last one's bracket, as text."""
        if self._lines.next()[0] != "default {":
            raise IRError("groups of warps without a default")
        region, ending = self._region(depth + 1)
        regions, warps = [region], list[str]()
        while ending == "}":
            match = _PARTITION.match(self._lines.next()[0])
            if not match or len(regions) > MAX_PARTITIONS:
                raise IRError("unreadable groups of warps")
            arguments = tuple(self._argument(part) for part in split_top(match[1], ",") if part)
            region, ending = self._region(depth + 1, arguments)
            regions.append(region)
            warps.append(match[2])
        return regions, f"{{warps = {'x'.join(warps)}}} {ending[1:].strip()}"

    def _operation(self, line: str, number: int, depth: int) -> Operation:
        self._count += 1
        if self._count > MAX_OPERATIONS:
            raise IRError(f"more than {MAX_OPERATIONS} operations")
        ordinal = self._count
        match = _LINE.match(line)
        if not match:
            raise IRError(f"unreadable operation: {line[:80]}")
        names = result_names(match["results"] or "")
        strings: list[str] = []
        tail = STRING.sub(lambda s: mask_strings(strings, s[1]), line[match.end() :]).strip()
        name = match["name"]
        regions: list[Region] = []
        if name == "ttg.warp_specialize":
            regions, ending = self._partitions(depth)
            tail = f"{tail} {ending}"
        elif tail.endswith("{"):
            tail = tail[:-1].rstrip().removesuffix("(").rstrip()
            header, block_arguments = parse_header(name, tail)
            while True:
                region, ending = self._region(depth + 1, block_arguments)
                regions.append(region)
                block_arguments = ()
                if not ending.endswith("{"):
                    break
            ending = STRING.sub(lambda s: mask_strings(strings, s[1]), ending)[1:].strip()
            tail = f"{header} {ending.removeprefix(')')}".strip()
        return _check_counts(build_operation(name, names, tail, strings, ordinal, number, tuple(regions)))


def _check_branches(blocks: Sequence[IRBlock]) -> None:
    """Raise IRError if a branch names no block, or passes a wrong number of arguments."""
    sizes = {block.label: len(block.arguments) for block in blocks}
    for block in blocks:
        if not block.operations and len(blocks) > 1:
            raise IRError(f"the block {block.label[:80]} is empty")
        for successor in block.operations[-1].successors if block.operations else ():
            if sizes.get(successor.label) != len(successor.operands):
                raise IRError(f"a branch to {successor.label[:80]} does not fit any block")
        if any(operation.successors for operation in block.operations[:-1]):
            raise IRError("a branch stands within a block")


_REGIONS = {"scf.for": (1,), "scf.while": (2,), "scf.if": (1, 2), "tt.reduce": (1,), "tt.scan": (1,),
            "tt.map_elementwise": (1,), "ttg.warp_specialize": range(1, MAX_PARTITIONS + 2)}  # fmt: skip
_OPERANDS = {
    "tt.load": (1, 2, 3), "tt.store": (2, 3), "tt.atomic_rmw": (2, 3), "tt.atomic_cas": (3,),
    "scf.condition": range(1, MAX_OPERATIONS), "tt.descriptor_load": range(1, 8), "tt.descriptor_store": range(2, 9),
    "tt.descriptor_reduce": range(2, 9), "tt.descriptor_gather": (3,), "tt.descriptor_scatter": (4,),
    "ttg.local_alloc": (0, 1), "ttg.local_load": (1,), "ttg.local_store": (2,), "ttg.memdesc_index": (2,),
    "ttg.memdesc_subslice": (1,), "ttg.memdesc_trans": (1,), "ttg.memdesc_reshape": (1,), "ttng.init_barrier": (1,),
    "ttng.barrier_expect": (2,), "ttng.arrive_barrier": (1, 2), "ttng.wait_barrier": range(2, 64),
    "ttng.async_tma_copy_global_to_local": range(4, 12), "ttng.async_tma_copy_local_to_global": range(2, 9),
    "ttng.warp_group_dot": (3, 4), "ttg.async_copy_global_to_local": range(2, 5),
    "ttg.local_gather": (2,), "ttg.local_scatter": (3,), "ttg.memdesc_reinterpret": (1,),
}  # fmt: skip


def _check_counts(operation: Operation) -> Operation:
    """Raise IRError if an operation has another number of regions or operands than its handlers rely on."""
    name = operation.name
    if name in _REGIONS and len(operation.regions) not in _REGIONS[name]:
        raise IRError(f"{name} with {len(operation.regions)} regions")
    if name in _OPERANDS and len(operation.operands) not in _OPERANDS[name]:
        raise IRError(f"{name} with {len(operation.operands)} operands")
    return operation
