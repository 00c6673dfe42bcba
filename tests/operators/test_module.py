"""A source as a structure: what is found in it, and that edits leave everything else alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_kernel.types import Source
from operators.micro.canonical import canonical
from operators.micro.coder import RewriteCoder
from operators.micro.host_code import launches_for, live_kernels
from operators.micro.module import KernelModule, SourceError
from operators.micro.syntax import fresh_name, spell
from operators.micro.text import Edit, splice
from tests.operators.support_rewrites import ATTENTION, CHAIN, LAYERNORM, SAMPLES, SOFTMAX, card


@pytest.mark.parametrize("name", SAMPLES)
def test_round_trip(name: str) -> None:
    assert KernelModule.parse(SAMPLES[name]).text == SAMPLES[name]
    assert KernelModule.parse(SAMPLES[name]).edited() == SAMPLES[name]


def test_structure_of_softmax() -> None:
    module = KernelModule.parse(SOFTMAX)
    kernel, (launch,) = module.kernels["softmax_kernel"], module.launches
    assert module.constants == {"BLOCK": 64, "NUM_WARPS": 4}
    assert kernel.pointers == ("x_ptr", "y_ptr") and kernel.constexprs == ("BLOCK",)
    assert [(a.kind, a.base, len(a.loops)) for a in kernel.accesses] == [
        ("load", "x_ptr", 1),
        ("load", "x_ptr", 1),
        ("load", "x_ptr", 1),
        ("store", "y_ptr", 1),
    ]
    assert [(spell(loop.stop), spell(loop.step)) for loop in kernel.loops] == [("n_cols", "BLOCK")] * 3
    assert spell(launch.arguments["n_cols"]) == "n" and spell(launch.options["num_warps"]) == "NUM_WARPS"
    assert module.tensors(launch, "load") == {"x_ptr": "x"} and module.tensors(launch, "store") == {"y_ptr": "y"}
    assert module.host_of(launch.call).buffers["y"].returned


def test_pointers_through_names_and_views() -> None:
    text = CHAIN.replace(
        "relu_kernel[(triton.cdiv(m * n, RELU_BLOCK),)](scaled,", "flat = scaled.view(-1)\n    relu_kernel[(4,)](flat,"
    )
    module = KernelModule.parse(text)
    assert module.tensors(module.launches[1], "load") == {"a_ptr": "scaled"}


def test_slices_and_unknown_views_are_not_taken_for_new_tensors() -> None:
    launch = "double_kernel[(triton.cdiv(m, MUL_BLOCK),)](sums,"
    sliced = KernelModule.parse(CHAIN.replace(launch, f"part = scaled[1:]\n    {launch.replace('sums', 'part')}"))
    assert sliced.tensors(sliced.launches[3], "load") == {"a_ptr": "scaled"}
    parts = KernelModule.parse(CHAIN.replace(launch, f"p, q = scaled.chunk(2)\n    {launch.replace('sums', 'p')}"))
    assert parts.tensors(parts.launches[3], "load") == {"a_ptr": "?"}


def test_errors_name_the_place() -> None:
    with pytest.raises(SourceError, match="line 1"):
        KernelModule.parse("def run(:\n")
    with pytest.raises(SourceError, match="run"):
        KernelModule.parse("x = 1\n")


def test_edits_touch_only_what_they_name() -> None:
    module = KernelModule.parse(LAYERNORM)
    kernel, (launch,) = module.kernels["layernorm_kernel"], module.launches
    changed = module.edited(
        module.add_parameters(kernel.node, "EVEN: tl.constexpr"),
        module.add_arguments(launch.call, "EVEN=n % BLOCK == 0"),
        module.set_constant("ROWS", 4),
        module.set_constant("BLOCK", 128),
    )
    assert "eps, BLOCK: tl.constexpr, EVEN: tl.constexpr):" in changed
    assert "num_warps=NUM_WARPS, EVEN=n % BLOCK == 0" in changed
    assert "BLOCK = 128\nNUM_WARPS = 4\nROWS = 4\n" in changed
    untouched = (
        changed.replace(", EVEN: tl.constexpr", "").replace(", EVEN=n % BLOCK == 0", "").replace("ROWS = 4\n", "")
    )
    assert untouched.replace("BLOCK = 128", "BLOCK = 64") == LAYERNORM


def test_edits_count_characters_not_bytes() -> None:
    text = SOFTMAX.replace("# the largest value of the row", "# größter Wert …")
    module = KernelModule.parse(text)
    access = module.kernels["softmax_kernel"].accesses[0]
    changed = module.edited(module.add_arguments(access.call, "eviction_policy='evict_last'"))
    assert "other=-float(\"inf\"), eviction_policy='evict_last')" in changed and "# größter Wert …" in changed


@given(st.text(max_size=40), st.lists(st.tuples(st.integers(0, 40), st.text(max_size=5)), max_size=5))
def test_insertions_keep_the_text(text: str, insertions: list[tuple[int, str]]) -> None:
    edits = [Edit(min(at, len(text)), min(at, len(text)), new) for at, new in insertions]
    made = splice(text, edits)
    assert len(made) == len(text) + sum(len(new) for _, new in insertions)
    rest = iter(made)
    assert all(character in rest for character in text)


def test_overlapping_edits_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        splice("abcdef", [Edit(0, 3, ""), Edit(2, 4, "")])


def test_fresh_names() -> None:
    assert fresh_name("x", {"y"}) == "x"
    assert fresh_name("x_2", {"x", "x_2"}) == "x_3"
    assert fresh_name("x_ptr", {"x_ptr"}) == "x_2_ptr"


def test_host_values_of_cases() -> None:
    module = KernelModule.parse(ATTENTION)
    first, second = launches_for(module, card("attention"))
    assert first.grid == (1, 2) and second.grid == (3, 1)
    assert second.values["length"] == 37 and second.values["HEAD_DIM"] == 16


def test_kernels_behind_a_guard_that_no_case_takes_are_dead() -> None:
    text = SOFTMAX.replace("    softmax_kernel[", "    if n > 100000:\n        return y\n    softmax_kernel[")
    assert [k.name for k in live_kernels(KernelModule.parse(text), card("softmax"))] == ["softmax_kernel"]
    guarded = SOFTMAX.replace("    softmax_kernel[(m,)](x,", "    if n > 100000:\n        softmax_kernel[(m,)](x,")
    guarded = guarded.replace("    return y", "    copy_kernel[(m,)](x, y)\n    return y")
    guarded = guarded.replace("def run", "@triton.jit\ndef copy_kernel(x_ptr, y_ptr):\n    pass\n\n\ndef run")
    assert [k.name for k in live_kernels(KernelModule.parse(guarded), card("softmax"))] == ["copy_kernel"]


PUBLISHED = """import torch
import triton
import triton.language as tl


def configurations():
    return [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 256) for warps in (4, 8)]


@triton.autotune(configs=configurations(), key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor=2.0, BLOCK: tl.constexpr = 64, EVEN: tl.constexpr = False):
    start = tl.program_id(0) * BLOCK; at = start + tl.arange(0, BLOCK)
    if start >= n: return
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n), mask=at < n)


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, plain=False):
        flat = x.view(-1)
        y, n = torch.empty_like(flat), flat.numel()
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)
        with torch.cuda.device(x.device):
            scale_kernel[grid](flat, y, n)
        return y.view(*x.shape)

    @staticmethod
    def backward(ctx, dy):
        copy_kernel[(1, 1, 1)](dy, dy, 8, SIZE=8)
        return dy


scale = Scale.apply
run = scale
"""


def test_published_kernels_are_read_in_canonical_form() -> None:
    text = canonical(PUBLISHED).text
    assert canonical(text).text == text
    assert "SCALE_BLOCK = 128\nSCALE_NUM_WARPS = 4\n" in text and "@triton.autotune" not in text
    assert "scale_kernel[(triton.cdiv(n, SCALE_BLOCK),)](flat, y, n, BLOCK=SCALE_BLOCK" in text
    assert "num_warps=SCALE_NUM_WARPS, EVEN=n % SCALE_BLOCK == 0)" in text and "@triton.heuristics" not in text
    assert "copy_kernel[(1,)](dy, dy, 8, SIZE=8)" in text and "def run(*inputs):\n    return scale(*inputs)" in text
    assert "    start = tl.program_id(0) * SCALE" not in text and "\n    at = start" in text
    assert "    if start >= n:\n        return\n" in text


def test_a_launch_is_found_wherever_it_stands() -> None:
    module = KernelModule.parse(PUBLISHED)
    assert [one.kernel for one in module.launches] == ["scale_kernel", "copy_kernel"]
    assert [one.kernel for one in module.reached] == ["scale_kernel"]  # nothing calls `backward`
    (first, *_) = launches_for(module, card("softmax"))
    assert first.launch.kernel == "scale_kernel" and first.grid == (-(-int(first.values["n"]) // 128),)  # type: ignore[call-overload]
    assert [kernel.name for kernel in live_kernels(module, card("softmax"))] == ["scale_kernel"]


def test_what_is_not_in_the_text_stays_as_it_is() -> None:
    unknown = PUBLISHED.replace("configs=configurations()", "configs=elsewhere.configurations()")
    text = canonical(unknown).text
    assert "@triton.autotune" in text and "@triton.heuristics" in text and "scale_kernel[grid](flat, y, n)" in text
    asked = PUBLISHED.replace("return y.view(", "flat.size = scale_kernel.best_config.kwargs; return y.view(")
    assert "@triton.autotune" in canonical(asked).text


def test_a_kernel_that_a_name_stands_for_is_launched_by_its_own() -> None:
    chosen = PUBLISHED.replace("scale_kernel[grid]", "chosen[(1,)]").replace(
        "        with torch", "        chosen = copy_kernel if plain else scale_kernel\n        with torch"
    )
    text = canonical(chosen).text
    assert "            if plain:\n                copy_kernel[(1,)]" in text
    assert "            else:\n                scale_kernel[(1,)]" in text


def test_kernels_jitted_by_a_call_or_wrapped_are_read_alike() -> None:
    called = """import triton


def k(x, N: tl.constexpr):
    tl.store(x, N)


k = triton.jit(k)
k = triton.heuristics({"N": lambda args: 8})(k)


def run(x):
    torch.library.wrap_triton(k)[(1,)](x)
    return x
"""
    text = canonical(called).text
    assert "@triton.jit\ndef k(x" in text and "k = triton" not in text and "    k[(1,)](x, N=8)\n" in text
    other = called.replace("\n\n\ndef run", "\nplain = k\n\n\ndef run").replace(
        "k = triton.jit(k)", "user(k)\nk = triton.jit(k)"
    )
    assert "\nk = triton.jit(k)\n" in canonical(other).text  # somebody has the function as it was


def test_kernels_of_classes_and_arguments_are_read_alike() -> None:
    text = """import triton


def configs():
    found = []
    for size in [16, 32]:
        for warps in range(2, 4):
            found.append(triton.Config({"BLOCK": size}, num_warps=warps))
    return found


class Ops:
    @staticmethod
    @util.autotune(configs(), ["n"])
    @triton.jit
    def scale(x, n, BLOCK: tl.constexpr):
        tl.store(x, n)

    size: tl.constexpr = 4

    @staticmethod
    @triton.jit
    def sees_its_class(x, n=size):
        tl.store(x, n)


@triton.jit
def plain(x, n, BLOCK: tl.constexpr = 8):
    tl.store(x, n)


def apply(x, kernel=plain):
    def grid(meta):
        rows = triton.cdiv(x.shape[0], meta["BLOCK"])
        blocks = rows * 2
        return (blocks,)

    Ops.scale[grid](x, 3)
    kernel[(1,)](
        x, 3
    )
    Ops.sees_its_class[(1,)](x)


def run(x):
    apply(x)
"""
    read = canonical(text).text
    assert canonical(read).text == read
    assert "@triton.jit\ndef Ops_scale(x, n" in read and "    scale = staticmethod(Ops_scale)\n" in read
    assert "OPS_SCALE_BLOCK = 16\nOPS_SCALE_NUM_WARPS = 2\n" in read
    assert "    Ops_scale[(triton.cdiv(x.shape[0], OPS_SCALE_BLOCK) * 2,)](x, 3, BLOCK=OPS_SCALE_BLOCK" in read
    assert (
        "    if kernel is plain:\n        plain[(1,)](\n            x, 3\n        )\n    else:\n        kernel[(1,)]("
        in read
    )
    assert "    Ops.sees_its_class[(1,)](x)\n" in read
    left = canonical(text.replace("    for size", "    if odd(): found.append(triton.Config({}))\n    for size")).text
    assert "autotune" in left  # a list of unknown length


def test_every_strategy_is_carried_out_on_a_published_kernel() -> None:
    coder, source = RewriteCoder(), Source(PUBLISHED)
    offered = coder.offer(source, card("softmax"))
    assert {one.name for one in offered} >= {"cache-hints", "drop-masks", "launch-options"}
    (options,) = [one for one in offered if one.name == "launch-options"]  # its warps are a knob already
    made = coder.implement(source, options)
    assert "num_warps=SCALE_NUM_WARPS" in made and "maxnreg=SCALE_MAX_REGISTERS" in made
    assert "SCALE_MAX_REGISTERS = 64\n" in made and dict(options.parameters) == {"option": "registers"}
    assert not coder.why_nothing(source, card("softmax"))
    product = Source(PUBLISHED.replace("start = tl.program_id", "tl.dot(n, n); start = tl.program_id"))
    assert "SCALE_MAX_REGISTERS = 168\n" in coder.implement(product, options)
    for strategy in offered:
        assert KernelModule.parse(coder.implement(source, strategy)).text != canonical(PUBLISHED).text


def test_persistent_starts_parameters_anew_for_each_tile() -> None:
    text = PUBLISHED.replace("    tl.store(y_ptr + at,", "    x_ptr += 0 * start\n    tl.store(y_ptr + at,", 1)
    cards = replace(card("softmax"), cases=())
    (strategy,) = [one for one in RewriteCoder().offer(Source(text), cards) if one.name == "persistent"]
    made = RewriteCoder().implement(Source(text), strategy)
    assert "for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):" in made
    assert "x_ptr_of_tile = x_ptr" in made and "if not start >= n:" in made and "tiles=None):" in made
    assert "multi_processor_count * SCALE_PROGRAMS_PER_SM),)]" in made


def test_the_coder_says_what_it_looked_for() -> None:
    coder, about = RewriteCoder(), card("softmax")
    imported = Source("from somewhere import scale\n\n\ndef run(x):\n    return scale(x)\n")
    assert "no `@triton.jit` function" in coder.why_nothing(imported, about)
    hidden = Source(PUBLISHED.replace("run = scale", "def run(x):\n    return torch.add(x, x)"))
    assert "no launch" in coder.why_nothing(hidden, about)
    assert "no top-level" in coder.why_nothing(Source("x = 1\n"), about)
