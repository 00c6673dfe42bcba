"""One fault planted in a right kernel: a deterministic change of its syntax tree.

Each mutation gives every variant of a source that it can make. Which of them fail, and how, the judge says: `prepare`
keeps those that end in the category they were planted for.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator

from evo_kernel.syntax import parse_module

Change = Callable[[ast.AST], bool]
"""Changes a node in place; False where there is nothing to change."""


def variants(text: str, category: str) -> Iterator[tuple[str, str]]:
    """(mutation, text) of every fault of a category that can be planted here, in a fixed order."""
    nodes = list(ast.walk(parse_module(text)))
    for name, change in MUTATIONS[category].items():
        for number, node in enumerate(nodes):
            if change(copy.deepcopy(node)):
                yield name, _changed(text, number, change)


def _changed(text: str, number: int, change: Change) -> str:
    """The text with the change made at its node of that number; comments go, as in any unparsed text."""
    tree = parse_module(text)
    change(list(ast.walk(tree))[number])
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def plain(text: str) -> str:
    """The text as the mutations would leave it, unchanged: what a repair would restore."""
    return ast.unparse(parse_module(text)) + "\n"


# -- reading nodes ---------------------------------------------------------------------------------------------------


def _is_call(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in names


def _is_launch(node: ast.AST) -> bool:
    """`kernel[grid](...)`."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)


def _keyword(node: ast.Call, name: str) -> ast.keyword | None:
    return next((one for one in node.keywords if one.arg == name), None)


# -- compile ---------------------------------------------------------------------------------------------------------


_MISNAMED = {"max": "reduce_max", "sum": "reduce_add", "exp": "expf", "dot": "matmul", "where": "select"}


def _unknown_function(node: ast.AST) -> bool:
    """A function of tl that does not exist."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MISNAMED:
        node.func.attr = _MISNAMED[node.func.attr]
        return True
    return False


def _odd_block(node: ast.AST) -> bool:
    """A block whose size is no power of two."""
    if _is_call(node, "tl.arange") and isinstance(node, ast.Call):
        node.args[1] = ast.BinOp(node.args[1], ast.Add(), ast.Constant(1))
        return True
    return False


def _undefined(node: ast.AST) -> bool:
    """A value used under a name that nothing has."""
    if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Call):
        node.value = ast.BinOp(node.value, ast.Mult(), ast.Name("scale_factor"))
        return True
    return False


def _lost_axis(node: ast.AST) -> bool:
    """A column vector where a row vector is needed."""
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) in ("(:, None)", "(None, :)", ":, None", "None, :"):
        node.slice = ast.Tuple([ast.Constant(None), ast.Constant(None), ast.Slice()])
        return True
    return False


# -- load and store --------------------------------------------------------------------------------------------------


def _unmasked_store(node: ast.AST) -> bool:
    """A store with no mask: it writes beyond the end."""
    if isinstance(node, ast.Call) and _is_call(node, "tl.store") and (mask := _keyword(node, "mask")):
        node.keywords.remove(mask)
        return True
    return False


def _unmasked_load(node: ast.AST) -> bool:
    """A load with no mask: it reads beyond the end."""
    if isinstance(node, ast.Call) and _is_call(node, "tl.load") and _keyword(node, "mask"):
        node.keywords = [one for one in node.keywords if one.arg not in ("mask", "other")]
        return True
    return False


def _one_too_far(node: ast.AST) -> bool:
    """`<=` for `<` in a mask."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        node.ops[0] = ast.LtE()
        return True
    return False


def _shifted_store(node: ast.AST) -> bool:
    """A store one element further on: the first is never written, the last lies outside."""
    if isinstance(node, ast.Call) and _is_call(node, "tl.store"):
        node.args[0] = ast.BinOp(node.args[0], ast.Add(), ast.Constant(1))
        return True
    return False


def _short_of_the_end(node: ast.AST) -> bool:
    """A mask that ends one element early."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt):
        node.comparators[0] = ast.BinOp(node.comparators[0], ast.Sub(), ast.Constant(1))
        return True
    return False


# -- calculation -----------------------------------------------------------------------------------------------------


def _wrong_start(node: ast.AST) -> bool:
    """A maximum or a sum that starts from one."""
    if isinstance(node, ast.Call) and _is_call(node, "tl.full") and "inf" in ast.unparse(node.args[1]):
        node.args[1] = ast.Constant(1.0)
        return True
    if isinstance(node, ast.Call) and _is_call(node, "tl.zeros"):
        node.func = ast.Attribute(ast.Name("tl"), "full")
        node.args.insert(1, ast.Constant(1.0))
        return True
    return False


def _wrong_operator(node: ast.AST) -> bool:
    """A sum for a difference, a product for a quotient."""
    swap = {ast.Sub: ast.Add, ast.Div: ast.Mult}
    if isinstance(node, ast.BinOp) and type(node.op) in swap and "_ptr" not in ast.unparse(node):
        node.op = swap[type(node.op)]()
        return True
    return False


def _other_reduction(node: ast.AST) -> bool:
    """A maximum for a sum, and the other way."""
    if isinstance(node, ast.Call) and _is_call(node, "tl.max", "tl.sum"):
        assert isinstance(node.func, ast.Attribute)
        node.func.attr = {"max": "sum", "sum": "max"}[node.func.attr]
        return True
    return False


def _overwritten(node: ast.AST) -> bool:
    """A sum over a loop that keeps its last term only."""
    if isinstance(node, ast.For):
        for position, one in enumerate(node.body):
            if isinstance(one, ast.AugAssign):
                node.body[position] = ast.Assign([copy.deepcopy(one.target)], one.value)
                return True
    return False


# -- launch ----------------------------------------------------------------------------------------------------------


def _large_tiles(node: ast.AST) -> bool:
    """Tiles that do not fit into shared memory; along the inner axis only, or compiling them would take minutes."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BLOCK_K":
        node.value = ast.Constant(4096)
        return True
    return False


def _many_stages(node: ast.AST) -> bool:
    """More stages than shared memory holds, in a launch or in a loop."""
    if isinstance(node, ast.Call) and (_is_launch(node) or _is_call(node, "tl.range")):
        node.keywords = [one for one in node.keywords if one.arg != "num_stages"]
        node.keywords.append(ast.keyword("num_stages", ast.Constant(64)))
        return True
    return False


MUTATIONS: dict[str, dict[str, Change]] = {
    "compile": {
        "unknown function": _unknown_function, "odd block": _odd_block, "undefined name": _undefined,
        "lost axis": _lost_axis,
    },
    "load-store": {
        "store without mask": _unmasked_store, "load without mask": _unmasked_load, "mask one too far": _one_too_far,
        "shifted store": _shifted_store, "mask one short": _short_of_the_end,
    },
    "calculation": {
        "wrong start": _wrong_start, "wrong operator": _wrong_operator, "other reduction": _other_reduction,
        "overwritten sum": _overwritten,
    },
    "launch": {
        "large tiles": _large_tiles, "64 stages": _many_stages,
    },
}  # fmt: skip
"""By category: what to change. Each is tried at every node."""
