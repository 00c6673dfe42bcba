"""Parses the text of a single operation: operands, attributes, types, regions' headers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evo_kernel.fitness.ir.module import IRValue, Operation, Region, Successor
from evo_kernel.fitness.ir.types import IRError, Type, bracketed, parse_type, parse_types, split_top, tensor_type

MAX_DICTIONARIES = 64
"""Dictionaries of attributes at one operation: each is cut out of its line."""


NAME = r"%[A-Za-z0-9_$.-]+"


_USE = re.compile(rf"{NAME}(?:#\d+)?")


_RESULT = re.compile(rf"({NAME})(?::(\d{{1,4}}))?")


_UNSIGNED = re.compile(r"xui\d")
_LOOP = re.compile(rf"(unsigned )?({NAME}) = (\S+) to (\S+) step (\S+)\s*")


STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def mask_strings(strings: list[str], value: str) -> str:
    strings.append(value)
    return f'"{len(strings) - 1}"'


def result_names(text: str) -> list[str]:
    names: list[str] = []
    for match in _RESULT.finditer(text):
        names += [match[1]] if match[2] is None else [f"{match[1]}#{n}" for n in range(int(match[2]))]
    return names


def parse_header(name: str, tail: str) -> tuple[str, tuple[IRValue, ...]]:
    """The head of an operation with regions, and the arguments of its first region."""
    if name == "scf.for":
        match = _LOOP.match(tail)
        if not match:
            raise IRError(f"unreadable scf.for: {tail[:80]}")
        rest, arguments, initial, types = tail[match.end() :], [], [], []
        if rest.startswith("iter_args("):
            inside, rest = bracketed(rest[len("iter_args") :])
            arguments, initial = _bound(inside)
            types_text, rest = bracketed(rest.strip().removeprefix("->").strip())
            types = parse_types(f"({types_text})")
        kind = rest.strip().removeprefix(":").strip() or "index"
        values = [IRValue(match[2], parse_type(kind)), *_values(arguments, types)]
        result = f" : () -> ({', '.join(map(_spell, types))})" if types else ""
        head = f"{match[1] or ''}{match[3]}, {match[4]}, {match[5]}, {', '.join(initial)}{result}"
        return head, tuple(values)
    if name == "scf.while":
        arguments, initial = [], []
        if not tail.startswith(":"):
            inside, tail = bracketed(tail)
            arguments, initial = _bound(inside)
        signature = tail.strip().removeprefix(":")
        before = parse_types(split_top(signature, "->")[0])
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
_CALLEE = re.compile(r'@([\w.$]+|"\d+")')
_WORD = re.compile(r'[A-Za-z_][\w.]*|"\d+"')
_MASKED = re.compile(r'"(\d+)"')


def build_operation(
    name: str, names: list[str], tail: str, strings: list[str], ordinal: int, line: int, regions: tuple[Region, ...]
) -> Operation:
    """An operation from its name and the rest of its line, with strings masked."""
    parts = split_top(tail, " : ") if not tail.startswith(": ") else ["", tail[2:]]
    head, types_text = (parts[0], parts[-1]) if len(parts) > 1 else (tail, "")
    if name == "arith.constant" and len(parts) == 1:  # true and false have no type
        types_text = "i1"
    if name == "tt.elementwise_inline_asm" and len(parts) == 1:  # without operands
        head, _, result_types = tail.rpartition("-> ")
        types_text = f"-> {result_types}"
    if name in ("ttg.async_commit_group", "ttg.async_wait") and names:
        types_text = "-> !ttg.async.token"
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
        callee = _CALLEE.match(head)
        if not callee:
            raise IRError("tt.call without a callee")
        attributes["callee"] = _unmask(callee[1], strings)
    words = tuple(_WORD.findall(_KEY_VALUE.sub(" ", plain)))
    if name == "tt.descriptor_reduce" and words[0] in ("max", "min") and _UNSIGNED.search(types_text):
        words = (f"u{words[0]}", *words[1:])  # as atomic operations are named; types do not keep it
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
        head=_MASKED.sub(lambda n: f'"{strings[int(n[1])]}"', head),
        ordinal=ordinal,
        line=line,
        regions=regions,
        successors=successors,
    )


def _unmask(text: str, strings: list[str]) -> str:
    return _MASKED.sub(lambda n: strings[int(n[1])], text)


def _take_attributes(text: str, strings: list[str]) -> tuple[str, dict[str, str]]:
    """A text without its attribute dictionaries, and their content."""
    attributes: dict[str, str] = {}
    if text.count("{") > MAX_DICTIONARIES:
        raise IRError(f"more than {MAX_DICTIONARIES} dictionaries of attributes at one operation")
    while (start := text.find("{")) >= 0:
        inside, rest = bracketed(text[start:])
        before = text[:start]
        if before.endswith("<") and rest.startswith(">"):
            before, rest = before[:-1], rest[1:]
        attributes |= parse_attributes(f"{{{inside}}}", strings)
        text = before + " " + rest
    return text.strip(), attributes


def parse_attributes(text: str, strings: list[str]) -> dict[str, str]:
    attributes: dict[str, str] = {}
    for part in split_top(text.strip()[1:-1], ","):
        key, _, value = part.partition(" = ")
        if key:
            attributes[_unmask(key.strip(), strings)] = _unmask(value.strip(), strings) if value else "unit"
    return attributes


def _signature(name: str, text: str, results: int) -> tuple[list[Type], list[Type]]:
    """Types of operands and results, as far as the text gives them."""
    if not text:
        return [], []
    if name == "tt.make_tensor_descriptor":
        _, *rest = split_top(text, ",")
        inside = bracketed(rest[0])[0] if rest and rest[0].startswith("<") else ""
        return [], [Type("desc", None, parse_type(inside) if inside.startswith("tensor<") else tensor_type(inside, 0))]
    before, *after = split_top(text, " -> ") if " -> " in text else split_top(text, " to ")
    if text.startswith("-> "):
        before, after = "", [text[3:]]
    if after:
        left = [t for part in split_top(before, " * ") for t in parse_types(part)]
        return left, parse_types(after[-1])
    given = [t for part in split_top(before, " * ") for t in parse_types(part)]
    if not results or not given:
        return given, []
    first = given[0]
    if name == "tt.load":
        if first.pointee is None:
            raise IRError("tt.load from what is no pointer")
        return given, [Type(first.pointee.element, first.shape, first.pointee.pointee, first.encoding)]
    if name == "ttng.warp_group_dot_wait":
        return given, given
    if name in ("arith.cmpi", "arith.cmpf"):
        return given, [first.of("i1")]
    if name == "arith.select":
        return given, [given[-1]]
    return given, [first]


def _successors(tail: str) -> tuple[str, tuple[Successor, ...]]:
    """The condition, if any, and the targets of a branch."""
    successors = []
    for label, _, inside in re.findall(r"(\^\w+)(\(([^()]*)\))?", re.sub(r"<[^<>]*>|tensor<[^ ,)]*>", "", tail)):
        successors.append(Successor(label, tuple(_USE.findall(inside.split(" : ")[0]))))
    return tail.split("^", maxsplit=1)[0], tuple(successors)
