"""Row, memory and fusion rewrites: what they write, what they refuse, and that the results compute the same."""

from __future__ import annotations

import pytest

from evo_kernel.types import Strategy
from operators.micro.module import KernelModule
from operators.micro.rewrites import REWRITES, RewriteFailed
from tests.operators.support_rewrites import ATTENTION, CHAIN, SAMPLES, SOFTMAX, card, errors_of

MINE = (
    "one-pass-row", "online-row", "rows-per-program", "hoist", "drop-masks", "cache-hints", "exp2",
    "fuse-producer", "fuse-consumer",
)  # fmt: skip
LARGE = {"softmax": ((4096, 192),), "layernorm": ((4096, 192), (192,), (192,)), "chain": ((4096, 100), (100,))}

LIMITS = {"layernorm": 1e-5, "attention": 2e-3}  # relative to the largest value; products of attention truncate to TF32


def offers(text: str, sample: str, *names: str) -> list[Strategy]:
    sizes = LARGE.get(sample, ())
    module = KernelModule.parse(text)
    return [s for name in names or MINE for s in REWRITES[name].offers(module, card(sample, sizes=sizes))]


def made(text: str, strategy: Strategy) -> str:
    return REWRITES[strategy.name].apply(KernelModule.parse(text), strategy)


def first(text: str, sample: str, name: str) -> str:
    return made(text, offers(text, sample, name)[0])


def body(text: str, kernel: str) -> str:
    module = KernelModule.parse(text)
    return "\n".join(module.source_of(s) for s in module.kernels[kernel].body)


def test_every_offer_computes_the_same_and_so_does_every_second_one() -> None:
    """All offers on all samples, and on the result of each strategy's first the first offer of every other strategy."""
    jobs, names = [], []
    for sample, text in SAMPLES.items():
        offered = offers(text, sample)
        firsts = {s.name: s for s in reversed(offered)}.values()
        for strategy in offered:
            result = made(text, strategy)
            jobs.append((result, sample))
            names.append(strategy.key)
            if sample in ("softmax", "chain") and strategy in firsts:
                seconds = {s.name: s for s in reversed(offers(result, sample))}
                jobs += [(made(result, second), sample) for second in seconds.values()]
                names += [f"{strategy.key} then {second.key}" for second in seconds.values()]
    assert len(jobs) > 60
    wrong = {
        f"{sample}: {name}": answer
        for name, (_, sample), answer in zip(names, jobs, errors_of(jobs), strict=True)
        if answer[1] or answer[0] > LIMITS.get(sample, 2e-6)
    }
    assert not wrong


def test_one_pass_reads_the_row_once_and_keeps_a_fallback() -> None:
    text = first(SOFTMAX, "softmax", "one-pass-row")
    assert body(text, "softmax_one_pass_kernel").count("tl.load") == 1
    assert body(text, "softmax_kernel") == body(SOFTMAX, "softmax_kernel")
    assert "if n <= 32768:" in text and "BLOCK=triton.next_power_of_2(n)" in text


def test_one_pass_is_not_offered_for_rows_too_long_or_contractions() -> None:
    module = KernelModule.parse(SOFTMAX)
    assert not REWRITES["one-pass-row"].offers(module, card("softmax", sizes=((8, 100_000),)))
    assert not offers(ATTENTION, "attention", "one-pass-row")


def test_one_pass_is_not_offered_twice() -> None:
    assert not offers(first(SOFTMAX, "softmax", "one-pass-row"), "softmax", "one-pass-row")


def test_online_softmax() -> None:
    text = body(first(SOFTMAX, "softmax", "online-row"), "softmax_kernel")
    assert text.count("for start") == 2
    assert "total = total * rescale + tl.sum(tl.exp(x - row_max_shift), axis=0)" in text


def test_online_twice_makes_flash_attention() -> None:
    once = first(ATTENTION, "attention", "online-row")
    twice = body(first(once, "attention", "online-row"), "attention_kernel")
    assert twice.count("for start") == 1 and twice.count("tl.dot(q, k)") == 1
    assert "acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v)" in twice
    assert twice.index("acc = acc / total[:, None]") > twice.index("largest = largest_new")


def test_online_refuses_what_is_not_linear() -> None:
    squared = SOFTMAX.replace(
        "tl.sum(tl.exp(x - row_max), axis=0)", "tl.sum(tl.exp(x - row_max) * tl.exp(x - row_max), axis=0)"
    )
    assert not offers(squared, "softmax", "online-row")
    elsewhere = SOFTMAX.replace("tl.exp(x - row_max), axis=0", "tl.exp(x - row_max) + row_max, axis=0")
    assert not offers(elsewhere, "softmax", "online-row")


def test_rows_per_program_masks_the_last_rows() -> None:
    (tile,) = (made(SOFTMAX, s) for s in offers(SOFTMAX, "softmax", "rows-per-program"))
    assert "(row < n_rows)" in tile and "axis=1, keep_dims=True" in tile
    assert "softmax_kernel[(triton.cdiv(m, SOFTMAX_ROWS),)]" in tile and "n_rows=m, ROWS=SOFTMAX_ROWS" in tile


def test_rows_per_program_knows_indices_of_64_bits() -> None:
    wide = SOFTMAX.replace("row = tl.program_id(0)", "row = tl.program_id(0).to(tl.int64)")
    assert wide != SOFTMAX
    (tile,) = (made(wide, s) for s in offers(wide, "softmax", "rows-per-program"))
    assert "row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]" in tile
    assert all(error < 2e-6 and not why for error, why in errors_of([(tile, "softmax")]))


def test_rows_per_program_needs_many_rows() -> None:
    module = KernelModule.parse(SOFTMAX)
    assert not REWRITES["rows-per-program"].offers(module, card("softmax", sizes=((8, 64),)))


def test_hoist_turns_divisions_into_one_reciprocal() -> None:
    text = body(first(SOFTMAX, "softmax", "hoist"), "softmax_kernel")
    assert "total_reciprocal = 1.0 / total" in text and "* total_reciprocal" in text


def test_drop_masks_tells_the_kernel_when_sizes_divide() -> None:
    text = first(SOFTMAX, "softmax", "drop-masks")
    assert "((cols < n_cols) | EVEN_N_COLS)" in text and "EVEN_N_COLS=n % BLOCK == 0" in text
    assert [dict(one.parameters) for one in offers(text, "softmax", "drop-masks")] == [{"sizes": "all as constants"}]


def test_drop_masks_is_not_offered_where_no_size_divides() -> None:
    module = KernelModule.parse(SOFTMAX)
    (constants,) = REWRITES["drop-masks"].offers(module, card("softmax", sizes=((64, 100),)))
    assert dict(constants.parameters) == {"sizes": "all as constants"}
    text = REWRITES["drop-masks"].apply(module, constants)
    assert "n_cols: tl.constexpr" in text and "x_stride: tl.constexpr" in text


def test_drop_masks_leaves_programs_beyond_the_size_alone() -> None:
    wide = CHAIN.replace("(triton.cdiv(m * n, MUL_BLOCK),)", "(m * n,)")
    assert "kernel mul_kernel" not in {s.region for s in offers(wide, "chain", "drop-masks") if not s.parameters}


def test_cache_hints_once() -> None:
    loads, stores = offers(SOFTMAX, "softmax", "cache-hints")
    text = made(made(SOFTMAX, loads), stores)
    assert text.count("eviction_policy='evict_last'") == 2 and text.count("eviction_policy='evict_first'") == 1
    assert text.count("cache_modifier='.cs'") == 1
    assert not offers(text, "softmax", "cache-hints")


def test_exp2_folds_into_the_scale_of_scores() -> None:
    text = first(ATTENTION, "attention", "exp2")
    assert "tl.exp(" not in text and text.count("tl.exp2(") == 2 and "(1.0 / dim ** 0.5) * 1.4426950408889634" in text
    assert not offers(text, "attention", "exp2")


def test_exp2_refuses_scores_that_are_used_elsewhere() -> None:
    leaking = ATTENTION.replace("    acc = tl.zeros(", "    tl.store(o_ptr + rows, largest)\n    acc = tl.zeros(")
    assert not offers(leaking, "attention", "exp2")
    assert not offers(SOFTMAX, "softmax", "exp2")


def test_fusion_removes_the_buffer_the_launch_and_the_kernel() -> None:
    text = first(CHAIN, "chain", "fuse-producer")
    module = KernelModule.parse(text)
    assert len(module.launches) == 3 and "scaled" not in text and "mul_kernel" not in module.kernels
    assert ".to(tl.float32)" in body(text, "mul_relu_kernel")


def test_fusion_to_the_end() -> None:
    text = CHAIN
    while found := offers(text, "chain", "fuse-producer", "fuse-consumer"):
        text = made(text, found[0])
    module = KernelModule.parse(text)
    (launch,) = module.launches
    assert set(module.host_of(launch.call).buffers) == {"sums", "out"}
    ((error, reason),) = errors_of([(text, "chain")])
    assert not reason and error < 1e-6


def test_fusion_refuses_a_buffer_that_others_need() -> None:
    read = CHAIN.replace("    return out", "    double_kernel[(4,)](scaled, out, m, BLOCK=MUL_BLOCK)\n    return out")
    assert all("buffer=scaled" not in s.key for s in offers(read, "chain", "fuse-producer", "fuse-consumer"))
    returned = CHAIN.replace("    return out", "    return out, scaled")
    assert all("buffer=scaled" not in s.key for s in offers(returned, "chain", "fuse-producer", "fuse-consumer"))


def test_fusion_refuses_a_slice_of_the_buffer() -> None:
    sliced = CHAIN.replace("(scaled, active,", "(scaled[1:], active,")
    assert sliced != CHAIN
    assert all("buffer=scaled" not in s.key for s in offers(sliced, "chain", "fuse-producer", "fuse-consumer"))


def test_fusion_refuses_an_input_that_is_overwritten_in_between() -> None:
    overwritten = CHAIN.replace("    active = ", "    double_kernel[(4,)](w, x, m, BLOCK=MUL_BLOCK)\n    active = ")
    assert all("buffer=scaled" not in s.key for s in offers(overwritten, "chain", "fuse-producer", "fuse-consumer"))


@pytest.mark.parametrize("name", MINE)
def test_a_strategy_that_does_not_fit_fails_with_a_reason(name: str) -> None:
    strategy = Strategy(name, "memory", "kernel nobody -> nowhere", (("buffer", "b"),))
    with pytest.raises(RewriteFailed, match="nobody"):
        REWRITES[name].apply(KernelModule.parse(SOFTMAX), strategy)


def test_one_pass_tells_the_masks_of_its_own_block():
    """1536 is divided by 512 and not by the 2048 that hold a whole row."""
    bare = first(SOFTMAX, "softmax", "drop-masks")
    assert "EVEN_N_COLS=n % BLOCK == 0" in bare
    launch = first(bare, "softmax", "one-pass-row").partition("if n <= 32768:")[2]
    whole, _, fallback = launch.partition("else:")
    assert "EVEN_N_COLS=n % triton.next_power_of_2(n) == 0" in whole
    assert "EVEN_N_COLS=n % BLOCK == 0" in fallback


def test_one_pass_refuses_a_constexpr_made_of_the_block_that_it_does_not_know():
    bare = first(SOFTMAX, "softmax", "drop-masks")
    assert not offers(bare.replace("n % BLOCK == 0", "n // BLOCK"), "softmax", "one-pass-row")
