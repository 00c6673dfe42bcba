"""What the CUDA launcher does before it calls the driver: parameters as bytes, tensor maps, bounds. No GPU needed."""

from __future__ import annotations

import struct

import pytest

from evo_kernel.fitness.plan.launch_plan import (
    Binary,
    Buffer,
    CompiledPlan,
    Copy,
    Descriptor,
    Kernel,
    Launch,
    Plan,
    Pointer,
    Scalar,
    TensorMeta,
    View,
)
from evo_kernel.fitness.runners import launch_limits, parameters
from evo_kernel.fitness.runners.launch_limits import PlanFault
from evo_kernel.fitness.runners.parameters import tensor_map
from evo_kernel.fitness.runners.tensor_map_bytes import TensorMap, mended
from tests.fitness.handmade import empty_ir

H200 = launch_limits.DeviceLimits(arch=90, shared_bytes=232448, threads=1024, sm_count=132)
META = TensorMeta(swizzle=3, elem_size=2, elem_type=10, block_size=(64, 64))


class Places:
    """Buffer n lies at n + 1 MB."""

    def address(self, buffer: int) -> int:
        return (buffer + 1) << 20


def descriptor(**changes) -> Descriptor:
    fields = {"buffer": 0, "dtype": "bfloat16", "shape": (100, 72), "strides": (72, 1), "block": (64, 64)}
    return Descriptor(**{**fields, **changes})


def compiled(args=(), signature=(), grid=(1, 1, 1), block=None, language="triton", options=(), target=90, **binary):
    ir = "" if language == "cuda" else empty_ir("k", [kind for _, kind in signature])
    kernel = Kernel(name="k", code=ir, signature=signature, language=language, options=options)
    made = Binary(
        **{"key": kernel.key, "ir": ir, "symbol": "k", "cubin": b"", "code_hash": "", "num_warps": 4, **binary}
    )
    plan = Plan(
        case="c", target=target, inputs=(), buffers=(Buffer(kind="scratch", bytes=1 << 16),) * 2, kernels=(kernel,),
        nodes=(Launch(kernel=0, grid=grid, args=args, block=block),), outputs=(),
    )  # fmt: skip
    return CompiledPlan(plan=plan, binaries=(made,))


def packed(plan: CompiledPlan, scratch=(0, 0)) -> list[bytes]:
    launch = plan.plan.launches[0]
    return parameters.pack(plan.plan.kernels[0], plan.binaries[0], launch, Places(), scratch, lambda *_: bytes(128))


def test_pointers_numbers_and_scratch():
    args = (Pointer(buffer=1, offset=16), Scalar(type="i32", value=-3), Scalar(type="fp32", value=1e300),
            Scalar(type="bf16", value=1.0), Scalar(type="fp16", value=0.5), Scalar(type="u1", value=True))  # fmt: skip
    kinds = ("*fp32", "i32", "fp32", "bf16", "fp16", "u1")
    signature = tuple((f"p{i}", kind) for i, kind in enumerate(kinds))
    sizes = (8, 4, 4, 2, 2, 1, 8, 8)
    values = packed(compiled(args, signature, parameter_bytes=sizes), scratch=(256, 0))
    assert struct.unpack("<Qif", values[0] + values[1] + values[2]) == ((2 << 20) + 16, -3, float("inf"))
    assert values[3:6] == [b"\x80\x3f", b"\x00\x38", b"\x01"]
    assert struct.unpack("<QQ", values[6] + values[7]) == (256, 0)


def test_sizes_must_be_those_of_the_cubin():
    plan = compiled((Scalar(type="i64", value=1),), (("n", "i64"),), parameter_bytes=(4, 8, 8))
    with pytest.raises(PlanFault, match=r"takes parameters of \[4, 8, 8\] bytes, the plan passes \[8, 8, 8\]"):
        packed(plan)
    with pytest.raises(PlanFault, match="does not fit fp16"):
        packed(compiled((Scalar(type="fp16", value=1e6),), (("x", "fp16"),)))
    for kind, value in (("i32", 1 << 40), ("u32", -1), ("i1", 2)):
        with pytest.raises(ValueError, match=f"is not a value of type {kind}"):
            Scalar(type=kind, value=value)


def test_cuda_kernels_take_no_scratch():
    plan = compiled(
        (Pointer(buffer=0),), (("x", "*fp32"),), block=(64, 2, 1), language="cuda", options=(("num_warps", 4),),
        parameter_bytes=(8,),
    )  # fmt: skip
    assert packed(plan, scratch=(256, 256)) == [struct.pack("<Q", 1 << 20)]


def test_a_descriptor_with_a_tensor_map():
    plan = compiled(
        (descriptor(),), (("d", "tensordesc<bf16[64,64]>"),), parameter_bytes=(128, 4, 4, 8, 8, 8, 8),
        tensordesc_meta=(META,),
    )  # fmt: skip
    values = packed(plan)
    assert [struct.unpack("<i", v)[0] for v in values[1:3]] == [100, 72]
    assert [struct.unpack("<q", v)[0] for v in values[3:5]] == [72, 1]


@pytest.mark.parametrize("flags", [1, 2])
def test_a_descriptor_without_a_tensor_map(flags):
    sizes = (8, *(8,) * 4, *(1,) * flags, 4, 4, 8, 8, 8, 8)
    plan = compiled(
        (descriptor(padding="nan"),), (("d", "tensordesc<bf16[64,64]>"),), parameter_bytes=sizes
    )  # fmt: skip
    values = packed(plan)
    assert struct.unpack("<Q", values[0]) == (1 << 20,) and values[5] == b"\x01"
    assert [struct.unpack("<q", v)[0] for v in values[1:5]] == [100, 72, 72, 1]


def test_the_geometry_of_a_tensor_map():
    made = tensor_map(descriptor(padding="nan"), META, 1 << 20)
    # innermost first, strides in bytes; element type 10 of the device is the host's bfloat16, 9
    assert made == TensorMap(9, 2, (72, 100), (144,), (64, 64), 3, True)
    assert made.reach_bytes == 71 * 2 + 99 * 144 + 1


@pytest.mark.parametrize(
    ("changes", "meta", "address", "reason"),
    [
        ({"strides": (73, 1)}, {}, 0, "multiples of 16 bytes"),
        ({"strides": (144, 2)}, {}, 0, "must be contiguous"),
        ({}, {}, 8, "aligned to 16 bytes"),
        ({}, {"block_size": (64,)}, 0, "one of 1"),
        ({"dtype": "float32"}, {}, 0, "2-byte elements"),
        ({"shape": (0, 72)}, {}, 0, "each must be 1"),
        ({}, {"block_size": (64, 4)}, 0, "has 8 bytes"),
        ({}, {"block_size": (64, 128)}, 0, "wider than its swizzle"),
        ({}, {"elem_type": 7}, 0, "does not have 2 bytes"),
        ({}, {"is_im2col": True}, 0, "im2col"),
    ],
)
def test_maps_that_the_hardware_does_not_have(changes, meta, address, reason):
    with pytest.raises(PlanFault, match=reason):
        tensor_map(descriptor(**changes), TensorMeta(**{**META.model_dump(), **meta}), (1 << 20) + address)


@pytest.mark.parametrize("meta", [{"block_size": (512, 64)}, {"elem_size": 3}, {"swizzle": 9}, {"block_size": ()}])
def test_metadata_is_bounded_when_it_is_read(meta):
    with pytest.raises(ValueError, match="validation error"):
        TensorMeta(**{**META.model_dump(), **meta})


def test_old_drivers_are_mended_for_small_tensors():
    small, large = tensor_map(descriptor(), META, 0), tensor_map(descriptor(shape=(1024, 72)), META, 0)
    bits = b"\xff" * 128
    words = struct.unpack("<16Q", mended(bits, small, 13010))
    assert words[1] == (1 << 64) - 1 - (1 << 21) and all(w == (1 << 64) - 1 for w in (words[0], *words[2:]))
    assert mended(bits, small, 13020) == mended(bits, large, 12080) == bits


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"num_warps": 64}, "2048 threads a block"),
        ({"shared_bytes": 232448, "static_shared_bytes": 16}, "bytes of shared memory"),
        ({"num_ctas": 3}, "a power of two"),
        ({"num_ctas": 16, "grid": (1 << 30, 1, 1)}, "too many blocks"),
        ({"target": 80}, "compiled for sm_80"),
        ({"global_scratch_bytes": 1 << 20, "grid": (1 << 14, 1, 1)}, "16.0 GB of scratch"),
    ],
)
def test_what_the_device_cannot_launch(fields, reason):
    with pytest.raises(PlanFault, match=reason):
        launch_limits.check_plan(compiled(**fields), H200)


def test_what_the_device_can_launch():
    most = {"num_ctas": 16, "shared_bytes": 232448, "num_warps": 32, "grid": (1 << 20, 65535, 65535)}
    assert launch_limits.check_plan(compiled(**most), H200) is None
    for beyond in ({"num_ctas": 12}, {"static_shared_bytes": 16}, {"num_warps": 64}, {"grid": (1 << 30, 1, 1)}):
        with pytest.raises(PlanFault):
            launch_limits.check_plan(compiled(**(most | beyond)), H200)


def test_cooperative_blocks_fit_at_once():
    plan = compiled(grid=(133, 2, 1), cooperative=True)
    launch, binary = plan.plan.launches[0], plan.binaries[0]
    launch_limits.check_cooperative(binary, launch, 3, H200)
    with pytest.raises(PlanFault, match=r"266 blocks, but only 264 fit"):
        launch_limits.check_cooperative(binary, launch, 2, H200)


def test_scratch_is_for_every_block_of_every_cluster():
    plan = compiled(grid=(10, 2, 1), num_ctas=2, global_scratch_bytes=256, global_scratch_align=128)
    assert launch_limits.scratch_needs(plan) == (launch_limits.ScratchNeed(256 * 40, 128, 0, 1),)


def test_blocks_belong_to_cuda_kernels():
    with pytest.raises(ValueError, match="if, and only if, the kernel is CUDA"):
        compiled(block=(32, 1, 1))
    with pytest.raises(ValueError, match="does not have the kernel's 4 warps"):
        compiled(block=(32, 1, 1), language="cuda", options=(("num_warps", 4),))


def test_a_copy_does_not_read_what_it_writes():
    def view(offset: int) -> View:
        return View(buffer=0, offset=offset, shape=(7, 8), strides=(16, 1), dtype="float32")

    Copy(source=view(0), target=view(8))
    Copy(source=view(0), target=view(0))
    with pytest.raises(ValueError, match="reads what it writes"):
        Copy(source=view(1), target=view(0))
