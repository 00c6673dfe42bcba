"""The parser: all that the built-in kernels hold, and hostile text, of which nothing but IRError comes."""

from __future__ import annotations

import subprocess
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evo_kernel.fitness.ir import parse as parsing
from evo_kernel.fitness.ir.execute import traits_of, unsupported
from evo_kernel.fitness.ir.module import IRModule
from evo_kernel.fitness.ir.parse import parse
from evo_kernel.fitness.ir.types import IRError, parse_type
from evo_kernel.tasks.builtin import builtin_names
from tests.fitness.ir import test_combine, test_control, test_memory
from tests.fitness.ir.support import lowered
from tests.support.scripts import script

CHILD = """
import importlib.util, sys, torch
from pathlib import Path
torch.set_num_threads(1)
from evo_kernel.fitness.ir import jit
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind
folder, read, texts = Path(sys.argv[1]), jit.read, set()
jit.read = lambda text: (texts.add(text), read(text))[1]
jit.install()
for name in sys.argv[2:]:
    task = load(name)
    path = folder / f"{name}.py"
    path.write_text(task.seed.text)
    spec = importlib.util.spec_from_file_location("seed", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.run(*task.inputs(task.cases_of(CaseKind.CHECK)[0], torch.Generator().manual_seed(0), "cpu"))
for number, text in enumerate(sorted(texts)):
    (folder / f"{number}.ttir").write_text(text)
"""
NAMES = ("attention_backward", "conv2d", "cross_entropy", "decode_attention", "fp8_matmul", "grouped_matmul",
         "int4_matmul", "layernorm_backward", "qk_norm", "softmax")  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """IR of kernels of built-in tasks, as they are launched."""
    folder = tmp_path_factory.mktemp("ir")
    subprocess.run(script("-c", CHILD, folder, *NAMES), check=True, timeout=300)
    return [path.read_text() for path in sorted(folder.glob("*.ttir"))]


def test_every_operation_of_built_in_kernels_is_read(texts):
    assert len(texts) >= len(NAMES) and set(NAMES) <= set(builtin_names())
    for text in texts:
        module = parse(text)
        operations = list(module.operations())
        assert not unsupported(module)
        lines = [line.strip() for line in text.splitlines()]
        heads = [line for line in lines if line and not line.startswith(("#", "}", "^", "module", "tt.func"))]
        assert len(operations) == len(heads)
        assert [o.ordinal for o in operations] == list(range(1, len(operations) + 1))
        defined = _defined(module)
        assert all(name in defined for o in operations for name in o.operands)
        traits = traits_of(module)
        assert traits.stored and traits.loaded and traits.largest > 1
        assert all(o.line for o in operations if o.name in ("tt.load", "tt.store"))


def _defined(module: IRModule) -> set[str]:
    names = {a.name for f in module.functions.values() for a in f.arguments}
    for operation in module.operations():
        names |= {r.name for r in operation.results}
        names |= {a.name for region in operation.regions for block in region.blocks for a in block.arguments}
    return names


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("f32", "f32"),
        ("!tt.ptr<f32>", "!tt.ptr<f32>"),
        ("tensor<4x8x!tt.ptr<bf16, 1>>", "tensor<4x8x!tt.ptr<bf16>>"),
        ("tensor<16xf8E4M3FN>", "tensor<16xf8E4M3FN>"),
    ],
)
def test_types(text, told):
    assert str(parse_type(text)) == told


HEAD = "module {\n  tt.func public @k(%x: !tt.ptr<f32>) {\n"
TAIL = "\n    tt.return\n  }\n}\n"
HOSTILE = {
    "nothing": "",
    "no module": "tt.func public @k() {\n}",
    "two kernels": "module {\ntt.func public @a() {\ntt.return\n}\ntt.func public @b() {\ntt.return\n}\n}",
    "two of one name": "module {\ntt.func private @a() {\ntt.return\n}\ntt.func private @a() {\ntt.return\n}\n}",
    "text behind it": HEAD + TAIL + "module {\n}",
    "no end": HEAD,
    "a large tensor": HEAD + "%a = arith.constant dense<0> : tensor<1000000000xi32>" + TAIL,
    "many axes": HEAD + f"%a = arith.constant dense<0> : tensor<{'1x' * 30}i32>" + TAIL,
    "deep types": HEAD + "%a = tt.splat %x : " + "tensor<1x" * 2000 + TAIL,
    "deep pointers": HEAD + "%a = tt.splat %x : " + "!tt.ptr<" * 2000 + TAIL,
    "deep regions": HEAD + "scf.if %x {\n" * 200 + TAIL,
    "deep brackets": HEAD + "%a = tt.splat %x : f32 -> " + "(" * 5000 + TAIL,
    "a descriptor of nothing": HEAD + "%a = tt.make_tensor_descriptor %x, [], [] : !tt.ptr<f32>" + TAIL,
    "a load of nothing": HEAD + "%a = tt.load %x : f32" + TAIL,
    "many results": HEAD + "%a:9999 = tt.split %x" + TAIL,
    "a call of nobody": HEAD + "tt.call %x" + TAIL,
    "a loop without bounds": HEAD + "scf.for %i {\n}" + TAIL,
    "a loop of fewer types": HEAD + "%a = scf.for %i = %x to %x step %x iter_args(%b = %x) -> () : i32 {\n}" + TAIL,
    "a while of nothing": HEAD + "scf.while (%a) {\n}" + TAIL,
    "a block without a name": HEAD + "^(%a: i32):" + TAIL,
    "an unreadable attribute": HEAD + "%a = tt.make_range {end = : i32} : tensor<" + TAIL,
    "an open bracket": HEAD + '%a = "tt.reduce"(%x) <{axis = 0 ({' + TAIL,
    "an open string": HEAD + '%a = "tt.reduce' + TAIL,
    "a number of digits": HEAD + f"%a = arith.constant {'9' * 100000} : i32" + TAIL,
    "a null": HEAD + "\0" + TAIL,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_refused_with_a_sentence(name):
    began = time.monotonic()
    if name in ("many results", "a number of digits"):
        _read(HOSTILE[name])
    else:
        with pytest.raises(IRError) as caught:
            parse(HOSTILE[name])
        assert str(caught.value) and len(str(caught.value)) < 400
    assert time.monotonic() - began < 5


def test_sizes_are_bounded(monkeypatch):
    monkeypatch.setattr(parsing, "MAX_OPERATIONS", 10)
    with pytest.raises(IRError, match="more than 10 operations"):
        parse(HEAD + "\n".join(f"%a{n} = arith.constant {n} : i32" for n in range(20)) + TAIL)
    with pytest.raises(IRError, match="characters"):
        parse(HEAD + " " * (9 << 20) + TAIL)
    began = time.monotonic()
    for line in (
        "%a = tt.splat %x : f32 -> f32" + " loc(x)" * 400_000,
        "%a = tt.splat %x " + "{a} " * 400_000,
        "%a" * 800_000,
    ):
        _read(HEAD + line + TAIL)
    assert time.monotonic() - began < 20


def _read(text: str) -> str:
    """The name of its kernel, or why the text is refused."""
    try:
        module = parse.__wrapped__(text)
        traits_of(module)
        unsupported(module)
    except IRError as error:
        return str(error)
    return module.entry.name


def corpus() -> list[str]:
    import torch

    x, y = torch.zeros(8), torch.zeros(8)
    return [
        lowered(test_control.early, x, y, 1),
        lowered(test_control.caller, x, y, N=8),
        lowered(test_control.loops, y.int(), x.int(), KIND="while"),
        lowered(test_combine.reduced, x, y, WIDE=8, KIND="variance"),
        lowered(test_combine.described, x, y, 2, 4, M=2, N=4, PADDING="zero"),
        lowered(test_memory.locked, y.int(), x.int()),
        test_control.BLOCKS,
    ]


CORPUS: list[str] = []
PIECES = ("{", "}", "(", ")", "<", ">", "[", "]", ":", ",", "->", " = ", "%x", "^bb1", '"', "#loc", "loc(", "tensor<",
          "!tt.ptr<", "i32", "-1", "99999999999999999999", "dense<", "0x", "\n", "step", "to", "iter_args(", "@k", " * ",
          "tt.func public @k(", "scf.for", "scf.if", "\\", "\0", "é")  # fmt: skip


@settings(max_examples=400, deadline=5000, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_changed_text_is_read_or_refused(data):
    CORPUS.extend([] if CORPUS else corpus())
    text = data.draw(st.sampled_from(CORPUS))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = min(len(text), start + data.draw(st.integers(0, 30)))
        kind = data.draw(st.sampled_from(("cut", "put", "line", "copy")))
        if kind == "cut":
            text = text[:start] + text[end:]
        elif kind == "put":
            text = text[:start] + data.draw(st.sampled_from(PIECES)) + text[end:]
        elif kind == "copy":
            text = text[:end] + text[start:]
        else:
            lines = text.split("\n")
            one, other = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
            lines[one], lines[other] = lines[other], lines[one]
            text = "\n".join(lines)
    assert _read(text)


LOCATED = """#loc = loc("kernel.py":6:1)
#loc1 = loc("kernel.py":12:5)
#loc2 = loc("standard.py":99:1)
#loc3 = loc("kernel.py":30:9)
#loc4 = loc("x"(#loc1))
#loc5 = loc(callsite(#loc2 at #loc4))
#loc6 = loc(callsite(#loc5 at #loc3))
module {
  tt.func public @kernel(%a: !tt.ptr<f32> loc("a"(#loc))) attributes {noinline = false} {
    %x = tt.get_program_id x : i32 loc(#loc6)
    %y = tt.get_program_id y : i32 loc(#loc2)
    tt.return loc(#loc3)
  } loc(#loc)
} loc(#loc)
"""


def test_a_line_is_the_innermost_of_the_kernels_own_file():
    """Triton's library is named without its folder, like the kernel's file; a helper's line says more than its call."""
    assert [operation.line for operation in parse(LOCATED).operations()] == [12, 0, 30]


COPIES = """module {
  tt.func public @k(%arg0: tensor<32x!tt.ptr<f32>, #b>, %arg1: !ttg.memdesc<32xf32, #s, #smem, mutable>) {
    %0 = ttg.async_copy_global_to_local %arg0, %arg1 : tensor<32x!tt.ptr<f32>, #b> -> <32xf32, #s, #smem, mutable>
    %1 = ttg.async_commit_group tokens %0
    %2 = ttg.async_wait %1 {num = 0 : i32}
    tt.return
  }
}
"""


def test_copies_by_threads_are_read_with_their_groups():
    copy, commit, _, _ = parse(COPIES).operations()
    assert copy.operands == ("%arg0", "%arg1") and commit.operands == ("%0",)
    assert unsupported(parse(COPIES)) == ""
    promised = COPIES.replace(" : tensor", " {contiguity = 4 : i32} : tensor")
    assert next(parse(promised).operations()).integer("contiguity") == 4
