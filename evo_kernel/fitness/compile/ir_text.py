"""Checks untrusted Triton IR text, reads its entry function, and removes names and locations from it.

Nothing here executes or lowers IR; tokens are those of MLIR's lexer. Raises ValueError for text that is not IR.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DIALECTS = frozenset({"builtin", "tt", "ttg", "ttng", "gluon", "arith", "math", "scf", "cf", "ub", "nvg", "nvws"})
_OTHERS = {"llvm.intr.assume", "gpu.barrier"}
"""Allowed operations of other dialects: from tl.assume, and from tl.debug_barrier in Triton 3.6."""
_LOOP_HINT = re.compile(
    r"#llvm\.loop_licm<disable = true, versioningDisable = true>$|#llvm\.loop_annotation<licm = #loop_licm\d*>$"
    r"|llvm\.loop_annotation = #loop_annotation\d*[,}]",
    re.MULTILINE,
)
"""Attributes of another dialect, in the only form that is allowed: from `disable_licm=True`."""
_PROMISES = frozenset({"nsw", "nuw", "nneg", "exact", "fast", "nnan", "ninf", "nsz", "arcp", "afn", "reassoc"})
"""Arithmetic flags that allow results to differ from the operation's definition. Triton's front end emits none."""
POINTER_DIVISIBILITY = 16
"""Bytes. Triton's specialisation assumes this alignment of pointers; all buffers have at least this alignment."""

_STRING = r'"(?:[^"\\\n]|\\[\s\S]?)*+(?:"|(?=\n)|\Z)'
"""An unterminated string ends with its line. Possessive matching (`*+`) prevents exponential backtracking."""
_MARKS = re.compile(rf"{_STRING}|//[^\n]*|(?<![\w.$%@#!^-])loc\(|[()]")
_NO_ALIAS = re.compile(r"^#loc\d* =\n", re.MULTILINE)
_PREDECESSORS = re.compile(
    r"^([ \t]*\^bb\d.*:)  // (?:no predecessors|pred: \^bb\d+|\d+ preds: [\^\w, ]+)$", re.MULTILINE
)
"""The comment that the printer adds to the label of a block."""
_SYMBOLS = re.compile(rf"{_STRING}|//[^\n]*|@(?:[A-Za-z_][\w$.]*|{_STRING})")
_TOKENS = re.compile(
    rf"@{_STRING}|(?P<string>{_STRING})(?P<operation>\s*\()?|(?P<comment>//)|(?P<resources>\{{-#)|[%@^][\w$.-]*|[#!]?(?P<word>[A-Za-z_][\w$.]*)|\d\w*"
)
_FUNCTION = re.compile(rf"{_STRING}|\btt\.func\s+(?:(public|private)\s+)?@([\w$.]+|{_STRING})\s*\(")
_LIBRARY_PATH = re.compile(r'libpath"?\s*=\s*"([^"]*)"')
_LIBRARY_SYMBOL = re.compile(r'\bsymbol"?\s*=\s*"([^"]*)"')
_WAIT = re.compile(
    r'^    (?:tt\.grid_dependency_wait|%\w+ = tt\.elementwise_inline_asm "griddepcontrol\.wait; // dummy \$0" '
    r'\{constraints = "=r", packed_element = 1 : i32, pure = false\})'
    r"|^  \^|^    (?:cf\.|tt\.return)",
    re.MULTILINE,
)
"""tl.extra.cuda.gdc_wait() in Triton 3.9 and 3.6, in a function's first block; or the end of that block."""
NO_WAIT = (
    "it is launched with launch_pdl=True, so it may overlap the previous launch, and accesses memory without waiting "
    "for that: call tl.extra.cuda.gdc_wait() first, outside branches and loops"
)
_NEXT = r"griddepcontrol\.launch_dependents; // dummy \$0"
_OPERATION = re.compile(rf'^ *(?:%[^=\n]* = )?"?([a-z]\w*\.[\w.]+(?: "{_NEXT}")?)', re.MULTILINE)
_WITHOUT_MEMORY = re.compile(
    r"(?:arith|math|scf|ub)\..*|llvm\.intr\.assume|ttg\.(?:convert_layout|local_alloc|memdesc_index)|ttng\.init_barrier"
    r"|tt\.(?:addptr|bitcast|broadcast|expand_dims|get_num_programs|get_program_id|grid_dependency_launch_dependents"
    rf'|int_to_ptr|make_range|ptr_to_int|reshape|splat|trans|unsplat|elementwise_inline_asm "{_NEXT}")'
)
"""Operations that do not access global memory."""
_SHAPE = r"tensor<((?:\d+x)*\d+)x\w+(?:, (?:#ttg\.slice<\{dim = (\d+), parent = (?=#\w+\}))?(#\w+)(?:\}>)?)?>"
_REDUCE = re.compile(
    r'"tt\.reduce"\([^\n]*<\{axis = (?P<axis>\d+) (?P<region>.*?^ *\}\)) : (?P<types>\([^\n]*?\)) -> ',
    re.MULTILINE | re.DOTALL,
)
_GIVEN_LAYOUT = re.compile(r' \{layout = "[^"\n]*"\}')
_ELEMENTS = re.compile(r"tensor<(\w+)")
_ENCODING = re.compile(r"tensor<\w+, ((?:[^<>]|<(?:[^<>]|<[^<>]*>)*>)*)>")
_ALIAS = re.compile(r"^(#\w+) = (#ttg\..*)$", re.MULTILINE)
_REORDER = re.compile(r"tt\.reshape %\S+ allow_reorder")
_RESHAPE = re.compile(rf"tt\.reshape %\S+( allow_reorder)(?: efficient_layout)? : {_SHAPE} -> {_SHAPE}")
_AXES = r"\[([\d, ]+)\]"
_LAYOUT = re.compile(
    rf"^(#\w+) = #ttg\.blocked<{{sizePerThread = {_AXES}, threadsPerWarp = {_AXES}, warpsPerCTA = {_AXES}, "
    rf"order = {_AXES}}}>$",
    re.MULTILINE,
)
_DIVISIBILITY = re.compile(r"\{tt\.divisibility = (\d+) : i32\}")


@dataclass(frozen=True)
class EntryParameter:
    """A parameter of an entry function. `divisibility`: assumed by the compiled code; 1 if nothing is."""

    type: str
    divisibility: int = 1


@dataclass(frozen=True)
class EntryFunction:
    """The one public function of a module."""

    name: str
    parameters: tuple[EntryParameter, ...]


def without_locations(text: str) -> str:
    """The text without source locations. Equal results compile to the same code."""
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
    """The text with function names replaced by numbers, in order of appearance."""
    numbers: dict[str, str] = {}
    return _SYMBOLS.sub(
        lambda match: numbers.setdefault(match[0], f"@{len(numbers)}") if match[0][0] == "@" else match[0], text
    )


def fault_of(text: str, name: str) -> str:
    """Why a kernel's IR is not compiled, as the end of a sentence; empty if it is allowed.

    Allowed are operations of Triton's dialects, one public function `name`, and functions of libdevice. Text that names
    another library would make the compiler read that file.
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
    modules, allowed = 0, set[str]()
    for match in _TOKENS.finditer(text):
        kind = match.lastgroup  # None of what starts with %, @, ^ or a digit
        if kind is None or kind == "string" or match["word"] in allowed:
            continue
        if kind == "comment":
            return "its IR has comments, which the printed form has only at the labels of blocks"
        if kind == "resources" or match["word"] == "dense_resource":
            return "its IR has resources, which Triton never emits"
        word = match["word"] or match["string"][1:-1]
        modules += match["word"] == "module"
        if word.endswith("unrealized_conversion_cast"):
            return "its IR has an unrealized conversion cast"
        if match["word"] in _PROMISES:
            return f"its IR has the arithmetic flag {word}, which Triton never emits"
        dialect, dot, _ = word.partition(".")
        known = dialect in DIALECTS or word in _OTHERS
        if (dot or kind == "operation") and not known and not _LOOP_HINT.match(text, match.start()):
            return f"its IR holds {word[:80]}, which is of none of the dialects {', '.join(sorted(DIALECTS))}"
        if kind == "word" and word != "module" and (known or not dot):
            allowed.add(word)
    if modules > 1:
        return "its IR holds more than one module"
    return ""


def _functions_fault(text: str, name: str) -> str:
    functions = [match.groups() for match in _FUNCTION.finditer(text) if match[2]]
    public = [function for visibility, function in functions if visibility != "private"]
    if len(functions) != len(re.findall(r"\btt\.func\b", text)) or public != [name]:
        return f"its IR has the public functions {', '.join(public)[:200] or 'none'} where it should have {name} alone"
    return ""


def dependence_fault(text: str) -> str:
    """Why a dependent launch may race with the previous launch, as the end of a sentence; empty if it cannot.

    It must wait in the first block of its function before it accesses memory. `text`: as the compiler prints it.
    """
    begin = next((match.end() for match in _FUNCTION.finditer(text) if match[2] and match[1] != "private"), 0)
    _, _, body = text[begin:].partition("\n")
    waits = _WAIT.search(body)
    if waits and "wait" in waits[0]:
        before = _OPERATION.findall(body[: waits.start()])
        if all(_WITHOUT_MEMORY.fullmatch(operation) for operation in before):
            return ""
    return NO_WAIT


def with_kept_orders(text: str, lowered: str) -> str:
    """IR without `allow_reorder` where a reshape only adds or removes axes of size 1, if the compiler leaves the
    elements of all of these where they are. `lowered`: the same with the layouts that it has chosen."""
    layouts = {name: [[int(n) for n in part.split(",")] for part in parts] for name, *parts in _LAYOUT.findall(lowered)}

    def places(shape: str, dim: str | None, layout: str) -> tuple | None:
        """How the elements lie on threads; None if that is unknown. `dim`: the axis that a slice leaves out."""
        sizes = [int(size) for size in shape.split("x")]
        if dim is not None:
            sizes.insert(int(dim), 1)
        *parts, order = layouts.get(layout, [[]])
        axes = list(zip(sizes, *parts, strict=False))
        kept = [number for number, axis in enumerate(axes) if max(axis) > 1]
        return ([axes[axis] for axis in kept], [kept.index(axis) for axis in order if axis in kept]) if parts else None

    for reshape in _REORDER.finditer(lowered):
        known = _RESHAPE.match(lowered, reshape.start())
        if known is None:
            return text
        before, after = places(*known.group(2, 3, 4)), places(*known.group(5, 6, 7))
        if _only_ones(known) and (before is None or before != after):
            return text
    return _RESHAPE.sub(lambda found: found[0].replace(found[1], "", 1) if _only_ones(found) else found[0], text)


def with_reduced_layouts(text: str, lowered: str) -> str:
    """IR whose reductions have an attribute, `layout`: what the compiler has chosen in `lowered` for what they reduce,
    since it adds in that order. Without, where it has chosen two for equal tensors, or reduces others."""
    text, lowered = _GIVEN_LAYOUT.sub("", text), _GIVEN_LAYOUT.sub("", lowered)
    aliases = dict(_ALIAS.findall(lowered))

    def elements(reduction: re.Match[str]) -> tuple[str, ...]:
        return (reduction["axis"], *_ELEMENTS.findall(reduction["types"]))

    chosen: dict[tuple[str, ...], set[str]] = {}
    for reduction in _REDUCE.finditer(lowered):
        layout = _ENCODING.search(reduction["types"])
        whole = re.sub(r"#\w+\b(?!\.)", lambda found: aliases.get(found[0], found[0]), layout[1]) if layout else ""
        chosen.setdefault(elements(reduction), set()).add(whole)

    def named(reduction: re.Match[str]) -> str:
        layouts = chosen.get(elements(reduction), {""})
        if len(layouts) > 1 or "" in layouts:
            return reduction[0]
        before = reduction.end("region") - reduction.start()
        return f'{reduction[0][:before]} {{layout = "{min(layouts)}"}}{reduction[0][before:]}'

    return _REDUCE.sub(named, text)


def _only_ones(reshape: re.Match[str]) -> bool:
    before, after = ([size for size in reshape[group].split("x") if size != "1"] for group in (2, 5))
    return before == after


def entry_of(text: str) -> EntryFunction:
    """The public function of a module, as the compiler's child prints it. Raises ValueError."""
    for match in _FUNCTION.finditer(text):
        if match[2] and match[1] != "private":
            return EntryFunction(match[2], tuple(_parameter(part) for part in _split(text, match.end())))
    raise ValueError("the IR has no public function")


def _split(text: str, begin: int) -> list[str]:
    """The parts between commas, from behind an opening parenthesis to the closing one."""
    parts, depth, start = [], 0, begin
    for match in re.compile(rf"{_STRING}|[()\[\]{{}}<>,]").finditer(text, begin):
        sign = match[0]
        if depth == 0 and sign in ",)":
            parts.append(text[start : match.start()].strip())
            start = match.end()
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
        raise ValueError(f"the IR claims {{{attributes[:80]} of a parameter: only divisibility is allowed")
    return EntryParameter(kind, int(claimed[1]))
