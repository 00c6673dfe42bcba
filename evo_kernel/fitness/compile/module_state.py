"""Rejects compiled modules with state that outlives a launch (variables, driver memory, parameters), or with a clock.

The compilers have variables of their own: texts of assertions and printf, tables of the mathematical library. They are
told by their names, which hold only where the kernel's own text cannot spell them. CUDA C++ has no texts of its own:
a string literal is memory that a kernel can write (nvrtc.SILENT takes printf and assert away, which would need one).
"""

from __future__ import annotations

import re
from collections.abc import Container

from evo_kernel.fitness.compile import machine_code
from evo_kernel.fitness.compile.instructions import disassemble, instructions

_OF_TRITON = re.compile(
    r"_\$_str(_\$_\d+)?|(assertFile|assertFunc|assertMessage|printfFormat)_\d+|__unnamed_\d+|__cudart_\w+"
)
_OF_NVRTC = re.compile(r"__cudart_\w+")
_FUNCTIONS_OF_TRITON = {"vprintf", "__assertfail"}
_ASSEMBLY = re.compile(r'inline_asm "((?:[^"\\]|\\.)*)"')  # in IR, where a string is spelled out
_SPELLS = re.compile(
    r"_str|assert|printf|unnamed|cudart|\$[({]|\\"
)  # $( and ${: LLVM's ways to write one thing as another
_BLANKS = re.compile(r"\\(?:0[9AD]|22)")  # tab, ends of lines and quote, as MLIR prints them
_MAY_SPELL = re.compile(r"##|%:|\?\?|\\[uU]|cudart|_CONCAT|PP_CAT")  # in C++, whose names are made of parts
_PARTS = r"C[^\w\"()]{0,3}{end}\"|c(?:u(?:d(?:ar?)?)?)?(?:{end}\"|[%$])|\\[0-7xN]|\$[({|]|STR(?:ING|_)|DEPRECAT"
_ASSEMBLY_MAY_SPELL = re.compile(_PARTS.replace("{end}", ""))
"""In assembly of C++: a text that ends with a part of `cudart`; constraint C, which makes a text of an array; escapes;
macros of headers that make texts of names."""
_RAW_MAY_SPELL = re.compile(_PARTS.replace("{end}", r"(?:\)[^\s()\\\"]{0,16})?"))
"""Likewise, where raw strings R"x(...)x" may be."""
_NAMES_PARAMETERS = re.compile(r"param|\$[({]")  # in assembly, which may be spelled in parts
_NAMES_REGISTERS = re.compile(r"%[A-Za-z]{1,2}[\d$]|%\$|\$\d+\$\d")  # the compiler's own; an operand may be a number
_TAKES_MAP = re.compile(r"^ *tt\.func\b[^\n]*tensordesc", re.MULTILINE)
_USES_MAP = re.compile(r'^ *(?:%[^=\n]* = )?"?([a-z]\w*+\.[\w.]++)[^\n]*tensordesc', re.MULTILINE)
_MAP_STAYS_ONE = re.compile(
    r"tt\.(?:func|call|return|make_tensor_descriptor|descriptor_\w+)|(?:ttng|scf|cf|gluon|ub)\..*|ttg\.warp_\w+|arith\.select"
)
"""Operations on tensor maps that tell no address: no assembly, no casts, no stores of one."""
_CLOCKS = {*range(0x50, 0x54), *range(0x64, 0x74)}
"""Special registers, as S2R, S2UR, CS2R and CS2UR number them: CLOCKLO, CLOCKHI, GLOBALTIMERLO, GLOBALTIMERHI; PM0 to
PM7. Source: disassembled code."""
_PARAMETERS_AT = {8: 0x40, 9: 0x198, 10: 0x348, 12: 0x348}
"""Offset in constant bank 0 of the parameters' generic address, by major capability. Source: disassembled code."""
_WORKSPACE_AT = {8: range(0x88, 0xB0), 9: range(0x40, 0x68)}
"""Offsets of %envreg0 to 9, likewise; 1 and 2 hold the address. Blackwell's code adds a register to the offset."""


def fault_of(cubin: bytes, ir: str, code: str) -> str:
    """Which state of a module outlives a launch, as a sentence; empty if none does.

    `ir` is empty for CUDA C++, whose text and compiler flags are `code`. Raises ValueError for an invalid cubin.
    """
    if ir:
        own, functions = _OF_TRITON, _FUNCTIONS_OF_TRITON
        named = any(_SPELLS.search(_BLANKS.sub(" ", text)) for text in _ASSEMBLY.findall(ir))
    else:
        own, functions = _OF_NVRTC, set[str]()
        named = _may_spell(code)
    for variable in machine_code.variables(cubin):
        if named or not own.fullmatch(variable):
            return (
                f"the variable {variable[:200]} would keep its value from one launch to the next. Pass tables as "
                "tensors or write them in the kernel (in CUDA C++: a const array of the function, no string), and take "
                "what kernels write from run (torch.empty, torch.zeros)"
            )
    for function in machine_code.missing_functions(cubin):
        if named or function not in functions:
            return (
                f"it calls {function[:200]}, which the driver provides: its state would outlive a launch. Allocate "
                "memory in run (torch.empty)"
            )
    for function in machine_code.addressed_functions(cubin):
        if named or function not in functions:
            return (
                f"it takes the address of the function {function[:200]}: a kernel's code holds nothing that it may read"
                " or write. Call functions by their names (in CUDA C++: __device__ ones)"
            )
    if any("S2" in one.opcode and (one.high >> 8) & 0xFF in _CLOCKS for one in instructions(cubin)):
        return (
            "it reads a clock or a performance counter: what a kernel computes must not depend on when it runs. Take "
            "the clock out"
        )
    assembly = _ASSEMBLY.findall(ir)
    sass = disassemble(cubin) if assembly or not ir else ""
    if any("envreg" in text for text in assembly) or _reads(sass, _WORKSPACE_AT.get(_major(cubin), ())):
        return (
            "it reads %envreg, the address of the driver's workspace of cooperative launches, which would outlive a "
            "launch. Take workspaces from run (torch.zeros); CUDA C++ is not launched cooperatively: no grid.sync()"
        )
    if ir_takes_parameters_address(ir) if ir else _takes_parameters_address(sass, _major(cubin)):
        return (
            "it takes the address of a parameter: a replayed launch would read what the previous one wrote there. Copy "
            "the parameter into a variable; assembly beside tensor descriptors writes own registers without %"
        )
    return ""


def _may_spell(code: str) -> bool:
    """Whether C++ text may hold a name of the compiler's variables, as a name of its own or in assembly."""
    code = re.sub(r"\\[^\S\n]*\n", "", code)  # lines that go on
    if "asm" not in code or _MAY_SPELL.search(code):
        return bool(_MAY_SPELL.search(code))
    if any("#" in line.lstrip()[1:] for line in code.split("\n")):  # a macro that makes a text of its operand
        return True
    parts = _RAW_MAY_SPELL if 'R"' in code else _ASSEMBLY_MAY_SPELL
    return bool(parts.search(re.sub(r'extern\s*"C"', "", code)))


def _takes_parameters_address(sass: str, major: int) -> bool:
    """Whether CUDA C++ reads its parameters' address (Triton needs it for tensor maps), or a constant by a register."""
    by_register = re.search(r"c\[0x0\]\[U?R\d|\bcx\[", sass)
    return bool(by_register) or _reads(sass, [_PARAMETERS_AT.get(major, 0x198)])


def _reads(sass: str, places: Container[int]) -> bool:
    """Whether code reads constant bank 0 at one of these offsets."""
    return any(int(offset, 16) in places for offset in re.findall(r"c\[0x0\]\[0x([0-9a-f]+)\]", sass))


def _major(cubin: bytes) -> int:
    flags, _ = machine_code.code_words(cubin)
    return (flags >> 8 & 0xFF or flags & 0xFF) // 10


def ir_takes_parameters_address(ir: str) -> bool:
    """Whether assembly names parameters, or an operation other than those of tensor maps has one as operand."""
    taken = _NAMES_PARAMETERS, *((_NAMES_REGISTERS,) if _TAKES_MAP.search(ir) else ())
    return any(name.search(text) for text in _ASSEMBLY.findall(ir) for name in taken) or not all(
        map(_MAP_STAYS_ONE.fullmatch, _USES_MAP.findall(ir))
    )
