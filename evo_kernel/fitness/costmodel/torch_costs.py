"""What torch operations of a plan move and compute, by the shapes of their tensors."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from evo_kernel.fitness.ir.launch_traffic import LINE_BYTES, SECTOR_BYTES, TorchWork
from evo_kernel.fitness.plan.launch_plan import Aten, Constant, Copy, Fill, View

_AS = {"_addmm_activation": "addmm", "_int_mm": "mm", "addbmm": "baddbmm"}
"""Products for which torch has no formula, and one that multiplies the same tensors."""
with Path(__file__).with_suffix(".toml").open("rb") as _file:
    _TABLES = tomllib.load(_file)
_NAMES = {kind: frozenset(text.split()) for kind, text in _TABLES["names"].items()}
_PASSES, _LOSSES, _FUNCTIONS = _TABLES["passes"], _TABLES["losses"], _TABLES["functions"]
"""Told in torch_costs.toml."""
_NOTHING = TorchWork()
_POWER_FLOPS = 40  # of |a - b|^p, an element
_SORT_BYTES, _SELECTION_BYTES = 52.0, 20.0
"""For each byte of a key: radix sort and selection pass over keys and places for each of its digits.

These and the amounts below were measured on an H100 with 2^22 elements.
"""
_SHORT_SORT = 4096
"""Rows of at most so many elements are sorted by one block each, which passes over its bytes for each digit."""
_UNIQUE_SORTS, _DISTINCT_SORTS = 3.5, 1.7
"""Sorts that `isin` takes, and those where all elements are promised to be different."""
_COMPARED_BYTES = 30.0
"""Of `isin`, for each pair of an element and a test element, where it compares all of them."""
_LEVELS = ((1 << 12, 16), (1 << 18, 48), (1 << 25, 96))
_FAR_LEVEL = 256
"""Of a binary search: bytes of L2's time for each step, by the bytes of the table that the steps so far reach."""
_SEGMENT_BYTES, _SEGMENT_SHARE = 10_700.0, 292.0
"""Bytes of L2's time for each segment, and for each byte of one, since a block reduces it alone."""
_ROW_SHARE = 90.0
"""The same for each byte of a row that a block normalises alone: L2's rate by the 64 bytes a clock of an SM."""
_MOST_THREADS = 1024
"""Of a block."""
_NEAR_BYTES = 1 << 17
"""That a block reads again from L1."""
_PLACES = "cummax", "cummin"
"""Scans of which a block walks even the only row: PyTorch's ScanUtils.cuh."""
_TRAINING_PASSES = 1.5
"""Of a batch norm that computes its statistics."""
_SERIES_FLOPS = 500.0
"""Operations of an element of a series or recurrence."""
_PAIR_FLOPS = 8.0
"""Of a pair of elements of a row."""
_FLOPS_OF_ONE = 1.46
"""Of an instruction, so that `Constants.fp32_share` of the rate is that at which kernels issue instructions."""
_SIMPLE_POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
"""For which torch multiplies or takes roots."""
_GRID_SECTORS = {0: 2, 1: 1, 2: 4}
"""Of an element of `grid_sampler_2d`, by its interpolation: rows of neighbours. Twice as many in three dimensions."""
_SORTED_INDICES = 3072
"""More indices than these torch sorts before it adds up rows that they share."""
_KINDS = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "int8": "int8",
          "float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"}  # fmt: skip


@dataclass(frozen=True)
class TorchCost:
    """One node that is no kernel launch."""

    moved_bytes: float  # read and written
    flops: float = 0.0  # of matrix products
    kind: str = ""  # of their operands, as tl.dot's
    sector_bytes: float = 0.0  # through the L2: sectors of what is walked together, windows of pooling, rows of bags
    crowd: float = 0.0  # updates of one address, or of one thread's sum, one after the other
    steps: float = 0.0  # loads that one thread waits for, one after the other


def torch_cost(node: Fill | Copy | Constant | Aten, inside: TorchWork = _NOTHING) -> TorchCost:
    """Lines of all views, sectors of what is walked together, flops of products and attention by torch's formulas.

    `inside`: what it does that depends on the numbers in its tensors.
    """
    if isinstance(node, Aten):
        made = [view for view in node.outputs if view]
        views = (*node.views, *made)
    else:
        made = [node.target if isinstance(node, Copy) else node.view]
        views = (node.source, node.target) if isinstance(node, Copy) else (node.view,)
    moved = float(sum(map(_line_bytes, views)))
    flops = _flops(node) if isinstance(node, Aten) else 0.0
    if isinstance(node, Aten) and flops:
        return TorchCost(moved, flops, _operand_kind(node))
    sectors = _sector_bytes(views, max(made, key=lambda view: view.elements, default=views[0])) if views else 0.0
    if isinstance(node, Aten):
        sectors = max(sectors, _window_bytes(node), _bag_bytes(node), _gathered_bytes(node), _searched_bytes(node))
        sectors = max(sectors, _counted_bytes(node), _segment_bytes(node), _tap_bytes(node), _row_bytes(node))
        base = node.op.split(".")[1].rstrip("_")
        moved = max(moved * _passes(node, base), _sorted_bytes(node, base, moved))
        made_elements = float(sum(view.elements for view in made))
        if flops := _function_flops(node, base, made_elements) + _FLOPS_OF_ONE * inside.instructions:
            return TorchCost(moved, flops, "fp32", sectors)
        if base in _NAMES["pairs"]:
            rows = node.views[0]
            return TorchCost(moved, _PAIR_FLOPS * rows.elements * max(rows.shape[-1:], default=1), "fp32", sectors)
        if base in _NAMES["series"] or "_polynomial_" in base:
            return TorchCost(moved, _SERIES_FLOPS * max((view.elements for view in made), default=0), "fp32", sectors)
        return TorchCost(moved, sector_bytes=sectors, crowd=max(inside.crowd, _chain(node)), steps=_steps(node, base))
    return TorchCost(moved, sector_bytes=sectors)


def _passes(node: Aten, base: str) -> float:
    """How often the bytes of an operation take the time of a copy."""
    if base in _LOSSES and node.views:
        made = max((view.elements for view in node.outputs if view), default=0)
        return _LOSSES[base][made >= max(view.elements for view in node.views)]
    if base in _NAMES["batch_norms"] and _trains(node):
        return _TRAINING_PASSES
    return _PASSES.get(base, 1)


def _trains(node: Aten) -> bool:
    """Whether a batch norm computes its statistics."""
    return isinstance(node.args, list) and any(one is True for one in node.args)


def _operand_kind(node: Aten) -> str:
    """Of the largest operand: others may be masks or sums, and a plan may list views that the operation never gets."""
    named = [node.views[one] for one in _named_views([node.args, node.kwargs]) if one < len(node.views)]
    operands = [view for view in named if view.dtype in _KINDS]
    return _KINDS[max(operands, key=lambda view: view.elements).dtype] if operands else "fp32"


def _named_views(told: Any) -> Iterator[int]:
    if isinstance(told, dict) and isinstance(told.get("view"), int):
        yield told["view"]
    elif isinstance(told, dict | list):
        for one in told.values() if isinstance(told, dict) else told:
            yield from _named_views(one)


def _window_bytes(node: Aten) -> float:
    """What pooling reads: a window for each output."""
    made = next((view for view in (*node.outputs, *node.views) if view), None)
    return _window(node) * max(made.elements, 1) * node.views[0].item_bytes if made and node.views else 0.0


def _window(node: Aten) -> float:
    """Elements of a window of pooling; of its gradient, outputs whose windows hold an element. 0 for others."""
    base = node.op.split(".")[1].rstrip("_")
    if "_pool" not in base or not node.views:
        return 0.0
    given, made = node.views[0], next((view for view in node.outputs if view), node.views[0])
    axes = int(base[base.index("d", base.index("_pool")) - 1])
    first = 2 if base.endswith("_backward") else 1
    size, step = (_sizes(node, first + n, name, axes) for n, name in enumerate(("kernel_size", "stride")))
    if "adaptive" in base or not size:
        window = max(1.0, given.elements / max(1, made.elements))
    else:
        window = max(1.0, size / (step or size)) if first == 2 else size
    return min(window, float(given.elements))


def _sizes(node: Aten, position: int, name: str, axes: int) -> float:
    """Product of the sizes that an argument holds, one for each axis or one for all; 0 where it holds none."""
    told = _told(node, position, name)
    sizes = [one for one in (told if isinstance(told, list) else [told]) if isinstance(one, int) and one > 0]
    return float(math.prod(sizes) if len(sizes) > 1 else sizes[0] ** axes) if sizes else 0.0


def _told(node: Aten, position: int, name: str) -> Any:
    """An argument as the plan has it, None where it is left out."""
    told = node.kwargs.get(name) if isinstance(node.kwargs, dict) else None
    return node.args[position] if told is None and isinstance(node.args, list) and position < len(node.args) else told


def _chain(node: Aten) -> float:
    """Elements that one thread, or one address, adds up or compares, one after the other, at least: of a window of
    pooling, of an image that was sampled, of a bag."""
    base, made = node.op.split(".")[1].strip("_"), next((view for view in node.outputs if view), None)
    if not node.views or made is None:
        return 0.0
    if base.startswith(("upsample_", "grid_sampler_")) and base.endswith("_backward"):
        return node.views[0].elements / max(1, made.elements)
    if base in ("embedding_bag", "embedding_bag_forward_only"):
        return _indices(node) / max(1, *made.shape[:1])
    return _window(node)


def _steps(node: Aten, base: str) -> float:
    """Loads for which a thread waits, one after the other, at least: along any axis but the last, in a window, or of
    what its block walks alone."""
    views = [view for view in (*node.views, *node.outputs) if view]
    if not node.views or not views:
        return 0.0
    base, whole = base.strip("_"), max(views, key=lambda view: view.elements)
    where = _TABLES["rows"].get(base, [0, ""])
    if where[1] == "scan":
        return float(_scanned(node)[1])
    if "softmax" in base and where[1] == "dim":
        return _early_softmax_steps(whole, _told(node, *where), base)
    if "_pool" in base and not base.endswith("backward"):
        return _window_steps(node)
    if base not in _TABLES["walks"] or ("batch_norm" in base and not _trains(node)):
        return 0.0
    axes, threads, latencies = _TABLES["walks"][base]
    if base == "weight_norm_interface" and _told(node, 2, "dim"):  # rows lie side by side
        return 0.0
    rows = math.prod(whole.shape[axis] for axis in range(len(whole.shape))[slice(*axes)])
    return -(-whole.elements // max(1, rows * threads)) * latencies


def _window_steps(node: Aten) -> float:
    """Sectors of a window of pooling, row by row."""
    given, made = node.views[0], next((view for view in node.outputs if view), node.views[0])
    size = _told(node, 1, "kernel_size")
    width = size[-1] if isinstance(size, list) and size else size
    if "adaptive" in node.op or not isinstance(width, int):
        width = max(given.shape[-1:], default=1) // max(1, *made.shape[-1:])
    return _window(node) / max(1, min(width, SECTOR_BYTES // given.item_bytes))


def _early_softmax_steps(whole: View, told: Any, base: str) -> float:
    """Of a softmax along any axis but the last, whose block has rows side by side and few threads or one for each:
    PyTorch's SoftMax.cu."""
    if not isinstance(told, int) or not whole.shape:
        return 0.0
    axis = told % len(whole.shape)
    length, beside = whole.shape[axis], min(_MOST_THREADS, math.prod(whole.shape[axis + 1 :]))
    if beside == 1:
        return 0.0
    threads = 1
    while beside <= 64 <= length and 2 * beside * threads <= _MOST_THREADS and 2 * threads <= length:
        threads *= 2
    again = length * beside * whole.item_bytes > _NEAR_BYTES  # else what is read again is in L1
    return -(-length // threads) * ((2 if base.endswith("backward_data") else 3) if again else 1)


def _indices(node: Aten) -> int:
    """Elements of the largest tensor of integers."""
    return max((view.elements for view in node.views if view.dtype in ("int32", "int64")), default=0)


def _row_bytes(node: Aten) -> float:
    """Of a softmax, norm or scan, of which a block walks each row alone: few long rows are slow. One block
    adds up a loss."""
    base = node.op.split(".")[1].strip("_")
    if base == "nll_loss_forward" and node.views and _told(node, 3, "reduction"):
        row = max(node.views[0].shape[-1:], default=1) * node.views[0].item_bytes
        return float(_indices(node) * (8 + min(SECTOR_BYTES, row))) * _ROW_SHARE
    where = _TABLES["rows"].get(base)
    views = [view for view in (*node.views, *node.outputs) if view]
    if where is None or not views:
        return 0.0
    whole, told = max(views, key=lambda view: view.elements), _told(node, *where)
    if isinstance(told, list):
        length = math.prod(one for one in told if isinstance(one, int))
    elif where[1] == "group":
        length = whole.elements / max(1, whole.shape[0] * told)
    elif where[1] == "scan":
        length, _ = _scanned(node)
    else:
        length = whole.shape[told] if whole.shape else 1
    return float(length * sum(view.item_bytes for view in views if view.elements == whole.elements)) * _ROW_SHARE


def _scanned(node: Aten) -> tuple[int, int]:
    """How many elements of a scan a block walks alone, along the last axis, and how many a thread, along others. Of
    the only row there is neither, but where places are told too."""
    whole = max((view for view in (*node.views, *node.outputs) if view), key=lambda view: view.elements)
    told, axes = _told(node, 1, "dim"), len(whole.shape)
    axis = told % axes if isinstance(told, int) and axes else axes - 1
    length = whole.shape[axis] if axes else 1
    if length == whole.elements and node.op.split(".")[1].rstrip("_") not in _PLACES:
        return 0, 0
    return (length, 0) if axis == axes - 1 else (0, length)


def _bag_bytes(node: Aten) -> float:
    """What `embedding_bag` reads: a row for each index, which it adds up where others would write it."""
    if "embedding_bag" not in node.op or not node.outputs or not node.outputs[0]:
        return 0.0
    made = node.outputs[0]
    return float(_indices(node) * made.shape[-1] * made.item_bytes) if made.shape else 0.0


def _gathered_bytes(node: Aten) -> float:
    """Sectors of what indices pick, each a run of its own. Indices are integers, or a grid, among the views."""
    if node.op.split(".")[1].rstrip("_") not in _NAMES["gathers"] or len(node.views) < 2:
        return 0.0
    table, *others = node.views
    picked = max((view for view in (*others, *filter(None, node.outputs))), key=lambda view: view.elements)
    picks = max((view.elements for view in others if view.dtype in ("int32", "int64")), default=picked.elements)
    run = max(1, picked.elements // max(1, picks)) * table.item_bytes
    sectors = -(-run // SECTOR_BYTES)
    if node.op.split(".")[1] in ("grid_sampler_2d", "grid_sampler_3d"):
        mode = node.args[2] if isinstance(node.args, list) and len(node.args) > 2 else None
        sectors *= _GRID_SECTORS.get(mode if isinstance(mode, int) else 0, 4) * (2 if "3d" in node.op else 1)
    return float(max(1, picks) * sectors * SECTOR_BYTES)


def _function_flops(node: Aten, base: str, elements: float) -> float:
    """Of a pointwise function, where its instructions may take longer than moving its elements."""
    base = base.removeprefix("_foreach_")
    if base not in _FUNCTIONS or not node.views:
        return 0.0
    if base == "pow" and node.op.endswith("Tensor_Scalar") and isinstance(node.args, list):
        exponent = node.args[1] if len(node.args) > 1 else None
        if isinstance(exponent, int | float) and float(exponent) in _SIMPLE_POWERS:
            return 0.0
    is_double = any(view.dtype == "float64" for view in node.views)
    return _FLOPS_OF_ONE * _FUNCTIONS[base][is_double] * elements


def _tap_bytes(node: Aten) -> float:
    """What upsampling reads, or adds up for a gradient: several elements for each of the larger image."""
    base = node.op.split(".")[1].strip("_")
    taps = _TABLES["taps"]
    name = next((name for name in taps if base.startswith(f"upsample_{name}")), "")
    images = [view for view in (*node.views, *node.outputs) if view]
    if not name or not images:
        return 0.0
    large = max(images, key=lambda view: view.elements)
    return float(taps[name] * large.elements * large.item_bytes)


def _argument(node: Aten, position: int, name: str) -> View | None:
    """The tensor that an operation gets as an argument."""
    told = _told(node, position, name)
    place = next(_named_views(told), None)
    return node.views[place] if place is not None and place < len(node.views) else None


def _sorted_bytes(node: Aten, base: str, moved: float) -> float:
    """What sorts and selections pass over, which `moved` bytes once."""
    if _adds_at_indices(node, base):
        indices = _indices(node)
        return indices * 8 * _SORT_BYTES if indices > _SORTED_INDICES else 0.0
    if base not in _NAMES["sorts"] | _NAMES["selections"]:
        return 0.0
    if base == "isin":
        return _membership_bytes(node)
    keys = max((*node.views, *filter(None, node.outputs)), key=lambda view: view.elements)
    passes = moved * max((view.item_bytes for view in node.views), default=1)
    if base == "sort" and len(keys.shape) > 1 and max(keys.shape) <= _SHORT_SORT:
        return passes
    each = _SELECTION_BYTES if base in _NAMES["selections"] else _SORT_BYTES
    return max(passes, keys.elements * keys.item_bytes * each)


def _adds_at_indices(node: Aten, base: str) -> bool:
    """Whether rows with one index are added up, for which torch sorts the indices and their places."""
    if base in ("index_put", "_unsafe_index_put"):
        return (node.kwargs.get("accumulate") if isinstance(node.kwargs, dict) else None) is True or (
            isinstance(node.args, list) and len(node.args) > 3 and node.args[3] is True
        )
    return base in ("embedding_dense_backward", "_unsafe_masked_index_put_accumulate")


def _membership_bytes(node: Aten) -> float:
    """Of `isin`: torch compares with few test elements one after the other, and sorts with more."""
    elements, tests = (_argument(node, place, name) for place, name in enumerate(("elements", "test_elements")))
    if elements is None or tests is None:  # of a scalar
        return 0.0
    if tests.elements < 10.0 * elements.elements**0.145:
        return float(elements.elements * tests.elements) * _COMPARED_BYTES
    distinct = isinstance(node.kwargs, dict) and node.kwargs.get("assume_unique") is True
    keys = float(elements.elements + tests.elements) * max(elements.item_bytes, tests.item_bytes)
    return keys * _SORT_BYTES * (_DISTINCT_SORTS if distinct else _UNIQUE_SORTS)


def _searched_bytes(node: Aten) -> float:
    """Of binary searches: each element takes one step after the other through its table."""
    base, made = node.op.split(".")[1].rstrip("_"), [view for view in node.outputs if view]
    if base not in ("searchsorted", "bucketize") or not made:
        return 0.0
    table = _argument(node, *((0, "sorted_sequence") if base == "searchsorted" else (1, "boundaries")))
    table = table or max(node.views, key=lambda view: view.elements, default=made[0])
    reached, taken = table.item_bytes, 0
    for _ in range(max(table.shape[-1:], default=1).bit_length()):
        reached *= 2
        taken += next((step for most, step in _LEVELS if reached <= most), _FAR_LEVEL)
    return float(taken) * made[0].elements


def _counted_bytes(node: Aten) -> float:
    elements = max((view.elements for view in node.views), default=0)
    return float(_TABLES["counted_bytes"].get(node.op.split(".")[1].rstrip("_"), 0) * elements)


def _segment_bytes(node: Aten) -> float:
    """Of a reduction of segments: all of them, or a mean one by itself."""
    made = [view for view in node.outputs if view]
    if node.op.split(".")[1] != "segment_reduce" or not made or not node.views:
        return 0.0
    given, segments = max(node.views, key=lambda view: view.elements), max(1, made[0].elements)
    return max(segments * _SEGMENT_BYTES, given.elements / segments * given.item_bytes * _SEGMENT_SHARE)


def _line_bytes(view: View) -> float:
    """Of the different lines that a view covers, as a kernel pays for them; never less than of its elements.

    Runs of bytes with gaps shorter than a line between them are one run.
    """
    asked, run, runs = view.elements * view.item_bytes, view.item_bytes, min(1, view.elements)
    axes = zip(view.strides, view.shape, strict=True)
    for step, size in sorted((stride * view.item_bytes, size) for stride, size in axes):
        if runs == 1 and step < run + LINE_BYTES:
            run += (size - 1) * step
        elif step:
            runs *= size
    low, high = view.span()
    return float(max(asked, min(high - low, runs * -(-run // LINE_BYTES) * LINE_BYTES)))


def _sector_bytes(views: Sequence[View], target: View) -> float:
    """Of the views that are walked element by element with the target, as torch copies, adds and concatenates.

    Threads lie side by side along the axis along which the target's elements do. Others are read in their own order.
    """
    long = [axis for axis, size in enumerate(target.shape) if size > 1]
    axis = min(long, key=lambda axis: target.strides[axis], default=0) - len(target.shape)
    found = 0.0
    for view in views:
        sizes = zip(reversed(view.shape), reversed(target.shape), strict=False)
        if len(view.shape) > len(target.shape) or any(size > whole for size, whole in sizes):
            continue
        step = view.strides[axis] if 0 < -axis <= len(view.shape) and view.shape[axis] > 1 else 1
        found += view.elements * min(SECTOR_BYTES, max(1, step) * view.item_bytes)
    return found


def unpriced(node: Aten) -> bool:
    """Whether nothing tells what an operation computes: it has no formula, and its bytes do not say."""
    import torch

    name = node.op.split(".")[1]
    base = name.rstrip("_").removeprefix("_foreach_")
    if base in _NAMES["loops"]:
        return True
    if base in _NAMES["by_bytes"] or flop_formula(name) is not None:
        return False
    packets = [getattr(torch.ops.aten, known) for known in (name, base) if hasattr(torch.ops.aten, known)]
    return not any(torch.Tag.pointwise in getattr(one, kind).tags for one in packets for kind in one.overloads())


def flop_formula(name: str) -> Callable[..., int] | None:
    import torch
    from torch.utils.flop_counter import flop_registry

    known = name.rstrip("_")
    if known == "_cdist_forward":
        return _distances
    if known in _NAMES["linear_algebra"]:
        return partial(_one_product, times=_TABLES["products"].get(known, 1))
    return flop_registry.get(getattr(torch.ops.aten, _AS.get(known, known), None))


def _one_product(first: Any, *others: Any, out_val: Any, times: int = 1, **_: Any) -> int:
    """Twice the elements of the largest tensor, by the columns of the first one, so many times."""
    outputs = out_val if isinstance(out_val, list) else [out_val]
    largest = max(one.numel() for one in (first, *others, *outputs) if hasattr(one, "numel"))
    return 2 * times * largest * (first.shape[-1] if first.shape else 1)


def _distances(first: Any, second: Any, power: float = 2.0, *_: Any, out_val: Any, **__: Any) -> int:
    """Between the rows of two matrices: as a product, or element by element where the power is not 2."""
    return 2 * out_val.numel() * first.shape[-1] * (1 if power == 2.0 else _POWER_FLOPS)


def _flops(node: Aten) -> float:
    """0 for an operation without a formula. Arguments that do not fit it are priced as one product of all operands."""
    import torch

    def empty(view: View) -> torch.Tensor:
        return torch.empty(view.shape, device="meta")

    def value(told: Any) -> Any:
        if isinstance(told, dict):
            return empty(node.views[told["view"]]) if "view" in told else None
        return [value(one) for one in told] if isinstance(told, list) else told

    formula = flop_formula(node.op.split(".")[1])
    outputs = [empty(view) for view in node.outputs if view]
    if formula is None or not outputs:
        return 0.0
    named = {name: value(told) for name, told in node.kwargs.items()}
    try:
        return max(0.0, float(formula(*value(node.args), **named, out_val=outputs if outputs[1:] else outputs[0])))
    except Exception:  # noqa: BLE001 (arguments as a candidate made them)
        return float(_one_product(*map(empty, node.views), out_val=outputs)) if node.views else 0.0
