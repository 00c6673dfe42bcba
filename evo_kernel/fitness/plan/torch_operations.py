"""Torch operations and tables of plans: which operations a plan may hold, and how a runner replays them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from evo_kernel.fitness.plan.launch_plan import Aten, Constant, Relocation

ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})
_UNSAFE = frozenset({
    "from_file", "set_", "resize", "resize_", "resize_as", "resize_as_", "_resize_output", "_resize_output_", "_print",
    "_cudnn_init_dropout_state", "as_strided_copy", "as_strided_scatter", "as_strided_scatter_",
})  # fmt: skip
"""Operations that access files, or memory of a storage outside the given views."""
_WAITING = frozenset({
    "_ctc_loss", "_unique", "_unique2", "allclose", "bincount", "equal", "linalg_eig",
    "masked_select", "nonzero", "unique_consecutive", "unique_dim",
})  # fmt: skip
"""Operations that wait for the GPU in their middle, or copy to the host, on an H100 under torch 2.11."""


def makes_view(operation: Any) -> bool:
    """Whether an operation (an overload) only returns views, which plans represent without a node."""
    if torch.Tag.inplace_view in operation.tags:
        return operation._schema.name.split("::")[-1] not in _UNSAFE
    returns = operation._schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def fault_of(op: str) -> str:
    """Why plans may not hold `aten.NAME.OVERLOAD`; empty if they may."""
    _, name, overload = op.split(".")
    operation = getattr(getattr(torch.ops.aten, name, None), overload, None)
    if not isinstance(operation, torch._ops.OpOverload):
        return f"{op} is not an operation of torch {torch.__version__}"
    if name in _UNSAFE:
        return f"{op} accesses memory or files beyond its argument tensors"
    if name in ALLOCATIONS or makes_view(operation):
        return f"{op} computes nothing: plans represent it by buffers and views"
    return ""


def waits(node: Aten) -> bool:
    """Whether an operation waits for the GPU in its middle, so that no graph can hold it."""
    name = node.op.split(".")[1]
    if name == "isin" and len(node.views) > 1:  # few test elements are compared, more are sorted
        return node.views[-1].elements >= 10.0 * node.views[0].elements ** 0.145
    return name in _WAITING


@contextlib.contextmanager
def searching(deterministic: bool) -> Iterator[None]:
    """Context in which cuDNN benchmarks its algorithms for every new shape: of all, or of those that repeat every bit.

    PyTorch keeps one algorithm for each shape, dtype and `deterministic`, however it was found. So references in the
    same process search too in the dtypes of kernels, which must repeat every bit; baselines need not.
    """
    flags = torch.backends.cudnn
    before = flags.benchmark, flags.deterministic
    flags.benchmark, flags.deterministic = True, deterministic
    try:
        yield
    finally:
        flags.benchmark, flags.deterministic = before


def results_of(node: Aten, tensors: Sequence[torch.Tensor], device: str) -> Sequence[Any]:
    """An operation's results for these tensors in place of its views."""
    _, name, overload = node.op.split(".")
    args, kwargs = arguments_of(node, tensors, device)
    result = getattr(getattr(torch.ops.aten, name), overload)(*args, **kwargs)
    return result if isinstance(result, (tuple, list)) else [result]


def arguments_of(node: Aten, tensors: Sequence[torch.Tensor], device: str) -> tuple[Sequence[Any], dict[str, Any]]:
    """An operation's arguments by position and by name, with these tensors in place of its views."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            if "view" in value:
                return tensors[value["view"]]
            named = value.get("dtype") or value.get("torch")
            return getattr(torch, named) if named else torch.device(device)
        return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value

    return plain(node.args), {key: plain(value) for key, value in node.kwargs.items()}


def table_of(node: Constant, address: Callable[[Relocation], int] = lambda _: 0) -> torch.Tensor:
    """A constant table as a tensor, with these numbers where it holds addresses."""
    data = torch.frombuffer(bytearray(node.content), dtype=torch.uint8) if node.data else torch.empty(0)
    for one in node.relocations:
        data.view(torch.int64)[one.at] = address(one)
    return data.view(getattr(torch, node.view.dtype)).reshape(node.view.shape)


def addresses_of(node: Constant) -> torch.Tensor:
    """Where a table holds addresses: booleans in its shape."""
    marks = torch.zeros(node.view.elements, dtype=torch.bool)
    marks[[one.at for one in node.relocations]] = True
    return marks.reshape(node.view.shape)
