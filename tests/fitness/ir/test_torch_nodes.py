"""What torch operations of a plan make of memory that nobody wrote."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from evo_kernel.fitness.ir.memory import DeviceMemory
from evo_kernel.fitness.ir.nodes import TorchFault, _replay, _results, undefined_of, view_of
from evo_kernel.fitness.plan.launch_plan import Aten, View

FIRST, SECOND = {"view": 0}, {"view": 1}


@pytest.mark.parametrize(
    ("op", "args", "dtype", "made", "undefined"),
    [
        ("aten.lt.Scalar", [FIRST, 2], "int32", "bool", 4),  # true of poison and of 0, not of most numbers
        ("aten.ne.Scalar", [FIRST, 5], "int64", "bool", 4),  # true of almost all numbers
        ("aten.ne.Scalar", [FIRST, 0.0], "float32", "bool", 4),
        ("aten.mul.Scalar", [FIRST, 0], "int32", "int32", 0),
        ("aten.where.self", [{"view": 2}, SECOND, FIRST], "int32", "int32", 2),
        ("aten._foreach_copy_.default", [[FIRST], [SECOND]], "int32", None, 0),
        ("aten._foreach_add_.Scalar", [[FIRST], 1], "int32", None, 4),
    ],
)
def test_what_depends_on_memory_that_nobody_wrote(
    op: str, args: list[Any], dtype: str, made: str | None, undefined: int
) -> None:
    """Of four elements; the first argument is undefined, the second is not, the third is a mask."""
    memory = DeviceMemory()
    kinds: list[tuple[Any, bool]] = [(dtype, False), (dtype, True), ("bool", True), (made or dtype, False)]
    views = [
        View(buffer=memory.add(32, defined=defined), dtype=kind, shape=(4,), strides=(1,)) for kind, defined in kinds
    ]
    view_of(memory.buffers[1], views[1]).copy_(torch.arange(4))
    view_of(memory.buffers[2], views[2]).copy_(torch.tensor([True, True, False, False]))
    output = views[3] if made else None
    _replay(Aten(op=op, views=tuple(views[:3]), args=args, kwargs={}, outputs=(output,)), memory)
    told = output or views[0]
    marks = undefined_of(memory.buffers[told.buffer], told)
    assert (0 if marks is None else int(marks.sum())) == undefined


@pytest.mark.parametrize(
    ("op", "shapes", "numbers", "named", "fails"),
    [
        ("max_pool2d_with_indices_backward.default", [(1, 2, 2), (1, 4, 4)], [0, 5, 10, 15], None, False),
        ("max_pool2d_with_indices_backward.default", [(1, 2, 2), (1, 4, 4)], [0, 5, 10, 16], None, True),
        ("adaptive_max_pool3d_backward.default", [(1, 1, 2, 2), (1, 2, 4, 4)], [0, 5, 10, 31], None, False),
        ("adaptive_max_pool3d_backward.default", [(1, 1, 2, 2), (1, 2, 4, 4)], [0, -1, 10, 31], None, True),
        ("segment_reduce.default", [(8, 3)], [3, 1, 0, 4], "lengths", False),
        ("segment_reduce.default", [(8, 3)], [3, 1, 0, 5], "lengths", True),
        ("segment_reduce.default", [(8, 3)], [9, -9, 4, 4], "lengths", True),
        ("segment_reduce.default", [(8, 3)], [0, 3, 3, 8], "offsets", False),
        ("segment_reduce.default", [(8, 3)], [0, 3, 3, 9], "offsets", True),
    ],
)
def test_indices_that_torch_does_not_look_at_stay_inside(op, shapes, numbers, named, fails):
    indices = torch.tensor(numbers).reshape(-1 if named else shapes[0])
    tensors = [torch.ones(shape) for shape in shapes] + [indices]
    views = tuple(View(buffer=0, dtype="float32", shape=t.shape, strides=t.stride()) for t in tensors)
    told = {"view": len(shapes)}
    if named:
        args, kwargs = [FIRST, "sum"], {named: told, "unsafe": True}
    else:
        sizes = [[2, 2], [2, 2], [0, 0], [1, 1], False] if "with_indices" in op else []
        args, kwargs = [FIRST, SECOND, *sizes, told], {}
    node = Aten(op=f"aten.{op}", views=views, args=args, kwargs=kwargs, outputs=(None,))
    if fails:
        with pytest.raises(TorchFault, match="indices are outside"):
            _results(node, tensors)
    else:
        (made,) = _results(node, tensors)
        assert made.sum() == (24 if named else 4)
