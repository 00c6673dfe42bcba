"""Where a tensor's elements lie in memory, by its shape and strides; copies to those of which several are one there."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def convolutions_by_cudnn() -> Iterator[None]:
    """Context in which convolutions of fake tensors lie as cuDNN writes them: PyTorch built without it does not know.

    Channels are last where they are in the picture or the weights.
    """
    import torch
    from torch._prims_common import suggest_memory_format

    def lies(picture: torch.Tensor, weight: torch.Tensor, _: object) -> torch.memory_format:
        last = torch.channels_last_3d if picture.dim() == 5 else torch.channels_last
        either = any(suggest_memory_format(tensor) == last for tensor in (picture, weight))
        return last if either else torch.contiguous_format

    known = torch._C._conv_determine_backend_memory_format
    torch._C._conv_determine_backend_memory_format = known if torch._C._has_cudnn else lies
    try:
        yield
    finally:
        torch._C._conv_determine_backend_memory_format = known


def shares_memory(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether several elements of a dense or sliced tensor lie at one address: it is expanded, or has windows."""
    reach = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride <= reach:
            return True
        reach += (size - 1) * stride
    return False


def dense_strides(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides without gaps, with the axes in this order from the outermost to the innermost."""
    strides, step = [1] * len(shape), 1
    for axis in reversed(order):
        strides[axis], step = step, step * max(1, shape[axis])
    return tuple(strides)


def once(tensor: torch.Tensor) -> torch.Tensor:
    """One position along each axis whose positions are one in memory, as of an expanded tensor."""
    for axis, (step, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True)):
        if step == 0 and size > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor


def write(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy `values`, broadcast, to a tensor of which several elements may be one in memory: expanded, or windows.

    Torch refuses to.
    """
    values = values.expand(target.shape)
    for key in _apart(target):
        target[key].copy_(values[key])


def _apart(tensor: torch.Tensor) -> Iterator[tuple[int | slice, ...]]:
    """Keys of parts that hold all elements together, and none twice: the longest axes stay whole."""
    shape, strides = tensor.shape, tensor.stride()
    whole: list[int] = []
    for axis in sorted((axis for axis in range(tensor.dim()) if strides[axis]), key=lambda axis: -shape[axis]):
        if not shares_memory([shape[n] for n in (*whole, axis)], [strides[n] for n in (*whole, axis)]):
            whole.append(axis)
    ways = [
        [slice(None)] if axis in whole else [slice(0, 1)] if not strides[axis] else range(shape[axis])
        for axis in range(tensor.dim())
    ]
    return itertools.product(*ways)
