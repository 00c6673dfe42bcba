"""Between a candidate and its machine code stands IR: what is compiled from it, and what a hostile text gets."""

from __future__ import annotations

import contextlib
import re
import time

import pytest

from evo_kernel.fitness.compile.compiler import Compiler, Forbidden, text_fault
from evo_kernel.fitness.compile.ir_text import (
    dependence_fault,
    entry_of,
    fault_of,
    with_plain_symbols,
    without_locations,
)
from evo_kernel.fitness.compile.module_state import ir_takes_parameters_address
from evo_kernel.fitness.costmodel.features import _walks_from_program
from evo_kernel.fitness.plan.launch_plan import Binary, Kernel
from evo_kernel.fitness.tuning.proposals import is_tile
from tests.support import boundary

COPY = """module {
  tt.func public @copy(%x: !tt.ptr<f32>, %y: !tt.ptr<f32>) {
    %v = tt.load %x : !tt.ptr<f32>
    tt.store %y, %v : !tt.ptr<f32>
    tt.return
  }
}
"""
SIGNATURE = (("x", "*fp32"), ("y", "*fp32"))
MANY = 100_000
LONG = {
    "blank lines": "\n" * MANY,
    "blanks": " " * MANY,
    "a label": "^bb" + "0" * 3 * MANY,
    "labels": "^bb1: " * MANY,
    "escapes in a name": 'tt.func public @"' + r"\a" * MANY + '" x',
    "names": "tt.func " * MANY,
    "a name": "tt.func @" + "a" * MANY,
    "open locations": "loc(" * MANY,
    "closed locations": ")" * MANY,
    "quotes": '"' * MANY,
    "backslashes": '"' + "\\" * MANY,
    "paths": "libpath=" * MANY,
    "variables": "%" * MANY + "a" * MANY,
    "loops": "".join(f"%p{i} = tt.get_program_id x\nscf.for %i{i} = %c{i} to %c0\n" for i in range(MANY // 4)),
    "a dotted name": "b.c" * MANY,
    "a dotted name of a value": "%a = " + "b.c" * MANY,
    "directives": "#\n" * MANY,
    "a directive": "#" + " " * MANY + "include",
}


@pytest.mark.parametrize("name", LONG)
def test_no_text_takes_long_to_read(name: str) -> None:
    """These are read in the judge's own process. What takes the square of a text's length takes minutes of them."""
    text = COPY.replace("module {", f"module {{\n{LONG[name]}", 1)
    began = time.process_time()
    fault_of(text, "copy")
    with_plain_symbols(text)
    dependence_fault(text)
    ir_takes_parameters_address(text)
    _walks_from_program(text)
    text_fault(Kernel(name="copy", language="cuda", code=text, signature=(), options=(("num_warps", 4),)))
    with contextlib.suppress(ValueError):
        entry_of(text)
    assert time.process_time() - began < 5.0


def test_no_name_of_a_knob_takes_long_to_read() -> None:
    began = time.process_time()
    assert is_tile("A_" * MANY)
    assert time.process_time() - began < 5.0


def kernel(code: str, **options) -> Kernel:
    return Kernel(name="copy", code=code, signature=SIGNATURE, options=tuple(options.items()))


def with_assembly(text: str, constraints: str = "=f,f") -> str:
    """The copy, through inline assembly."""
    operation = (
        f'tt.elementwise_inline_asm "{text}" {{constraints = "{constraints}", packed_element = 1 : i32, pure = false}}'
    )
    return COPY.replace("    tt.store %y, %v", f"    %w = {operation} %v : f32 -> f32\n    tt.store %y, %w")


@pytest.fixture(scope="module")
def compiler():
    made = Compiler(90, 60.0)
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize("name", boundary.SUBJECTS)
def test_what_is_compiled_from_ir_is_what_triton_compiles_from_python(name, tmp_path, monkeypatch):
    subject = boundary.SUBJECTS[name]
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")  # as the recorder's children have it
    code = boundary.ir_of(subject)
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    made = boundary.compiled_from_ir(subject, code, str(tmp_path))
    assert boundary.equal(boundary.compiled_from_python(subject), made)
    assert fault_of(code, subject.kernel.__name__) == fault_of(made["ir"], subject.kernel.__name__) == ""
    assert 'loc("boundary.py":' in code and without_locations(made["ir"]) == made["ir"]
    again = boundary.compiled_from_ir(subject, made["ir"], str(tmp_path))
    assert (again["ir"], again["cubin"]) == (made["ir"], made["cubin"])


FAULTS = {
    "no IR": ("def copy(x, y): pass", "public functions none"),
    "nothing": ("", "public functions none"),
    "another name": (COPY.replace("@copy", "@other"), "public functions other"),
    "two kernels": (COPY.replace("}\n}", "}\n  tt.func @copy2() {\n    tt.return\n  }\n}"), "copy, copy2"),
    "a hidden one": (COPY.replace("public @copy", "@copy"), ""),
    "modules in a module": (COPY.replace("module {", "module {\n  module {").rstrip() + "\n}", "more than one module"),
    "another dialect": (COPY.replace("    tt.return", "    llvm.inline_asm has_side_effects \"trap;\", \"\" : () -> ()\n    tt.return"), "llvm.inline_asm"),
    "a generic operation": (COPY.replace("    tt.return", '    "llvm.intr.trap"() : () -> ()\n    tt.return'), "llvm.intr.trap"),
    "a foreign type": (COPY.replace("!tt.ptr<f32>, %y", "!llvm.ptr, %y"), "llvm.ptr"),
    "a promise": (COPY.replace("    tt.return", "    %s = arith.addi %n, %n overflow<nsw> : i32\n    tt.return"), "arithmetic flag nsw"),
    "a promise in a generic form": (COPY.replace("    tt.return", '    %s = "arith.addi"(%n, %n) <{overflowFlags = #arith.overflow<nuw>}> : (i32, i32) -> i32\n    tt.return'), "arithmetic flag nuw"),
    "a cast of anything": (COPY.replace("    tt.return", "    %s = builtin.unrealized_conversion_cast %n : i32 to !tt.ptr<i8>\n    tt.return"), "unrealized conversion cast"),
    "a called function": (COPY.replace("    tt.return", '    %s = tt.call @"copy.part__Pfp32_i32__(2,)cconstexpr_512_"(%x) : (!tt.ptr<f32>) -> f32\n    tt.return'), ""),
    "a comment": (COPY.replace("    tt.return", '    // "\n    tt.return'), "comments"),
    "resources": (COPY + '{-#\n  dialect_resources: {\n    builtin: {\n      tt.b: "0x00"\n    }\n  }\n#-}\n', "resources"),
    "the use of one": (COPY.replace("    tt.return", "    tt.return {tt.x = dense_resource<tt.b> : tensor<4xi32>}"), "resources"),
    "a hint to loops": (COPY.replace("module {", "#loop_licm = #llvm.loop_licm<disable = true, versioningDisable = true>\n#loop_annotation = #llvm.loop_annotation<licm = #loop_licm>\nmodule {", 1).replace("    tt.return", "    tt.return {llvm.loop_annotation = #loop_annotation}"), ""),
    "another hint to loops": (COPY.replace("module {", "#loop_licm = #llvm.loop_licm<disable = false>\nmodule {", 1), "llvm.loop_licm"),
    "a hint that says more": (COPY.replace("module {", "#loop_annotation = #llvm.loop_annotation<licm = #loop_licm, mustProgress = true>\nmodule {", 1), "llvm.loop_annotation"),
    "a hint of its own": (COPY.replace("    tt.return", "    tt.return {llvm.loop_annotation = #llvm.loop_annotation<mustProgress = true>}"), "llvm.loop_annotation"),
    "a file": (COPY.replace("    tt.store", '    %w = tt.extern_elementwise %v {libname = "", libpath = "/tmp/evil.bc", pure = true, symbol = "__nv_erff"} : (f32) -> f32\n    tt.store'), "/tmp/evil.bc"),
    "the driver's memory": (COPY.replace("    tt.store", '    %w = tt.extern_elementwise %v {libname = "", libpath = "", pure = true, symbol = "malloc"} : (f32) -> f32\n    tt.store'), "malloc"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_no_kernel_holds_is_not_compiled(name):
    code, reason = FAULTS[name]
    told = text_fault(kernel(code))
    assert reason in told and bool(told) == bool(reason), told


@pytest.mark.parametrize(
    ("option", "value"),
    [("ir_override", "x.ttir"), ("ptx_options", "-o /tmp/x"), ("ptx_version", 60), ("arch", "sm80"),
     ("extern_libs", "evil.bc"), ("instrumentation_mode", "gsan"), ("num_warps", True), ("num_warps", 10**9)],
)  # fmt: skip
def test_options_that_name_files_or_tools_are_refused(option, value):
    assert f"option {option}" in text_fault(kernel(COPY, **{option: value}))


def test_options_of_an_honest_kernel_are_not():
    assert text_fault(kernel(COPY, num_warps=8, num_stages=0, maxnreg=128, ptx_options="--opt-level=2 -O3")) == ""


def test_text_that_is_no_module_ends_in_a_sentence(compiler):
    broken = [
        COPY.replace("tt.load %x", "tt.load %z"),
        COPY.replace("f32", "f33"),
        COPY.replace("tt.load", "tt.nothing"),
    ]
    for answer in compiler.compile([kernel(code) for code in broken]):
        assert isinstance(answer, str) and answer.startswith("kernel copy does not compile: "), answer
    (fine,) = compiler.compile([kernel(COPY)])
    assert isinstance(fine, Binary) and fine.ir and "%arg0" in fine.ir


STATE = {
    "in the entry": ("{ .global .f32 kept; ld.global.f32 $0, [kept]; st.global.f32 [kept], $1; }", "kept"),
    "constant memory": (
        "{ .const .f32 kept = 0f40000000; .reg .u64 a; ld.const.f32 $0, [kept]; mov.u64 a, kept; cvta.const.u64 a, a; "
        "st.f32 [a], $1; }", "kept",
    ),
    "under a name of the library": (
        "{ .global .f32 __cudart_i2opi_f; ld.global.f32 $0, [__cudart_i2opi_f]; st.global.f32 [__cudart_i2opi_f], $1; }",
        "__cudart_i2opi_f",
    ),
    "spelled in parts": ("{ .global .f32 k$(e$|x$)pt; ld.global.f32 $0, [kept]; st.global.f32 [kept], $1; }", "kept"),
    "its own parameters": ("{ .reg .b64 a; mov.b64 a, copy_param_0; cvta.param.u64 a, a; ld.f32 $0, [a]; st.f32 [a], $1; }", "parameter"),
    "the driver's workspace": ("{ .reg .b32 a; mov.u32 a, %envreg1; mov.b32 $0, a; add.f32 $0, $0, $1; }", "envreg"),
    "the driver's heap": (
        "{ .extern .func (.param .b64 r) malloc (.param .b64 n); .param .b64 n; .param .b64 r; .reg .b64 t; "
        "mov.u64 t, 8; st.param.b64 [n], t; call.uni (r), malloc, (n); ld.param.b64 t, [r]; ld.f32 $0, [t]; "
        "st.f32 [t], $1; }", "malloc",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATE)
def test_what_would_outlive_a_launch_is_forbidden(compiler, name):
    text, named = STATE[name]
    (answer,) = compiler.compile([kernel(with_assembly(text))])
    assert isinstance(answer, Forbidden) and named in answer and "launch" in answer, answer


def test_the_compilers_own_tables_and_texts_are_not(compiler):
    sine = COPY.replace("    tt.store %y, %v", "    %w = math.sin %v : f32\n    tt.store %y, %w")
    asserted = COPY.replace("    tt.store", '    %t = arith.constant true\n    tt.assert %t, "fine" : i1\n    tt.store')
    harmless = with_assembly("{ // c\\0A mul.f32 $0, $1, 0f40000000; }")
    lines = (
        with_assembly("\\0A\\09{ .reg .f32 p;\\0A\\09mul.f32 p, $1, $1; mov.f32 $0, p; }\\0A")
        .replace("%w = tt.el", "%s = math.sin %v : f32\n    %t = arith.addf %s, %v : f32\n    %w = tt.el")
        .replace("} %v", "} %t")
    )
    for answer in compiler.compile([kernel(code) for code in (sine, asserted, harmless, lines)]):
        assert isinstance(answer, Binary), answer


def test_lines_and_comments_do_not_change_a_key_and_code_does():
    moved = COPY.replace("%x: !tt.ptr<f32>", '%x: !tt.ptr<f32> loc("x"("a.py":3:4))').replace(
        "tt.return", "tt.return loc(#loc1)"
    )
    aliased = '#loc = loc(unknown)\n#loc1 = loc(callsite("kernel.py":1:2 at #loc))\n' + moved
    assert without_locations(aliased) == COPY
    assert kernel(aliased).key == kernel(COPY).key != kernel(COPY, num_warps=8).key
    one, two = (kernel(with_assembly(f'loc({n}) \\"')).key for n in "12")  # a string is no location
    assert one != two


def test_symbols_are_numbered_and_strings_are_kept():
    text = 'tt.func public @k() tt.call @m.help(%0) "@k" tt.func private @m.help() @k'
    assert with_plain_symbols(text) == 'tt.func public @0() tt.call @1(%0) "@k" tt.func private @1() @0'


def test_the_entry_is_read():
    text = boundary_like(
        "%arg0: !tt.ptr<f32> {tt.divisibility = 16 : i32}, %arg1: !tt.tensordesc<64x64xf16, #s<{a = [1, 2]}>>, %arg2: i32"
    )
    entry = entry_of(text)
    assert entry.name == "k" and [p.divisibility for p in entry.parameters] == [16, 1, 1]
    assert [p.type[:12] for p in entry.parameters] == ["!tt.ptr<f32>", "!tt.tensorde", "i32"]
    for parameter in ("%a: i32 {tt.contiguity = 8 : i32}", "%a: i32 {tt.divisibility = 0 : i32}", "i32"):
        with pytest.raises(ValueError, match="parameter"):
            entry_of(boundary_like(parameter))
    with pytest.raises(ValueError, match="no end"):
        entry_of("tt.func public @k(%a: i32")


def boundary_like(parameters: str) -> str:
    return f"module {{\n  tt.func public @k({parameters}) attributes {{noinline = false}} {{\n    tt.return\n  }}\n}}"


@pytest.mark.parametrize(
    "junk", ['"' * 50_000, "loc(" * 20_000, "(" * 50_000, "@" * 50_000, '"\\' * 30_000, "loc(" + "(" * 30_000]
)
def test_junk_is_read_quickly(junk):
    text = COPY + junk
    without_locations(text)
    with_plain_symbols(text)
    fault_of(text, "copy")
    assert re.match("module", text)


_NINE = "    tt.grid_dependency_wait\n"
_SIX = (
    '    %0 = tt.elementwise_inline_asm "griddepcontrol.wait; // dummy $0" '
    '{constraints = "=r", packed_element = 1 : i32, pure = false} -> i32\n'
)
_NEXT = _SIX.replace("wait;", "launch_dependents;")
_LOAD = "    %1 = tt.load %arg0 : !tt.ptr<f32>\n"


@pytest.mark.parametrize(
    ("body", "waits"),
    [
        (_NINE + _LOAD, True),
        (_SIX + _LOAD, True),
        ("    %2 = tt.get_program_id x : i32\n" + _NEXT + _SIX + _LOAD, True),
        (_LOAD + _NINE, False),
        (_NEXT + _LOAD, False),
        ("    scf.if %2 {\n  " + _NINE + "    }\n" + _LOAD, False),
        ("    cf.cond_br %2, ^bb1, ^bb2\n  ^bb1:\n" + _NINE, False),
        ("    %3:2 = tt.call @loads(%arg0) : (!tt.ptr<f32>) -> (f32, f32)\n" + _NINE, False),
        (_SIX.replace("pure = false", "pure = true") + _LOAD, False),
        (_SIX.replace("wait; // dummy $0", "wait; ld.global.u32 $0, [0];") + _LOAD, False),
    ],
)
def test_a_dependent_launch_waits_before_it_touches_memory(body, waits):
    text = "module {\n  tt.func public @k(%arg0: !tt.ptr<f32>) {\n" + body + "    tt.return\n  }\n}\n"
    assert (dependence_fault(text) == "") == waits
