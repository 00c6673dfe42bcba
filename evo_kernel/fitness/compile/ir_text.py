"""Triton's IR as text that nobody trusts: what it may hold, its entry function, and the text without names and lines.

Nothing here executes or lowers IR; the tokens are those of MLIR's lexer. Raises ValueError where a text is no IR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DIALECTS = frozenset({"builtin", "tt", "ttg", "ttng", "gluon", "arith", "math", "scf", "cf", "ub", "nvg", "nvws"})
_OTHERS = {"llvm.intr.assume", "gpu.barrier"}
"""Of other dialects: what tl.assume becomes, and tl.debug_barrier under Triton 3.6."""
_PROMISES = frozenset({"nsw", "nuw", "nneg", "exact", "fast", "nnan", "ninf", "nsz", "arcp", "afn", "reassoc"})
"""Flags of arithmetic, by which results may differ from what the operation says. Triton's frontend writes none."""
POINTER_DIVISIBILITY = 16
"""Bytes; what Triton's specialisation claims of pointers, and no more: buffers lie at multiples of at least this."""

_STRING = r'"(?:[^"\\\n]|\\[\s\S]?)*+(?:"|(?=\n)|\Z)'
"""What does not end ends with its line, and a text is read in one way alone (`*+`): none takes long to read."""
_MARKS = re.compile(rf"{_STRING}|//[^\n]*|(?<![\w.$%@#!^-])loc\(|[()]")
_NO_ALIAS = re.compile(r"^#loc\d* =\n", re.MULTILINE)
_PREDECESSORS = re.compile(
    r"^([ \t]*\^bb\d.*:)  // (?:no predecessors|pred: \^bb\d+|\d+ preds: [\^\w, ]+)$", re.MULTILINE
)
"""What the printer writes behind the label of a block."""
_SYMBOLS = re.compile(rf"{_STRING}|//[^\n]*|@(?:[A-Za-z_][\w$.]*|{_STRING})")
_TOKENS = re.compile(
    rf"@{_STRING}|(?P<string>{_STRING})(?P<operation>\s*\()?|(?P<comment>//)|[%@^][\w$.-]*|[#!]?(?P<word>[A-Za-z_][\w$.]*)|\d\w*"
)
_FUNCTION = re.compile(rf"{_STRING}|\btt\.func\s+(?:(public|private)\s+)?@([\w$.]+|{_STRING})\s*\(")
_LIBRARY_PATH = re.compile(r'libpath"?\s*=\s*"([^"]*)"')
_LIBRARY_SYMBOL = re.compile(r'\bsymbol"?\s*=\s*"([^"]*)"')
_WAIT = re.compile(
    r'^    (?:tt\.grid_dependency_wait|%\w+ = tt\.elementwise_inline_asm "griddepcontrol\.wait; // dummy \$0")'
    r"|^  \^|^    (?:cf\.|tt\.return)",
    re.MULTILINE,
)
"""What tl.extra.cuda.gdc_wait() becomes under Triton 3.9 and 3.6, in a function's first block; or that block's end."""
_NEXT = r"griddepcontrol\.launch_dependents; // dummy \$0"
_OPERATION = re.compile(rf'^ *(?:%[^=\n]* = )?"?([a-z]\w*\.[\w.]+(?: "{_NEXT}")?)', re.MULTILINE)
_WITHOUT_MEMORY = re.compile(
    r"(?:arith|math|scf|ub)\..*|llvm\.intr\.assume|ttg\.(?:convert_layout|local_alloc|memdesc_index)|ttng\.init_barrier"
    r"|tt\.(?:addptr|bitcast|broadcast|expand_dims|get_num_programs|get_program_id|grid_dependency_launch_dependents"
    rf'|int_to_ptr|make_range|ptr_to_int|reshape|splat|trans|unsplat|elementwise_inline_asm "{_NEXT}")'
)
"""Operations that touch no global memory."""
_DIVISIBILITY = re.compile(r"\{tt\.divisibility = (\d+) : i32\}")


@dataclass(frozen=True)
class EntryParameter:
    """A parameter of an entry function. `divisibility`: what the compiled code relies on; 1 for nothing."""

    type: str
    divisibility: int = 1


@dataclass(frozen=True)
class EntryFunction:
    """The one public function of a module."""

    name: str
    parameters: tuple[EntryParameter, ...]


def without_locations(text: str) -> str:
    """The text without where its operations come from. Two texts that come out the same compile to the same code."""
    kept: list[str] = []
    done = begin = depth = 0
    for mark in _MARKS.finditer(text):
        sign = mark[0]
        if depth == 0 and sign == "loc(":
            begin, depth = mark.start(), 1
        elif depth:
            depth += (sign in ("(", "loc(")) - (sign == ")")
            if depth == 0:
                kept.append(text[done:begin].rstrip(" \t"))
                done = mark.end()
    return _NO_ALIAS.sub("", "".join((*kept, text[done:])))


def with_plain_symbols(text: str) -> str:
    """The text with its functions numbered as they come: names decide nothing."""
    numbers: dict[str, str] = {}
    return _SYMBOLS.sub(
        lambda found: numbers.setdefault(found[0], f"@{len(numbers)}") if found[0][0] == "@" else found[0], text
    )


def fault_of(text: str, name: str) -> str:
    """Why a kernel's IR is not compiled, as the end of a sentence; empty where nothing speaks against it.

    It may hold operations of Triton's dialects, one public function `name`, and functions of libdevice: a text that
    names a file would have it read.
    """
    plain = _PREDECESSORS.sub(r"\1", without_locations(text))
    if (fault := _words_fault(plain)) or (fault := _functions_fault(plain, name)):
        return fault
    for path in _LIBRARY_PATH.findall(plain):
        if path:
            return f"its IR names the library {path[:80]}: only Triton's own libdevice is linked"
    if "extern_elementwise" in plain:
        for symbol in _LIBRARY_SYMBOL.findall(plain):
            if not re.fullmatch(r"__nv_\w+", symbol):
                return f"its IR calls {symbol[:80]}, which is no function of libdevice"
    return ""


def _words_fault(text: str) -> str:
    modules = 0
    for found in _TOKENS.finditer(text):
        if found["comment"]:
            return "its IR has comments: the printed form has none but at the labels of blocks"
        word = found["word"] or (found["string"][1:-1] if found["operation"] else "")
        modules += found["word"] == "module"
        if word.endswith("unrealized_conversion_cast"):
            return "its IR casts between types that nothing converts"
        if found["word"] in _PROMISES:
            return f"its IR promises {word}, which Triton never does"
        dialect, dot, _ = word.partition(".")
        if (dot or found["operation"]) and dialect not in DIALECTS and word not in _OTHERS:
            return f"its IR holds {word[:80]}, which is of none of the dialects {', '.join(sorted(DIALECTS))}"
    if modules > 1:
        return "its IR holds more than one module"
    return ""


def _functions_fault(text: str, name: str) -> str:
    found = [match.groups() for match in _FUNCTION.finditer(text) if match[2]]
    public = [function for visibility, function in found if visibility != "private"]
    if len(found) != len(re.findall(r"\btt\.func\b", text)) or public != [name]:
        return f"its IR has the public functions {', '.join(public)[:200] or 'none'} where it should have {name} alone"
    return ""


def dependence_fault(text: str) -> str:
    """Why a dependent launch may race with the launch before it, as the end of a sentence; empty where it may not.

    It waits in the first block of its function, and touches no memory before. `text`: as the compiler prints it.
    """
    begin = next((found.end() for found in _FUNCTION.finditer(text) if found[2] and found[1] != "private"), 0)
    _, _, body = text[begin:].partition("\n")
    waits = _WAIT.search(body)
    if waits and "wait" in waits[0]:
        before = _OPERATION.findall(body[: waits.start()])
        if all(_WITHOUT_MEMORY.fullmatch(operation) for operation in before):
            return ""
    return (
        "it is launched with launch_pdl=True, may run beside the launch before it, and touches memory without having "
        "waited for that: call tl.extra.cuda.gdc_wait() first, outside branches and loops"
    )


def entry_of(text: str) -> EntryFunction:
    """The public function of a module in its canonical form, as the compiler's child prints it."""
    for found in _FUNCTION.finditer(text):
        if found[2] and found[1] != "private":
            return EntryFunction(found[2], tuple(_parameter(part) for part in _split(text, found.end())))
    raise ValueError("the IR has no public function")


def _split(text: str, begin: int) -> list[str]:
    """The parts between commas, from an opening parenthesis to its end."""
    parts, depth, start = [], 0, begin
    for found in re.compile(rf"{_STRING}|[()\[\]{{}}<>,]").finditer(text, begin):
        sign = found[0]
        if depth == 0 and sign in ",)":
            parts.append(text[start : found.start()].strip())
            start = found.end()
            if sign == ")":
                return [part for part in parts if part]
        depth += (sign in ("(", "[", "{", "<")) - (sign in (")", "]", "}", ">"))
    raise ValueError("the IR's public function has no end of its parameters")


def _parameter(text: str) -> EntryParameter:
    name, _, rest = text.partition(":")
    kind, brace, attributes = rest.strip().partition(" {")
    if not name.startswith("%") or not kind:
        raise ValueError(f"the IR's public function has the parameter {text[:80]!r}")
    if not brace:
        return EntryParameter(kind)
    claimed = _DIVISIBILITY.fullmatch("{" + attributes)
    if claimed is None or not 1 <= int(claimed[1]) < 1 << 31:
        raise ValueError(f"the IR claims {{{attributes[:80]} of a parameter: only its divisibility may be told")
    return EntryParameter(kind, int(claimed[1]))
