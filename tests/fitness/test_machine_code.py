import random
import struct

import pytest
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler.compiler import ASTSource
from triton.language.extra import libdevice

from evo_kernel.fitness.compile import instructions, machine_code, nvrtc
from evo_kernel.fitness.compile.instructions import SM_90
from evo_kernel.fitness.costmodel.facts import loop_work
from evo_kernel.fitness.ir.parse import parse
from tests.fitness.handmade import MATMUL, SOFTMAX, SOFTMAX_THREE_PASSES, compile_kernel, matmul_plan, softmax_plan
from tests.fitness.test_launch_kinds import needs_nvrtc


def cubin_of(plan):
    return compile_kernel(plan.kernels[0])["cubin"]


@pytest.fixture(scope="module")
def softmax():
    return cubin_of(softmax_plan(64, 4096, num_warps=8))


@pytest.fixture(scope="module")
def matmul():
    return cubin_of(matmul_plan(512, 512, 512, (128, 128, 64), num_warps=8))


def test_names_comments_and_line_offsets_do_not_change_the_hash(softmax):
    text = SOFTMAX.replace("softmax_kernel", "another_and_longer_name").replace(
        "    row =", "    # a comment\n\n\n    row ="
    )
    name = "another_and_longer_name"
    other = cubin_of(softmax_plan(64, 4096, text="# shifted\n\n\n" + text, num_warps=8, name=name))
    assert other != softmax
    assert machine_code.code_hash(other) == machine_code.code_hash(softmax)


def test_a_renamed_matmul_has_the_same_hash(matmul):
    text = MATMUL.replace("matmul_kernel", "aa")
    other = cubin_of(matmul_plan(512, 512, 512, (128, 128, 64), num_warps=8, text=text, name="aa"))
    assert machine_code.code_hash(other) == machine_code.code_hash(matmul)


def test_another_block_or_another_warp_count_changes_the_hash(softmax):
    hashes = {machine_code.code_hash(softmax)}
    hashes.add(machine_code.code_hash(cubin_of(softmax_plan(64, 4096, num_warps=4))))
    hashes.add(machine_code.code_hash(cubin_of(softmax_plan(64, 4096, 1024, SOFTMAX_THREE_PASSES, 8))))
    hashes.add(machine_code.code_hash(cubin_of(softmax_plan(64, 4096, 2048, SOFTMAX_THREE_PASSES, 8))))
    assert len(hashes) == 4


def test_a_flipped_bit_of_code_changes_the_hash(softmax):
    place = softmax.find(struct.pack("<QQ", *machine_code.code_words(softmax)[1][4][1:]))
    damaged = softmax[:place] + bytes([softmax[place] ^ 1]) + softmax[place + 1 :]
    assert machine_code.code_hash(damaged) != machine_code.code_hash(softmax)


def test_resources_and_parameters(softmax, matmul):
    used = machine_code.resources(softmax)
    assert 16 <= used.registers <= 64
    assert used.spill_bytes == 0
    assert machine_code.parameter_bytes(softmax) == (8, 8, 4, 4, 4, 8, 8)  # and two scratch pointers of Triton's own
    assert machine_code.resources(matmul).registers > used.registers


def test_spills_are_seen():
    crowded = matmul_plan(512, 512, 512, (256, 128, 32), num_warps=4)
    assert machine_code.resources(cubin_of(crowded)).spill_bytes > 0


def test_instruction_classes(softmax, matmul):
    one_pass = instructions.instruction_counts(softmax)
    assert one_pass["ld.global"] > 0 and one_pass["st.global"] > 0 and one_pass["mufu"] >= 16
    assert "wgmma" not in one_pass and one_pass["loops"] == 0
    tensor = instructions.instruction_counts(matmul)
    assert tensor["wgmma"] > 0 and tensor["in_loop.wgmma"] > 0 and tensor["in_loop.cp.async"] > 0
    assert tensor["loops"] == 1 and tensor["in_loop.all"] < tensor["all"]
    small = instructions.instruction_counts(cubin_of(matmul_plan(512, 512, 512, (32, 32, 32))))
    assert small["mma"] > 0 and "wgmma" not in small


@pytest.mark.parametrize(
    ("tile", "warps", "times"), [((64, 64), 4, 1), ((64, 16), 16, 2), ((16, 16), 2, 1), ((16, 16), 16, 8)]
)
def test_warps_without_a_part_of_the_tile_repeat_its_products(tile, warps, times):
    products = instructions.instruction_counts(cubin_of(matmul_plan(512, 512, 512, (*tile, 64), num_warps=warps)))
    assert warps * products["in_loop.products"] == times * (tile[0] // 16) * (tile[1] // 8) * (64 // 16)


def test_instructions_by_the_units_that_execute_them(softmax):
    counts = instructions.instruction_counts(softmax)
    assert counts["special"] == counts["mufu"] and counts["alu"] > counts["minmax"] and "double" not in counts
    (loop,) = (one for one in instructions.loops(repeating("rsqrt", "fp64")["cubin"]) if not one["called"])
    assert loop["double"] > 0
    upper = max(instructions.loops(repeating("umulhi", "u32")["cubin"]), key=lambda one: one["all"])
    assert upper["imad"] > upper["all"] - upper["alu"]  # each upper half takes two slots
    assert instructions.instruction_counts(softmax)["sync"] > 0


def test_hinted_loads_and_stores_are_counted():
    def hinted(old, new):
        plan = softmax_plan(64, 4096, text=SOFTMAX.replace(old, new), num_warps=8)
        return instructions.instruction_counts(cubin_of(plan)).get("hinted", 0)

    assert hinted("", "") == 0
    assert hinted("mask=mask)\n", "mask=mask, eviction_policy='evict_first')\n") > 0  # the store
    assert hinted('other=-float("inf")', "other=-float('inf'), eviction_policy='evict_last'") > 0


def test_the_bytes_that_loads_bring_are_read_from_their_code(softmax, matmul):
    assert instructions.instruction_counts(softmax)["load_bytes"] == 4096 * 4 // (8 * 32)  # the row once, by 8 warps
    tiles = (128 * 64 + 64 * 128) * 2 // (8 * 32)  # of bf16, one stage
    assert instructions.instruction_counts(matmul)["in_loop.load_bytes"] == tiles


def test_three_passes_are_three_loops():
    counts = instructions.instruction_counts(cubin_of(softmax_plan(64, 4096, 1024)))
    assert counts["loops"] == 3


@triton.jit
def repeated(x, n, WHAT: tl.constexpr):
    at = tl.arange(0, 128)
    value = tl.load(x + at)
    for _ in range(n):
        if WHAT == "pow":
            value = libdevice.pow(value, value)
        elif WHAT == "lgamma":
            value = libdevice.lgamma(value)
        elif WHAT == "exp2":
            value = tl.exp2(value)
        elif WHAT == "sqrt":
            value = tl.sqrt(value)
        elif WHAT == "rsqrt":
            value = tl.rsqrt(value)
        elif WHAT == "umulhi":
            value = tl.umulhi(value, value)
        else:
            value = tl.maximum(value, n - value)
    tl.store(x + at, value)


def repeating(what, kind):
    source = ASTSource(repeated, {"x": f"*{kind}", "n": "i32", "WHAT": "constexpr"}, {(2,): what})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm


@pytest.mark.parametrize(("what", "least"), [("pow", 200), ("lgamma", 500)])
def test_functions_of_doubles_are_executed_where_they_are_called(what, least):
    found = instructions.loops(repeating(what, "fp64")["cubin"])
    assert max(loop["all"] for loop in found if not loop["called"]) > least
    assert sum(loop["inner"] for loop in found) == 0


@pytest.mark.parametrize("what", ["pow", "exp2", "sqrt", "rsqrt"])
def test_no_loop_of_doubles_seems_unrolled(what):
    asm = repeating(what, "fp64")
    (work,) = loop_work(parse(asm["ttir"]), 128).values()
    (loop,) = (loop for loop in instructions.loops(asm["cubin"]) if not loop["called"])
    arithmetic = 2 * loop.get("fma", 0) + sum(loop.get(name, 0) for name in ("fadd", "fmul", "mufu", "convert"))
    assert arithmetic <= 1.25 * work["arithmetic"]


def test_extremes_of_integers_are_no_arithmetic_of_floats():
    found = instructions.loops(repeating("larger", "i32")["cubin"])
    assert found and not any(loop.get("minmax", 0) for loop in found)


TMA = (
    MATMUL.replace(
        "    for start in",
        "    tiles = tl.make_tensor_descriptor(a_ptr, [m, k], [a_stride, 1], [BLOCK_M, BLOCK_K])\n    for start in",
    )
    .replace(
        "tl.load(a_ptrs, mask=(rows[:, None] < m) & (inner[None, :] < k - start), other=0.0)",
        "tiles.load([tile_m * BLOCK_M, start])",
    )
    .replace(
        "tl.load(b_ptrs, mask=(inner[:, None] < k - start) & (columns[None, :] < n), other=0.0)",
        "tiles.load([tile_n * BLOCK_M, start]).T",
    )
)


@pytest.mark.parametrize(("text", "stages"), [(MATMUL, 4), (TMA, 1), (TMA, 4)])
def test_a_loop_says_how_far_its_copies_run_ahead(text, stages):
    cubin = cubin_of(matmul_plan(512, 512, 512, (128, 128, 64), num_warps=8, num_stages=stages, text=text))
    assert max(loop["ahead"] for loop in instructions.loops(cubin)) == stages - 1


def test_a_loop_that_waits_is_told_from_one_that_does_not():
    text = SOFTMAX_THREE_PASSES.replace("in range(0", "in tl.range(0").replace(
        "BLOCK):\n", "BLOCK, num_stages=3):\n", 1
    )
    found = instructions.loops(cubin_of(softmax_plan(64, 4096, 1024, text)))
    assert [loop["inner"] for loop in found] == [0, 0, 0]
    assert sorted(loop["ahead"] for loop in found) == [0, 0, 2]


@pytest.fixture(scope="module")
def by_descriptors():
    return cubin_of(matmul_plan(512, 512, 512, (128, 128, 64), num_warps=8, num_stages=4, text=TMA))


@pytest.mark.parametrize("name", ["softmax", "matmul", "by_descriptors"])
def test_the_table_of_opcodes_is_the_disassemblers(name, request, monkeypatch):
    cubin = request.getfixturevalue(name)
    named = dict(instructions.listing(instructions.disassemble(cubin)))
    told = {address: SM_90.get(low & 0xFFF) for address, low, _ in machine_code.code_words(cubin)[1]}
    assert {address: told[address] or named[address] for address in named} == named
    assert sum(map(bool, told.values())) > 0.95 * len(named)
    if all(told.values()):
        monkeypatch.setattr(instructions, "disassemble", None)
        assert len(instructions.decoded(cubin, {})) == len(named)


def test_what_takes_too_long_to_disassemble_is_the_codes_fault(softmax, tmp_path, monkeypatch):
    script = tmp_path / "nvdisasm"
    script.write_text("#!/bin/sh\nkill -XCPU $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(instructions, "_disassembler", lambda: script)
    with pytest.raises(ValueError, match="took more than 20 s"):
        instructions.disassemble(softmax + b"\0")  # other bytes: listings are kept


def test_what_was_learnt_counts_as_the_disassembler_does(matmul, monkeypatch):
    flags, _ = machine_code.code_words(matmul)
    learnt = {flags: {}}  # not even what the table says
    first = instructions.decoded(matmul, learnt)
    assert learnt[flags] and instructions.decoded(matmul, {flags: {}}) == first

    def refuse(cubin):
        raise AssertionError("known opcodes need no disassembler")

    monkeypatch.setattr(instructions, "disassemble", refuse)
    assert instructions.decoded(matmul, learnt) == first


def test_branch_targets_are_those_of_the_listing():
    cubin = cubin_of(softmax_plan(64, 4096, 1024))
    lines = instructions.disassemble(cubin).splitlines()
    place, listed = 0, {}
    labels = {}
    for line in lines:
        if line.startswith(".L_x"):
            labels[line.split(":")[0]] = place
        elif line.lstrip().startswith("/*") and "*/" in line:
            address = int(line.split("/*")[1].split("*/")[0], 16)
            place = address + 16
            if "BRA `(" in line:
                listed[address] = line.split("`(")[1].split(")")[0]
    found = {one.address: one.target for one in instructions.instructions(cubin) if one.opcode == "BRA"}
    assert listed and found == {a: labels[name] for a, name in listed.items()}


WAIT = 'asm volatile("griddepcontrol.wait;" ::: "memory");'


@needs_nvrtc
@pytest.mark.parametrize(
    ("body", "waits"),
    [
        ("WAIT y[0] = x[0];", True),
        (
            "double part = n > 3 ? 7.0 / n : sqrt(n + 2.0); long long row = blockIdx.x * 77LL / n; WAIT y[row] = part;",
            True,
        ),
        ("__shared__ int s; if (n > 3) atomicAdd(&s, n); __syncthreads(); WAIT y[0] = s;", True),
        ("y[0] = x[0];", False),
        ("y[0] = x[0]; WAIT", False),
        ("if (n > 3) { WAIT } y[0] = x[0];", False),
        ("if (n > 3) return; WAIT y[0] = x[0];", False),
        ("int before = atomicAdd((int*)y, n); WAIT y[1] = before;", False),
        ('asm volatile("prefetch.global.L2 [%0];" :: "l"(x)); WAIT y[0] = x[0];', False),
    ],
)
def test_code_that_waits_for_the_previous_launch(body, waits):
    code = 'extern "C" __global__ void k(const float* x, float* y, int n) { BODY }'.replace("BODY", body)
    other = '\nextern "C" __global__ void a(float* y) { y[0] = 1; }'
    made = nvrtc.load().compile(code.replace("WAIT", WAIT) + other, "k", 90, ())
    assert instructions.waits_first(made.cubin, "k") == waits


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(100), b"not an elf" * 20])
def test_what_is_no_cubin_is_refused(damage):
    for reader in (machine_code.code_hash, machine_code.resources, machine_code.parameter_bytes):
        with pytest.raises(ValueError, match="not a cubin"):
            reader(damage)


def test_damaged_cubins_never_crash_the_reader(matmul):
    draw, refused = random.Random(7), 0
    for _ in range(400):
        damaged = bytearray(matmul[: draw.choice([len(matmul), draw.randrange(len(matmul))])])
        for _ in range(draw.randrange(1, 40)):
            place = draw.randrange(len(damaged)) if draw.random() < 0.5 else draw.randrange(min(64, len(damaged)))
            damaged[place] = draw.randrange(256)
        for reader in (machine_code.code_hash, machine_code.resources, machine_code.parameter_bytes):
            try:
                reader(bytes(damaged))
            except ValueError:
                refused += 1
    assert refused > 0
