"""Rewrites of the kernels that torch.compile's back end generates: what they write, and that it computes the same."""

from __future__ import annotations

import ast

import pytest
import torch
import torch.nn.functional as F
from torch.utils._triton import has_triton

from evo_kernel.tasks.compiled.module import compiled_function
from evo_kernel.tasks.lowering.lower import lower_function
from evo_kernel.types import CaseCard, CaseKind, Strategy, TaskCard
from operators.micro.module import KernelModule
from operators.micro.rewrites import REWRITES
from operators.micro.rewrites.rows import Numbering
from operators.micro.syntax import KEEPS_NAN
from tests.support.compiled import draw, results_of
from tests.support.nan import with_nan

pytest.importorskip("triton")

MATRICES = [((70, 33), (33,)), ((64, 128), (128,))]
LONG = [((9, 1300), (1300,)), ((4, 2048), (2048,))]  # shorter rows are held whole from the start
REFERENCES = {
    # moments; a maximum and a sum that need one another; two sums in one pass; a row and a column vector; vectors alone;
    # a sum over the first axis, in parts; one over the middle axis; a row that is stored and loaded again
    "layer_norm": (lambda x, w: F.layer_norm(x, (x.shape[-1],), w), LONG),
    "softmax": (lambda x, w: torch.softmax(x * 2 + w, -1), LONG),
    "variance": (lambda x, w: torch.var(x + w, -1), LONG),
    "cosine": (lambda x, w: (x * w).sum(-1) / x.norm(dim=-1), LONG),
    "scaled": (lambda x, w: x * w + x[:, :1], MATRICES),
    "outer": (lambda x, w: torch.sigmoid(x[:, :1] + w), MATRICES),
    "columns": (lambda x, w: (x + w).sum(0), [((5000, 33), (33,)), ((4999, 17), (17,))]),
    "planes": (lambda x, w: (x + w).mean(1), [((9, 60, 33), (33,)), ((3, 70, 17), (17,))]),
    "residual": (lambda x, w: _with_its_norm((torch.tanh(x) + w).bfloat16()), LONG),
}


def _with_its_norm(total):
    return total, total.float() * torch.rsqrt(total.float().square().mean(-1, keepdim=True))


ONE_PASS = ("layer_norm", "softmax", "variance", "cosine")
FLAT = ("scaled", "outer", "columns", "planes")


def card(name: str) -> TaskCard:
    cases = tuple(
        CaseCard(f"case-{n}", CaseKind.SEARCH, {}, tuple(("float32", tuple(x.shape), x.stride()) for x in inputs))
        for n, inputs in enumerate(draw(REFERENCES[name][1]))
    )
    return TaskCard(name, "", "kernels", "ieee", False, cases)


def rewritten(text: str, name: str, *steps: str) -> str:
    for step in steps:
        module = KernelModule.parse(text)
        text = REWRITES[step].apply(module, REWRITES[step].offers(module, card(name))[0])
    return text


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    has_triton()  # torch keeps the answer, which is of this machine
    return {
        name: compiled_function(reference, draw(shapes), name=name) for name, (reference, shapes) in REFERENCES.items()
    }


def kernel_of(text: str, part: str = "") -> str:
    """The text of the first kernel that `run` launches, or of the one whose name has this part."""
    module = KernelModule.parse(text)
    name = next(name for name in (launch.kernel for launch in module.launches) if part in name)
    return module.source_of(module.kernels[name].node)


def test_all_compute_the_same(texts, tmp_path):
    steps: dict[str, list[tuple[str, ...]]] = {name: [("one-pass-row",)] for name in ONE_PASS}
    steps |= {name: [("tile-2d",)] for name in FLAT}
    steps["scaled"].append(("tile-2d", "drop-masks"))
    steps["planes"].append(("tile-2d", "one-pass-row"))
    made = {
        f"{name}_{number}": rewritten(texts[name], name, *chain)
        for name, chains in steps.items()
        for number, chain in enumerate(chains)
    }
    cases = {one: draw(REFERENCES[one.rpartition("_")[0]][1]) for one in made}
    for one, results in results_of(tmp_path, made, cases).items():
        reference, _ = REFERENCES[one.rpartition("_")[0]]
        for inputs, (got,) in zip(cases[one], results, strict=True):
            torch.testing.assert_close(got, reference(*inputs), rtol=2e-5, atol=2e-5, msg=lambda m, one=one: one + m)


def test_what_a_pass_stores_is_not_loaded_again_and_has_the_buffers_rounding(texts, tmp_path):
    text = texts["residual"]
    made = {"two": text, "one": rewritten(text, "residual", "one-pass-row")}
    assert "tl.load(out_ptr0 + " in kernel_of(text) and "tl.load(out_ptr0 + " not in kernel_of(made["one"], "one_pass")
    found = results_of(tmp_path, made, dict.fromkeys(made, draw(LONG)))
    for before, after in zip(found["two"], found["one"], strict=True):
        torch.testing.assert_close(after, before, rtol=1e-6, atol=1e-6)  # without rounding: 4e-3


STORED = "tl.store(y_ptr + cols, y, mask)\n{}\nz = tl.load(y_ptr + cols, mask, other=0.0).to(tl.float32)"


@pytest.mark.parametrize(
    ("between", "kept"),
    [
        ("tl.debug_barrier()", True),
        ("cols_2 = cols\nmask_2 = mask", True),
        ("tl.store(x_ptr + cols, y, mask)", False),  # perhaps the same memory
        ("tl.atomic_add(x_ptr, 1.0)", False),
        ("old = tl.atomic_add(x_ptr, 1.0)", False),
        ("mask = cols < n", False),
        ("cols = cols + 1", False),
        ("y = y * 2.0", False),  # nothing holds what was stored
    ],
)
def test_a_load_is_what_was_stored_unless_something_changed(between, kept):
    done = map(ast.unparse, Numbering(("x_ptr", "y_ptr")).run(ast.parse(STORED.format(between)).body))
    (loaded,) = (line for line in done if line.startswith("z = "))
    expected = "tl.where(mask, y.to(y_ptr.dtype.element_ty), 0.0)" if kept else "tl.load(y_ptr + cols, mask, other=0.0)"
    assert loaded == f"z = {expected}.to(tl.float32)"


@pytest.mark.parametrize("name", ONE_PASS)
def test_a_row_is_read_once_whatever_its_loads_tell_the_cache(texts, name):
    module = KernelModule.parse(rewritten(texts[name], name, "one-pass-row"))
    kernel = next(kernel for made, kernel in module.kernels.items() if "one_pass" in made)
    loads = [access.base for access in kernel.accesses if access.kind == "load"]
    assert not kernel.loops and len(loads) == len(set(loads)) == 2


@pytest.mark.parametrize("name", ["layer_norm", "variance"])
def test_moments_of_one_step_are_sums(texts, name):
    assert "joined_moments" in kernel_of(texts[name])
    assert "moments" not in kernel_of(rewritten(texts[name], name, "one-pass-row"), "one_pass")


def test_an_accumulators_start_goes_and_its_mask_stays(texts):
    kernel = kernel_of(rewritten(texts["cosine"], "cosine", "one-pass-row"), "one_pass")
    assert (
        "tl.where(r0_mask & xmask, " in kernel and "_tmp4 + " in kernel_of(texts["cosine"]) and "_tmp4 + " not in kernel
    )


@pytest.mark.parametrize("name", FLAT)
def test_rows_and_columns_have_axes_of_their_own(texts, name):
    text = rewritten(texts[name], name, "tile-2d")
    kernel = kernel_of(text)
    assert len(KernelModule.parse(text).launches[0].grid) == 2
    assert "xindex %" not in kernel and "xindex //" not in kernel
    assert not REWRITES["tile-2d"].offers(KernelModule.parse(text), card(name))


def test_a_vector_is_loaded_once_for_all_rows_of_a_tile(texts):
    module = KernelModule.parse(rewritten(texts["scaled"], "scaled", "tile-2d"))
    (kernel,) = module.kernels.values()
    masks = {ast.unparse(access.pointer): ast.unparse(access.mask) for access in kernel.accesses if access.mask}
    assert set(masks.values()) == {"row_mask & column_mask", "row_mask", "column_mask"}
    assert any(name.endswith("_ROWS") for name in module.constants)


def test_masks_are_dropped_only_where_the_kernel_does_not_say_when_they_hold(texts):
    assert all(not REWRITES["drop-masks"].offers(KernelModule.parse(texts[name]), card(name)) for name in ONE_PASS)
    tiled = KernelModule.parse(rewritten(texts["scaled"], "scaled", "tile-2d"))
    assert REWRITES["drop-masks"].offers(tiled, card("scaled"))


def constants_of(text: str, task: TaskCard) -> list[Strategy]:
    return [one for one in REWRITES["drop-masks"].offers(KernelModule.parse(text), task) if one.parameters]


def test_divisors_of_indices_become_constants(tmp_path):
    shapes = [((9, 6, 33), (9, 1, 33)), ((3, 5, 17), (3, 1, 17))]
    text = lower_function(lambda x, y: x + y, draw(shapes))
    inputs = tuple(("float32", tuple(x.shape), x.stride()) for x in draw(shapes)[0])
    task = TaskCard("sum", "", "kernels", "ieee", False, (CaseCard("case", CaseKind.SEARCH, {}, inputs),))
    offered = constants_of(text, task)
    made = REWRITES["drop-masks"].apply(KernelModule.parse(text), offered[0])
    assert len(offered) == 1 and made.count(": tl.constexpr") > text.count(": tl.constexpr")
    assert [dict(one.parameters)["sizes"] for one in constants_of(made, task)] == ["all as constants"]
    for (x, y), (got,) in zip(
        draw(shapes), results_of(tmp_path, {"sum": made}, {"sum": draw(shapes)})["sum"], strict=True
    ):
        torch.testing.assert_close(got, x + y)


def test_what_torch_compile_writes_has_its_sizes_as_constants(texts):
    assert not any(constants_of(text, card(name)) for name, text in texts.items())


def test_what_has_no_flat_index_of_a_matrix_is_not_offered(texts):
    assert not REWRITES["tile-2d"].offers(KernelModule.parse(texts["softmax"]), card("softmax"))


DROPS_NAN = """import torch
import triton
import triton.language as tl

BLOCK = 256
NUM_WARPS = 4


@triton.jit
def amax_kernel(x_ptr, w_ptr, y_ptr, n_cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, n_cols, BLOCK):
        mask = start + cols < n_cols
        x = tl.load(x_ptr + row * n_cols + start + cols, mask=mask, other=float("-inf"))
        w = tl.load(w_ptr + start + cols, mask=mask, other=0.0)
        top = tl.maximum(top, x + w)
    tl.store(y_ptr + row, tl.max(top, axis=0))


def run(x, w):
    m, n = x.shape
    y = torch.empty((m,), dtype=x.dtype, device=x.device)
    amax_kernel[(m,)](x, w, y, n, BLOCK=BLOCK, num_warps=NUM_WARPS)
    return y
"""
"""Somebody's kernel: NaN where a whole row is NaN after its first block, a number elsewhere."""
WITH_MAXIMA = {
    "softmax": lambda x, w: torch.softmax(x * 2 + w, -1),
    "amax": lambda x, w: (x + w).amax(-1).relu(),
    "clamped": lambda x, w: (x.clamp(-1, 1) * w).sum(-1),
    "argmin": lambda x, w: (x + w).argmin(-1),
}


def spoilt(inputs):
    x, w = inputs
    x = with_nan([x])[0]
    x[-1] = float("nan")
    return x, w


MANY = TaskCard("many", "", "kernels", "ieee", False, (
    CaseCard("case", CaseKind.SEARCH, {}, (("float32", (4096, 1300), (1300, 1)), ("float32", (1300,), (1,)))),
))  # fmt: skip


def rewrites_of(text: str, depth: int) -> dict[str, str]:
    """The first offer of each strategy, and of each on the results, with the names of the steps."""
    module, made = KernelModule.parse(text), {}
    for step in ("one-pass-row", "online-row", "fuse-producer", "fuse-consumer", "rows-per-program", "drop-masks"):
        for strategy in REWRITES[step].offers(module, MANY)[:1]:
            made[step] = REWRITES[step].apply(module, strategy)
            if depth > 1:
                made |= {f"{step}+{after}": later for after, later in rewrites_of(made[step], depth - 1).items()}
    return made


def test_rewrites_keep_what_a_kernel_does_with_nan(tmp_path):
    """All first offers and pairs of them: NaN stays where it was, and is lost where the parent lost it."""
    has_triton()
    drawn = draw(LONG)
    made = {"drops": DROPS_NAN}
    for name, reference in WITH_MAXIMA.items():
        made[f"lowered_{name}"] = lower_function(reference, drawn, name=name)
        made[f"compiled_{name}"] = compiled_function(reference, drawn, name=name)
    keeping = made["lowered_amax"].split("@triton.jit")[1]
    made["keeping_softmax"] = (
        made["lowered_softmax"]
        .replace("tl.maximum(largest, x)", f"tl.maximum(largest, x, {KEEPS_NAN})")
        .replace("tl.max(largest, axis=0)", "tl.reduce(largest, 0, larger_or_nan)")
        .replace("@triton.jit", f"@triton.jit{keeping}@triton.jit", 1)
    )
    texts = dict(made)
    for name, text in texts.items():
        offered = rewrites_of(text, 2)
        made |= {f"{name}-{step}": later for step, later in offered.items()}
    kept = {text: name for name, text in reversed(made.items())}  # each text once, by its shortest name
    assert {"online-row", "one-pass-row", "rows-per-program", "fuse-producer"} <= {
        step for name in kept.values() for step in name.partition("-")[2].split("+")
    }
    online = next(text for text, name in kept.items() if name == "keeping_softmax-online-row")
    assert f"tl.reduce(x, 0, larger_or_nan), {KEEPS_NAN})" in online
    cases = [spoilt(drawn[0])]  # rows of whole blocks and a part of one
    found = results_of(tmp_path, {name: text for text, name in kept.items()}, dict.fromkeys(kept.values(), cases))
    for name, results in found.items():
        first = name.partition("-")[0]
        for inputs, (got,), (before,) in zip(cases, results, found[first], strict=True):
            wanted = before if first == "drops" else WITH_MAXIMA[first.partition("_")[2]](*inputs)
            same = got.isnan() == wanted.isnan() if wanted.is_floating_point() else got == wanted
            assert same.all(), name
