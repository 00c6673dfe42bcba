"""What the compiler says of kernels that do not fit."""

from __future__ import annotations

import pytest

from evo_kernel.fitness.compile.compiler import Compiler
from evo_kernel.fitness.plan.launch_plan import Binary
from tests.fitness.handmade import matmul_plan


@pytest.fixture(scope="module")
def compiler():
    made = Compiler(90, 60.0)
    made.start()
    yield made
    made.close()


def test_too_much_shared_memory_is_a_sentence_with_both_numbers(compiler):
    fits = matmul_plan(512, 512, 512, (128, 128, 64), num_warps=8).kernels[0]
    many = dict(fits.options) | {"num_stages": 9}
    assert fits.key == fits.model_copy().key
    large = fits.model_copy(update={"options": tuple(many.items())})
    small, told = compiler.compile([fits, large])
    assert isinstance(small, Binary) and small.shared_bytes < 232448
    assert isinstance(told, str)
    assert "bytes of shared memory" in told and "232448" in told and "fewer stages" in told


def test_what_is_given_up_for_want_of_patience_may_be_compiled_later(compiler):
    kernel = matmul_plan(256, 256, 256, (64, 16, 32), num_warps=2).kernels[0]
    (told,) = compiler.compile([kernel], patience_s=0.02)
    assert isinstance(told, str) and "takes over 0.02 s to compile" in told
    (made,) = compiler.compile([kernel])
    assert isinstance(made, Binary)


def test_what_is_not_compiled_in_time_says_what_gives_it_more():
    hasty = Compiler(90, 0.02)
    hasty.start()
    (told,) = hasty.compile([matmul_plan(384, 256, 256, (16, 64, 32), num_warps=2).kernels[0]])
    hasty.close()
    assert isinstance(told, str) and "not compiled within 0.02 s" in told and "judge.deadline_s" in told


def test_what_one_compiler_made_the_next_one_of_the_process_has(compiler):
    kernel = matmul_plan(512, 512, 512, (128, 128, 64), num_warps=8).kernels[0]
    (made,) = compiler.compile([kernel])
    assert isinstance(made, Binary)
    hasty = Compiler(90, 0.02)  # which could not
    assert hasty.compile([kernel]) == [made]
    explaining, other = Compiler(90, 0.02, explain=True), Compiler(80, 0.02)
    for one in (explaining, other):
        one.start()
        (told,) = one.compile([kernel])
        one.close()
        assert isinstance(told, str) and "not compiled within" in told
