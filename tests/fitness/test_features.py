import pytest

from evo_kernel.fitness.costmodel.features import plan_features
from evo_kernel.fitness.costmodel.targets import H200
from evo_kernel.fitness.plan.launch_plan import Launch
from tests.fitness.handmade import HEADER, SOFTMAX, compiled_plan, matmul_plan, softmax_plan

PERSISTENT = (
    HEADER
    + """@triton.jit
def softmax_kernel(x_ptr, y_ptr, n_cols, x_stride, y_stride, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), n_cols, tl.num_programs(0)):
        columns = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * x_stride + columns)
        tl.store(y_ptr + row * y_stride + columns, x)
"""
)


def kernel_of(plan):
    return plan_features(compiled_plan(plan), None, H200).kernels[0]


def test_a_plain_softmax():
    kernel = kernel_of(softmax_plan(4096, 4096, num_warps=8))
    assert (kernel.tensor_core, kernel.data_path, kernel.schedule) == ("none", "load", "plain")
    assert kernel.registers > 0 and kernel.instructions["ld.global"] > 0 and kernel.num_warps == 8


@pytest.mark.parametrize(
    ("block", "stages", "wanted"),
    [
        ((128, 128, 64), 3, ("wgmma", "cp.async", "pipelined")),
        ((128, 128, 64), 1, ("wgmma", "load", "plain")),
        ((32, 32, 32), 3, ("mma", "cp.async", "pipelined")),
    ],
)
def test_matmuls(block, stages, wanted):
    kernel = kernel_of(matmul_plan(4096, 4096, 4096, block, num_stages=stages))
    assert (kernel.tensor_core, kernel.data_path, kernel.schedule) == wanted
    assert kernel.num_stages == stages  # read from its code


def test_a_persistent_grid_is_one_that_fits_and_strides_by_the_programs():
    plan = softmax_plan(4096, 4096, text=PERSISTENT, num_warps=8)
    assert kernel_of(plan).schedule == "plain"  # 4096 programs do not fit at once
    launch = plan.nodes[0]
    assert isinstance(launch, Launch)
    small = plan.model_copy(update={"nodes": (launch.model_copy(update={"grid": (132, 1, 1)}),)})
    assert kernel_of(small).schedule == "persistent"


def test_a_loop_from_the_program_over_a_fixed_stride_is_persistent_too():
    plan = softmax_plan(4096, 4096, text=PERSISTENT.replace("tl.num_programs(0)", "132"), num_warps=8)
    launch = plan.nodes[0]
    assert isinstance(launch, Launch)
    small = plan.model_copy(update={"nodes": (launch.model_copy(update={"grid": (132, 1, 1)}),)})
    assert kernel_of(small).schedule == "persistent"


def test_shares_choose_the_dominant_kernel():
    plan = softmax_plan(64, 4096, text=SOFTMAX)
    compiled = compiled_plan(plan.model_copy(update={"nodes": plan.nodes * 2}))
    features = plan_features(compiled, [0.2, 0.8], H200)
    assert features.launches == 2 and features.aten_nodes == 0 and features.scratch_bytes == 0
    assert features.dominant is features.kernels[1]
    assert features.cell == ("none", "load", "plain", 2)
