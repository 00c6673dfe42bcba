import functools
from pathlib import Path

import pytest

from tests.fitness.handmade import in_interpreter


@functools.cache
def outcomes():
    lines = in_interpreter("from tests.fitness import interpreted; interpreted.main()")
    return lines


CHECKS = [
    "softmax", "matmul", "tf32_is_seen", "bfloat16_arithmetic", "bfloat16_reductions", "float8", "rounding",
    "custom_reductions", "device_functions", "atomics", "descriptors", "aten", "faults",
    "loop_indices_are_tensors", "programs_run_in_a_drawn_order",
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_in_a_clean_process(name):
    assert f"check_{name} ok" in outcomes(), outcomes()


def test_no_check_is_forgotten():
    text = Path(__file__).with_name("interpreted.py").read_text(encoding="utf-8")
    assert sorted(CHECKS) == sorted(line[10:-3] for line in text.splitlines() if line.startswith("def check_"))


def test_without_the_variable_it_refuses():
    script = (
        "import os, tempfile, pathlib; os.environ.pop('TRITON_INTERPRET')\n"
        "from evo_kernel.fitness.interpreting.emulation import Builder, Memory, install\n"
        "try:\n    install(Builder(Memory([4], ['a'])))\nexcept RuntimeError as e:\n    print(e)"
    )
    assert "TRITON_INTERPRET=1 must be set" in in_interpreter(script)
