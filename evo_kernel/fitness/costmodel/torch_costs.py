"""What torch operations of a plan move and compute, by the shapes of their tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evo_kernel.fitness.ir.launch_traffic import LINE_BYTES, SECTOR_BYTES
from evo_kernel.fitness.plan.launch_plan import Aten, Constant, Copy, Fill, View

_AS = {"_addmm_activation": "addmm", "_int_mm": "mm", "addbmm": "baddbmm"}
"""Products for which torch has no formula, and one that multiplies the same tensors."""
_LINEAR_ALGEBRA_NAMES = """
    _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd cholesky
    cholesky_inverse cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_householder_product linalg_inv_ex
    linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp
    linalg_qr linalg_solve_triangular ormqr triangular_solve
"""
_LINEAR_ALGEBRA = frozenset(_LINEAR_ALGEBRA_NAMES.split())
"""Priced as products of their operands, one where `_PRODUCTS` does not say how many."""
_PRODUCTS = {"linalg_matrix_exp": 8, "_linalg_svd": 10, "_linalg_eigh": 10, "_linalg_eigvals": 10, "linalg_eig": 25}
"""Terms of a series and squarings; sweeps of an iteration (Golub and Van Loan, Matrix Computations, 4th ed.)."""
_GATHERS_NAMES = """
    _unsafe_index _unsafe_index_put embedding embedding_dense_backward gather grid_sampler_2d grid_sampler_3d index
    index_add index_copy index_put index_reduce index_select put scatter scatter_add scatter_reduce take
"""
_GATHERS = frozenset(_GATHERS_NAMES.split())
_POWER_FLOPS = 40  # of |a - b|^p, an element
_NAMES = """
    _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward _aminmax
    _batch_norm_no_update _batch_norm_with_update _chunk_cat _conj_copy _copy_from _embedding_bag
    _embedding_bag_forward_only _fft_c2c _fft_c2r _fft_r2c _foreach_norm _fused_adagrad _fused_adam _fused_adamw
    _fused_dropout _fused_rms_norm _fused_rms_norm_backward _fused_sgd _log_softmax _log_softmax_backward_data
    _masked_scale _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _prelu_kernel _prelu_kernel_backward _reshape_copy _safe_softmax _softmax _softmax_backward_data
    _thnn_fused_gru_cell _thnn_fused_lstm_cell _to_copy _unique _unique2 _unsafe_index _unsafe_index_put
    _unsafe_masked_index _unsafe_masked_index_put_accumulate _unsafe_view _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d _weight_norm_interface _weight_norm_interface_backward
    adaptive_avg_pool1d adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d
    adaptive_max_pool3d_backward addmv addr affine_grid_generator alias_copy all allclose amax amin aminmax any arange
    argmax argmin avg_pool1d avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward batch_norm_backward
    bernoulli binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits bincount block_diag
    bucketize cat channel_shuffle clone col2im complex constant_pad_nd copy count_nonzero cudnn_batch_norm
    cudnn_batch_norm_backward cummax cummin cumprod cumsum detach_copy diag_embed diagonal_backward diagonal_copy
    diagonal_scatter dist dot embedding embedding_dense_backward expand_copy exponential eye fill flip floor_divide
    frexp full full_like gather geometric glu glu_backward grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d
    grid_sampler_3d_backward hardsigmoid_backward hardswish hardswish_backward histc huber_loss huber_loss_backward
    im2col index index_add index_copy index_fill index_put index_reduce index_select isin kthvalue leaky_relu_backward
    lift_fresh_copy linalg_cross linalg_vector_norm linspace log_sigmoid_backward log_sigmoid_forward log_softmax
    logcumsumexp logspace logsumexp masked_fill masked_scatter masked_select max max_pool2d_with_indices
    max_pool2d_with_indices_backward max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d
    max_unpool3d mean median min mish_backward mode mse_loss mse_loss_backward multi_margin_loss
    multilabel_margin_loss_forward multinomial mv nanmedian nansum narrow_copy native_batch_norm
    native_batch_norm_backward native_dropout native_dropout_backward native_group_norm native_group_norm_backward
    native_layer_norm native_layer_norm_backward new_full new_ones new_zeros nll_loss2d_backward nll_loss2d_forward
    nll_loss_backward nll_loss_forward nonzero nonzero_static norm normal ones ones_like permute_copy pixel_shuffle
    pixel_unshuffle poisson polar prod put rand rand_like randint randint_like randn randn_like random randperm
    reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d
    reflection_pad3d_backward renorm repeat repeat_interleave replication_pad1d replication_pad1d_backward
    replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward roll rot90
    rrelu_with_noise rrelu_with_noise_backward scalar_tensor scatter scatter_add scatter_reduce searchsorted
    segment_reduce select_backward select_copy select_scatter slice_backward slice_copy slice_scatter smooth_l1_loss
    smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softmax softplus_backward softshrink_backward
    sort split_copy split_with_sizes_copy squeeze_copy stack std std_mean sum t_copy take topk trace transpose_copy
    tril tril_indices triu triu_indices unbind_copy unfold_backward unfold_copy uniform unique_consecutive unique_dim
    unsafe_split unsafe_split_with_sizes unsqueeze_copy upsample_bicubic2d upsample_bicubic2d_backward
    upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d
    upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d
    upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward var var_mean vdot
    view_as_complex_copy view_as_real_copy view_copy where zero zeros zeros_like
"""
_BY_BYTES = frozenset(_NAMES.split())
"""Operations that take the time of their bytes, or nearly: they reduce, move, sort, draw or look up."""
_SORTS = frozenset(["_unique", "_unique2", "isin", "mode", "randperm", "sort", "unique_dim"])
_SELECTIONS = frozenset(["kthvalue", "median", "nanmedian", "topk"])
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
_COUNTED_BYTES = {"bincount": 352, "histc": 128}
"""Bytes of L2's time for each counted element."""
_SEGMENT_BYTES, _SEGMENT_SHARE = 10_700.0, 292.0
"""Bytes of L2's time for each segment, and for each byte of one, since a block reduces it alone."""
_PASSES = {
    "unique_consecutive": 4, "cumsum": 7, "cumprod": 7, "logcumsumexp": 12, "cummax": 6, "cummin": 6,
    "logsumexp": 6, "dist": 2, "_safe_softmax": 2, "count_nonzero": 1.5, "renorm": 1.5, "constant_pad_nd": 1.5,
    "native_group_norm": 1.5,
}  # fmt: skip
"""How often the bytes of an operation take the time of a copy. Of those that PyTorch composes of others, which write
their results to memory: what these move, by its source."""
_LOSSES = {
    "binary_cross_entropy_with_logits": (6, 4), "soft_margin_loss": (5, 3), "binary_cross_entropy": (2, 1),
    "huber_loss": (2, 1), "mse_loss": (2, 1), "smooth_l1_loss": (2, 1),
}  # fmt: skip
"""The same of losses that are added up, and of those that are not."""
_IN_TRAINING = frozenset(["_native_batch_norm_legit", "cudnn_batch_norm", "native_batch_norm"])
_TRAINING_PASSES = 1.5
"""Of a batch norm that computes its statistics."""
_SERIES = frozenset(["igamma", "igammac", "polygamma", "special_zeta"])
_SERIES_FLOPS = 500.0
"""Operations of an element of what is summed as a series, or by a recurrence as special polynomials are."""
_PAIRS = frozenset(["multilabel_margin_loss_backward", "multilabel_margin_loss_forward"])
_PAIR_FLOPS = 8.0
"""Of a pair of elements of a row."""
_FLOPS_OF_ONE = 1.46
"""Of an instruction, so that `Constants.fp32_share` of the rate is that at which kernels issue instructions."""
_FUNCTIONS_TEXT = """
    acos 24 136; acosh 72 336; asin 24 120; asinh 120 368; atan2 60 232; atanh 48 264; digamma 120 300; erf 32 128;
    erfc 48 176; erfinv 96 320; float_power 96 264; fmod 72 136; gelu 40 140; i0 64 192; lgamma 216 712; log1p 32 232;
    log_sigmoid_forward 60 320; logaddexp 60 320; logaddexp2 60 320; mish 70 450; pow 96 264; remainder 104 152;
    sinh 40 216; softplus 60 320; special_airy_ai 300 900; special_bessel_j0 105 470; special_bessel_j1 97 470;
    special_bessel_y0 230 1000; special_bessel_y1 250 1100; special_entr 40 110; special_erfcx 72 240;
    special_i0e 64 192; special_i1 64 192; special_i1e 64 192; special_log_ndtr 150 400;
    special_modified_bessel_i0 64 192; special_modified_bessel_i1 64 192;
    special_modified_bessel_k0 110 350; special_modified_bessel_k1 110 350;
    special_ndtri 150 600; special_scaled_modified_bessel_k0 110 350; special_scaled_modified_bessel_k1 110 350;
    special_spherical_bessel_j0 60 300; special_xlog1py 50 260; xlogy 50 130
"""
_FUNCTIONS = {
    name: (float(single), float(double))
    for name, single, double in (entry.split() for entry in _FUNCTIONS_TEXT.split(";"))
}
"""Instructions of a thread for an element of float32 and narrower, and of float64, where moving it does not take longer
in any case: those that Triton 3.9 and ptxas make for sm_90 of the same function, less a copy's, without code for rare
arguments. Of functions that CUDA's library lacks (digamma, ndtri, ...) those of their terms."""
_SIMPLE_POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
"""For which torch multiplies or takes roots."""
_TAPS = {"linear1d": 2, "bilinear2d": 4, "bicubic2d": 16, "trilinear3d": 8}
"""Elements that an element of an upsampled image is made of."""
_GRID_SECTORS = {0: 2, 1: 1, 2: 4}
"""Of an element of `grid_sampler_2d`, by its interpolation: rows of neighbours. Twice as many in three dimensions."""
_LOOPS = frozenset(["gcd", "lcm"])
"""Pointwise operations that loop until values end it."""
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


def torch_cost(node: Fill | Copy | Constant | Aten, looped: float = 0.0) -> TorchCost:
    """Lines of all views, sectors of what is walked together, flops of products and attention by torch's formulas.

    `looped`: instructions of threads in loops inside the operation.
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
        sectors = max(sectors, _counted_bytes(node), _segment_bytes(node), _tap_bytes(node))
        base = node.op.split(".")[1].rstrip("_")
        moved = max(moved * _passes(node, base), _sorted_bytes(node, base, moved))
        made_elements = float(sum(view.elements for view in made))
        if flops := _function_flops(node, base, made_elements) + _FLOPS_OF_ONE * looped:
            return TorchCost(moved, flops, "fp32", sectors)
        if base in _PAIRS:
            rows = node.views[0]
            return TorchCost(moved, _PAIR_FLOPS * rows.elements * max(rows.shape[-1:], default=1), "fp32", sectors)
        if base in _SERIES or "_polynomial_" in base:
            return TorchCost(moved, _SERIES_FLOPS * max((view.elements for view in made), default=0), "fp32", sectors)
    return TorchCost(moved, sector_bytes=sectors)


def _passes(node: Aten, base: str) -> float:
    """How often the bytes of an operation take the time of a copy."""
    if base in _LOSSES and node.views:
        made = max((view.elements for view in node.outputs if view), default=0)
        return _LOSSES[base][made >= max(view.elements for view in node.views)]
    if base in _IN_TRAINING and isinstance(node.args, list) and any(one is True for one in node.args):
        return _TRAINING_PASSES
    return _PASSES.get(base, 1)


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
    base = node.op.split(".")[1].rstrip("_")
    if "_pool" not in base or not node.views:
        return 0.0
    given, made = node.views[0], next((view for view in node.outputs if view), node.views[0])
    size = node.args[1] if isinstance(node.args, list) and len(node.args) > 1 else None
    size = node.kwargs.get("kernel_size", size) if isinstance(node.kwargs, dict) else size
    sizes = [one for one in (size if isinstance(size, list) else [size]) if isinstance(one, int) and one > 0]
    axes = int(base[base.index("d", base.index("_pool")) - 1])
    if "adaptive" in base or not sizes:
        window = max(1.0, given.elements / max(1, made.elements))
    else:
        window = float(math.prod(sizes) if len(sizes) > 1 else sizes[0] ** axes)
    return min(window, float(given.elements)) * max(made.elements, 1) * given.item_bytes


def _bag_bytes(node: Aten) -> float:
    """What `embedding_bag` reads: a row for each index, which it adds up where others would write it."""
    if "embedding_bag" not in node.op or not node.outputs or not node.outputs[0]:
        return 0.0
    made = node.outputs[0]
    indices = max((view.elements for view in node.views if view.dtype in ("int32", "int64")), default=0)
    return float(indices * made.shape[-1] * made.item_bytes) if made.shape else 0.0


def _gathered_bytes(node: Aten) -> float:
    """Sectors of what indices pick, each a run of its own. Indices are integers, or a grid, among the views."""
    if node.op.split(".")[1].rstrip("_") not in _GATHERS or len(node.views) < 2:
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
    name = next((name for name in _TAPS if base.startswith(f"upsample_{name}")), "")
    images = [view for view in (*node.views, *node.outputs) if view]
    if not name or not images:
        return 0.0
    large = max(images, key=lambda view: view.elements)
    return float(_TAPS[name] * large.elements * large.item_bytes)


def _argument(node: Aten, position: int, name: str) -> View | None:
    """The tensor that an operation gets as an argument."""
    told = node.kwargs.get(name) if isinstance(node.kwargs, dict) else None
    if told is None and isinstance(node.args, list) and position < len(node.args):
        told = node.args[position]
    place = next(_named_views(told), None)
    return node.views[place] if place is not None and place < len(node.views) else None


def _sorted_bytes(node: Aten, base: str, moved: float) -> float:
    """What sorts and selections pass over, which `moved` bytes once."""
    if _adds_at_indices(node, base):
        indices = max((view.elements for view in node.views if view.dtype in ("int32", "int64")), default=0)
        return indices * 8 * _SORT_BYTES if indices > _SORTED_INDICES else 0.0
    if base not in _SORTS | _SELECTIONS:
        return 0.0
    if base == "isin":
        return _membership_bytes(node)
    keys = max((*node.views, *filter(None, node.outputs)), key=lambda view: view.elements)
    passes = moved * max((view.item_bytes for view in node.views), default=1)
    if base == "sort" and len(keys.shape) > 1 and max(keys.shape) <= _SHORT_SORT:
        return passes
    each = _SELECTION_BYTES if base in _SELECTIONS else _SORT_BYTES
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
    return float(_COUNTED_BYTES.get(node.op.split(".")[1].rstrip("_"), 0) * elements)


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
    if base in _LOOPS:
        return True
    if base in _BY_BYTES or flop_formula(name) is not None:
        return False
    packets = [getattr(torch.ops.aten, known) for known in (name, base) if hasattr(torch.ops.aten, known)]
    return not any(torch.Tag.pointwise in getattr(one, kind).tags for one in packets for kind in one.overloads())


def flop_formula(name: str) -> Callable[..., int] | None:
    import torch
    from torch.utils.flop_counter import flop_registry

    known = name.rstrip("_")
    if known == "_cdist_forward":
        return _distances
    if known in _LINEAR_ALGEBRA:
        return partial(_one_product, times=_PRODUCTS.get(known, 1))
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
