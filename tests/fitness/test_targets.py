import pytest

from evo_kernel.errors import UserError
from evo_kernel.fitness.costmodel.targets import H200, TARGETS, occupancy, target_for
from evo_kernel.types.gpus import MODELED_GPUS, label_of


def test_every_target_is_found_by_its_capability():
    assert {target_for(arch).arch for arch in TARGETS} == set(TARGETS)
    assert target_for(90) is H200


def test_an_unknown_capability_names_the_known_ones():
    with pytest.raises(UserError, match="90"):
        target_for(75)


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "blocks", "limiter"),
    [
        (32, 0, 8, 8, "threads"),
        (255, 0, 8, 1, "registers"),
        (128, 0, 4, 4, "registers"),
        (40, 98304, 8, 2, "shared memory"),
        (16, 0, 1, 32, "blocks"),
        (64, 232448, 4, 1, "shared memory"),
    ],
)
def test_occupancy_on_an_h200(registers, shared, warps, blocks, limiter):
    found = occupancy(H200, registers, shared, warps)
    assert (found.blocks_per_sm, found.limiter) == (blocks, limiter)
    assert found.warps_per_sm == blocks * warps


def test_a_kernel_that_does_not_fit_has_no_blocks():
    assert occupancy(H200, 32, 232449, 4).blocks_per_sm == 0
    assert occupancy(H200, 256, 0, 4).blocks_per_sm == 0


def test_labels_name_the_gpu_that_is_modeled():
    assert {arch: target.name for arch, target in TARGETS.items()} == {
        arch: f"NVIDIA {name}" for arch, name in MODELED_GPUS.items()
    }
    assert [label_of("modeled", f"sm_{arch}") for arch in (80, 90, 100)] == [
        "modeled for an A100-SXM4-80GB (sm_80)", "modeled for an H200 (sm_90)", "modeled for a B200 (sm_100)"
    ]  # fmt: skip
    assert (
        label_of("measured", "NVIDIA H200") == "measured (NVIDIA H200)" and label_of("modeled", "x") == "modeled for x"
    )
