"""Runs in a process of its own: Triton launches over CPU tensors. Prints JSON, check -> what went wrong, or empty.

python -P -m tests.fitness.ir.jitted FOLDER        (scratch for sources)
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from pathlib import Path

import torch
import triton
import triton.language as tl

from evo_kernel.fitness.ir.jit import install
from evo_kernel.tasks.probe import within
from evo_kernel.types import CaseKind
from tests.support.launch_kinds import FAILING_ASSERT, KINDS


@triton.jit
def past_the_end(x, y, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(y + at, tl.load(x + at) + tl.load(x + at + 100))


@triton.autotune([triton.Config({"N": 4}, num_warps=2), triton.Config({"N": 8})], key=["n"])
@triton.heuristics({"EVEN": lambda given: given["n"] % 2 == 0})
@triton.jit
def tuned(y, n, N: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(y + at, N + 100 * EVEN, mask=at < n)


@triton.jit
def by_table(table, y, N: tl.constexpr):
    source = tl.load(table + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    at = tl.arange(0, N)
    tl.store(y + tl.program_id(0) * N + at, tl.load(source + at))
    tl.store(source + at, 0.0)


class Reinterpreted:
    """What published code passes for a tensor: an address and a dtype."""

    def __init__(self, base, offset):
        self.dtype, self._address = base.dtype, base.data_ptr() + offset * base.element_size()

    def data_ptr(self):
        return self._address


def check_what_reads_past_an_end_finds_zeros():
    x, y = torch.ones(20), torch.full((32,), 9.0)[4:24]
    past_the_end[(1,)](x, y, N=32)
    assert y.tolist() == [1.0] * 20 and y.untyped_storage()[0] == torch.full((1,), 9.0).untyped_storage()[0]


def check_the_first_configuration_is_taken():
    y = torch.zeros(6)
    tuned[lambda given: (triton.cdiv(6, given["N"]),)](y, 6)
    assert y.tolist() == [104.0] * 6
    assert tuned.fn.warmup(y, 6, N=4, grid=(1,)) is None


def check_addresses_are_handed_over_in_tables():
    x, y = [torch.randn(8) for _ in range(3)], torch.zeros(3, 8)
    want = torch.stack(x)
    table = torch.tensor([one.data_ptr() for one in x])
    by_table[[3]](table, y, N=8)
    assert torch.equal(y, want) and not torch.stack(x).any()


def check_what_is_no_tensor_is_an_address():
    x, y = torch.arange(200.0), torch.zeros(16)
    past_the_end[(1, 1)](Reinterpreted(x, 16), y, N=16)
    assert torch.equal(y, torch.arange(16.0) * 2 + 132)


def check_far_away_is_refused():
    try:
        by_table[(1,)](torch.tensor([12345]), torch.zeros(8), N=8)
    except RuntimeError as error:
        assert "at no buffer's address" in str(error)
    else:
        raise AssertionError("it was not")


def check_an_assertion(folder: Path):
    try:
        solved("assertion that holds", FAILING_ASSERT, folder)
    except RuntimeError as error:
        assert "device_assert" in str(error)
    else:
        raise AssertionError("it holds")


def solved(name: str, text: str, folder: Path) -> None:
    task = KINDS[name].load(folder)
    path = folder / f"{len(list(folder.iterdir()))}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for case in task.cases_of(CaseKind.CHECK):
        inputs = task.inputs(case, torch.Generator().manual_seed(5), "cpu")
        made = module.run(*inputs)
        made = made if isinstance(made, tuple) else (made,)
        assert within(task, made, task.outputs(*inputs), task.truth(*inputs)), case.name


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    install()
    checks = {name: check for name, check in globals().items() if name.startswith("check_")}
    checks["check_an_assertion"] = lambda: check_an_assertion(folder)
    for name, kind in KINDS.items():
        if name not in NOT_TRITON:
            checks[name] = lambda name=name, kind=kind: solved(name, kind.source, folder)
    found = {}
    for name, check in checks.items():
        try:
            check()
            found[name] = ""
        except Exception:  # noqa: BLE001  whatever goes wrong is the answer
            found[name] = traceback.format_exc()[-1500:]
    print(json.dumps(found))


NOT_TRITON = {"Gluon", "CUDA C++ softmax", "CUDA C++ with dynamic shared memory"}

if __name__ == "__main__":
    main(Path(sys.argv[1]))
