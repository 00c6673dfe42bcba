"""The text that Inductor, torch.compile's back end, generates for a reference. No GPU; nothing compiled or timed.

The reference is traced as for lowering, with Inductor's decompositions, on a CUDA device that exists in name only. What
Inductor assumes of the sizes becomes conditions of the trace.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import sympy
import torch
from torch import fx
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from evo_kernel.errors import LoweringError
from evo_kernel.tasks.compiled.reading import CONSTANTS
from evo_kernel.tasks.compiled.stand_in import stand_in
from evo_kernel.tasks.layout import convolutions_by_cudnn
from evo_kernel.tasks.lowering.decompositions import ATTENTION
from evo_kernel.tasks.lowering.failures import quiet
from evo_kernel.tasks.lowering.trace import Traced, renewed, trace
from evo_kernel.tasks.task import describe

CUDA = torch.device("cuda", 0)
TILE = (128, 64, 32)
"""M, N and K of the template tiles that are preferred; M and N differ, so that a grid tells which is which."""

SHORT_ROW = 1024
"""Elements of a contiguous row that Inductor holds whole, at most (`InductorChoices`)."""

INLINED = 8
"""Elements of a constant vector that Inductor writes into kernels, at most (`GraphLowering.can_inline_constant`)."""

_SETTINGS: dict[str, Any] = {
    # One plain function per graph, no checks of its inputs, no memory used twice: the judge's plan says all that.
    "cpp_wrapper": False,
    "graph_partition": False,
    "size_asserts": False,
    "nan_asserts": False,
    "scalar_asserts": False,
    "alignment_asserts": False,
    "allow_buffer_reuse": False,
    "inplace_buffers": False,
    "fx_graph_cache": False,
    "compile_threads": 1,
    "combo_kernels": False,
    "benchmark_kernel": False,
    "profiler_mark_wrapper_call": False,
    # Helpers that wait across blocks or keep two running values are Inductor's own; the plain forms are Triton's.
    "online_softmax": False,
    "triton.cooperative_reductions": False,
    "triton.multi_kernel": 0,
    "triton.use_block_ptr": False,
    "triton.cudagraphs": False,
    "triton.autotune_at_compile_time": False,
    "triton.unique_kernel_names": True,
    "triton.descriptive_names": "original_aten",
}
_TEMPLATES: dict[str, Any] = {
    "max_autotune": True,
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON,ATEN",
    "max_autotune_conv_backends": "TRITON,ATEN",
}


def generate(
    reference: Callable[..., Any],
    inputs: Sequence[Any],
    fixed: frozenset[tuple[int, int]],
    templates: bool,
    both_ways: bool = True,
    simplify: bool = False,
) -> tuple[Traced, str]:
    """Inductor's text for `reference` on inputs like these, and the trace with what Inductor assumes too.

    `fixed`: sizes that are numbers (see `trace`). `templates`: matrix products and convolutions by its Triton templates
    instead of library calls. `both_ways`: sums of one matrix over rows and over columns by one kernel, where Inductor
    would. `simplify`: see `trace`. Raises LoweringError.
    """
    import torch._inductor.lowering  # noqa: F401  some decompositions (pooling) take it for loaded
    from torch._inductor.decomposition import select_decomp_table

    with warnings.catch_warnings(action="ignore"), quiet():
        traced = trace(reference, inputs, fixed, select_decomp_table() | ATTENTION, simplify=simplify)
        _write_back(traced)
        _refuse_random(traced.graph)
        _refuse_constants(traced.graph)
        try:
            with stand_in(), _own_ways():
                text = _generated(_on_cuda(traced), templates, both_ways)
        except LoweringError:
            raise
        except Exception as error:  # whatever Inductor raises about a graph means: it has no kernels for it
            reason = describe(error)[:300]
            raise LoweringError(f"torch.compile's back end writes no kernels for the reference ({reason}).") from error
    return renewed(traced), text


def _write_back(traced: Traced) -> None:
    """Copy what a reference changes in place (see `functional`) to the inputs, as compiled graphs do."""
    (output,) = traced.graph.graph.find_nodes(op="output")
    tensors = dict(zip(traced.tensors, traced.graph.graph.find_nodes(op="placeholder"), strict=True))
    inputs = [tensors[name] for name in traced.changed]
    values = list(output.args[0])
    cut = len(values) - len(inputs)
    with traced.graph.graph.inserting_before(output):
        for target, value in zip(inputs, values[cut:], strict=True):
            node = traced.graph.graph.call_function(torch.ops.aten.copy_.default, (target, value))
            node.meta["val"] = target.meta["val"]
    output.args = (values[:cut],)


def _refuse_random(graph: fx.GraphModule) -> None:
    """Random numbers of a kernel are never those of its reference, so that no result could be compared."""
    for node in graph.graph.nodes:
        drawn = isinstance(node.target, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags
        if drawn and "attention" not in str(node.target):  # attention has the tag for the dropout that it may have
            raise LoweringError(
                f"The reference draws random numbers ({node.target}), and a kernel would draw others. Draw them in the "
                "task's inputs() and pass them as an input (a dropout: its mask), or leave them out of the reference."
            )


def _refuse_constants(graph: fx.GraphModule) -> None:
    """Tensors that Inductor would keep in its module, outside `run`."""
    for node in graph.graph.nodes:
        held = getattr(graph, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(held, torch.Tensor) and not (held.dim() == 0 or (held.dim() == 1 and len(held) <= INLINED)):
            raise LoweringError(
                f"The reference holds a tensor of shape {list(held.shape)} that is no input; torch.compile writes only "
                f"vectors of up to {INLINED} elements into kernels. {CONSTANTS}"
            )


def kernels_both_ways() -> int:
    """How many kernels that sum both ways Inductor has begun to write in this process."""
    from torch._inductor import metrics

    return getattr(metrics, "codegen_mix_order_reduction", 0)


def _generated(moved: tuple[fx.GraphModule, list[Any], Any], templates: bool, both_ways: bool) -> str:
    from torch._inductor import compile_fx, config
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    module, fakes, mode = moved
    settings = _SETTINGS | (_TEMPLATES if templates else {"max_autotune": False, "max_autotune_gemm": False})
    settings["triton.mix_order_reduction"] = both_ways
    known = {name: value for name, value in settings.items() if _has(config, name)}
    handlers = V.set_fake_mode(mode), V.set_debug_handler(DebugContext())
    with config.patch(known), handlers[0], handlers[1], torch.no_grad(), convolutions_by_cudnn():
        _keep_output_strides(module)
        compile_fx._recursive_post_grad_passes(module, is_inference=True)
        graph = GraphLowering(
            module, example_inputs=fakes, shape_env=mode.shape_env, is_inference=True, layout_opt=_channels_last(module)
        )
        with V.set_graph_handler(graph):
            graph.run(*fakes)
            with config.patch(max_autotune=False):  # it would time how many rows a kernel that sums both ways takes
                written = graph.codegen()[0]
        if graph.constants:
            raise LoweringError(
                f"torch.compile keeps tensors of the reference that are no inputs outside run. {CONSTANTS}"
            )
    return str(getattr(written, "value", written))  # with its line map, or plain


def _keep_output_strides(module: fx.GraphModule) -> None:
    """Have outputs lie in memory as the reference's do. Inductor would pad their rows, and the judge's plan would copy
    them (`Plan.laid_out`)."""
    (output,) = module.graph.find_nodes(op="output")
    values = [value.meta["val"] if isinstance(value, fx.Node) else None for value in output.args[0]]
    strides = [value.stride() if isinstance(value, torch.Tensor) else None for value in values]
    output.meta["user_visible_output_idxs"] = [number for number, known in enumerate(strides) if known is not None]
    output.meta["original_output_strides"] = strides


def _channels_last(module: fx.GraphModule) -> bool:
    """Whether convolutions get their pictures channels last: as Inductor decides where sizes are numbers, by its own
    measurements, which say that only grouped ones lose by it. Where sizes are symbols it never does."""
    found = [node for node in module.graph.nodes if node.target is torch.ops.aten.convolution.default]
    return bool(found) and len(module.graph.nodes) < 300 * len(found) and all(node.args[-1] == 1 for node in found)


def _has(config: Any, name: str) -> bool:
    """Whether this version of PyTorch knows a setting."""
    for part in name.split("."):
        if not hasattr(config, part):
            return False
        config = getattr(config, part)
    return True


def _on_cuda(traced: Traced) -> tuple[fx.GraphModule, list[Any], Any]:
    """The graph with everything on a CUDA device. Nothing is run again: only what nodes say of their values changes."""
    tensors = list(traced.tensors.values())
    mode = tensors[0].fake_mode

    def moved(value: Any) -> Any:
        if isinstance(value, torch.device):
            return CUDA
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=CUDA)

    graph = fx.Graph()
    graph.output(graph.graph_copy(traced.graph.graph, {}))
    for node in list(graph.nodes):
        held = getattr(traced.graph, str(node.target), None) if node.op == "get_attr" else None
        if isinstance(held, torch.Tensor) and held.dim() == 0:  # Inductor would compute with it where it lies
            with graph.inserting_before(node):
                options = {"dtype": held.dtype, "device": CUDA}
                number = graph.call_function(torch.ops.aten.full.default, ([], held.item()), options)
            number.meta = dict(node.meta)
            node.replace_all_uses_with(number)
            graph.erase_node(node)
    for node in graph.nodes:
        node.args, node.kwargs = (map_aggregate(given, moved) for given in (node.args, node.kwargs))
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(moved, node.meta["val"])
        if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
            node.meta["original_aten"] = node.target  # what kernels are named after
    return fx.GraphModule(traced.graph, graph), [moved(tensor) for tensor in tensors], mode


@contextlib.contextmanager
def _own_ways() -> Iterator[None]:
    """Inductor with another choice of templates, without scans over several blocks, and with constants on the GPU.

    Symbols count as the sizes that they stand for where Inductor asks whether a row fits into a program, and whether
    neighbours in memory are read together, which its eviction policies follow.
    """
    from torch._inductor import ir, lowering, scheduler
    from torch._inductor.codegen.triton import TritonKernel, TritonScheduling
    from torch._inductor.runtime.hints import ReductionHint
    from torch._inductor.select_algorithm import AlgorithmSelectorCache
    from torch._inductor.virtualized import V
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    ask: Any = AlgorithmSelectorCache.__call__
    splits: Any = ir.Scan.num_splits
    write: Any = lowering.tensor
    kernels: Any = TritonScheduling.create_kernel_choices
    steps: Any = TritonKernel.get_strides_of_load
    whole_rows: Any = vars(TritonKernel).get("add_persistent_rblock")
    both_ways: Any = getattr(scheduler, "MixOrderReduction", None)
    one_kernel: Any = getattr(both_ways, "can_fuse", None)

    def choose(self: Any, name: str, choices: Any, *rest: Any, **options: Any) -> Any:
        """Of the templates that could be timed, the one whose tile is nearest to `TILE`: the tuner sets its sizes."""
        templates = [choice for choice in choices if "TritonTemplate" in type(choice).__name__]
        return ask(self, name, sorted(templates, key=_distance)[:1] or list(choices)[:1], *rest, **options)

    def one_split(*given: Any, **named: Any) -> Any:
        """A long scan is one loop: split over blocks, they would wait for each other by a protocol of Inductor's."""
        return splits(*given, **named)[0], 1

    def on_cuda(data: Any, **given: Any) -> Any:
        """Vectors that Inductor writes into kernels are traced on the CPU; what follows is not computed there."""
        return write(data, **given | {"device": CUDA})

    def short_rows(self: Any, features: Any, *rest: Any) -> Any:
        """A short row is held whole, as where sizes are numbers; that it is short becomes a condition of the trace."""
        row = features.reduction_numel if features.is_reduction() else SHORT_ROW + 1
        if _traced_size(row) <= SHORT_ROW and features.get_reduction_hint() == ReductionHint.INNER:
            V.graph.sizevars.evaluate_expr(sympy.Le(row, SHORT_ROW))
        return kernels(self, features, *rest)

    def traced_steps(kernel: Any, index: Any) -> dict[Any, Any]:
        """A step along a row is one, whatever symbol its length is: a row is more than one element."""
        known = {axis: sympy.sympify(step) for axis, step in steps(kernel, index).items()}
        sizes = (SymT.SIZE, SymT.PRECOMPUTED_SIZE)
        return {
            axis: _traced_size(step) if all(symbol_is_type(symbol, sizes) for symbol in step.free_symbols) else step
            for axis, step in known.items()
        }

    def long_rows(kernel: Any) -> bool:
        """Whether Inductor would also time blocks of a whole row: nothing of the kernel's text depends on it."""
        sizes, length = V.graph.sizevars, kernel.features.reduction_numel
        most, more, now = sizes.statically_known_leq, sizes.statically_known_gt, _traced_size(length)
        with (
            mock.patch.object(sizes, "statically_known_leq", lambda a, b: now <= b if a == length else most(a, b)),
            mock.patch.object(sizes, "statically_known_gt", lambda a, b: now > b if a == length else more(a, b)),
        ):
            return whole_rows.func(kernel)

    def one_for_both(*nodes: Any) -> bool:
        """Whether one kernel sums rows and columns. Only where their sizes decide, these become conditions."""
        sizes = V.graph.sizevars
        asked = ("evaluate_expr", "guard_or_true", "statically_known_leq")  # by several versions of PyTorch
        with mock.patch.multiple(sizes, create=True, **dict.fromkeys(asked, lambda *given, **named: True)):
            if not one_kernel(*nodes):
                return False
        with mock.patch.object(sizes, "statically_known_leq", lambda a, b: sizes.evaluate_expr(sympy.Le(a, b))):
            return one_kernel(*nodes)

    with contextlib.ExitStack() as changed:
        if one_kernel is not None:
            changed.enter_context(mock.patch.object(both_ways, "can_fuse", staticmethod(one_for_both)))
        if whole_rows is not None:
            changed.enter_context(mock.patch.object(TritonKernel, "add_persistent_rblock", property(long_rows)))
        changed.enter_context(mock.patch.object(TritonScheduling, "create_kernel_choices", short_rows))
        changed.enter_context(mock.patch.object(TritonKernel, "get_strides_of_load", traced_steps))
        changed.enter_context(mock.patch.object(AlgorithmSelectorCache, "__call__", choose))
        changed.enter_context(mock.patch.object(ir.Scan, "num_splits", staticmethod(one_split)))
        changed.enter_context(mock.patch.object(lowering, "tensor", on_cuda))
        yield


def _traced_size(size: Any) -> int:
    """What a size is in the case that is traced."""
    from torch._inductor.virtualized import V

    sizes: Any = V.graph.sizevars
    return (sizes.optimization_hint if hasattr(sizes, "optimization_hint") else sizes.size_hint)(size)


def _distance(choice: Any) -> tuple[float, ...]:
    told = choice.info_dict()
    try:
        m, k, n = (int(part) for part in str(told["tile_shape"]).strip("()").split(","))
    except (KeyError, ValueError):
        return (1e9,)
    far = sum(abs(got / wanted - 1) for got, wanted in zip((m, n, k), TILE, strict=True))
    return (m == n, far, abs(int(told.get("num_warps", 4)) - 4), abs(int(told.get("num_stages", 3)) - 3))
