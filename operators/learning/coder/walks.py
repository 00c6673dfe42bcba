"""Examples that the offline rewriter makes: random walks from first kernels, with names changed.

Not judged, unless somebody does: the rewriter keeps to what it can prove, and the judge has the last word in training.
Names are changed so that a model from nothing cannot learn kernels by heart: it must copy what it is shown.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.syntax import parse_module
from evo_kernel.types import Source, TaskCard
from operators.learning.coder.examples import Example
from operators.micro.coder import RewriteCoder
from operators.micro.edits import Edit, TextMap, splice

STEMS = (
    "src", "dst", "inp", "out", "acc", "val", "idx", "row", "col", "blk", "lim", "cnt", "off", "pos", "cur", "tmp",
    "res", "left", "right", "base", "step", "total", "peak", "line", "item", "data", "grad", "head", "tail", "part",
)  # fmt: skip
ENDINGS = ("", "", "", "_ptr", "_a", "_b", "_n", "_m", "2")
RENAMED = 0.8  # share of walks on sources with other names
DEPTH = 3  # steps of a walk at most
A_SOURCE = 4  # examples made on one source: offering costs more than carrying out


def walks(
    firsts: Sequence[tuple[TaskCard, Source]],
    count: int,
    rng: np.random.Generator,
    depth: int = DEPTH,
    most_characters: int = 4000,
    strategies: Collection[str] = (),
) -> Iterator[Example]:
    """`count` examples, or fewer where the rewriter finds nothing. The same generator makes the same examples.

    On each source that a walk comes by a few of the offers are carried out, one of which the walk goes on with.
    """
    coder, made, barren = RewriteCoder(), 0, 0
    while made < count and barren < 50 + 2 * count:
        barren += 1
        card, first = firsts[int(rng.integers(len(firsts)))]
        source = Source(renamed(first.text, rng)) if rng.random() < RENAMED else first
        for _ in range(int(rng.integers(1, depth + 1))):
            offers = [one for one in coder.offer(source, card) if not strategies or one.name in strategies]
            children: list[str] = []
            for at in rng.permutation(len(offers))[: min(A_SOURCE, count - made)]:
                try:
                    child = coder.implement(source, offers[at], card, rng)
                except OperatorFailed:
                    continue
                if max(len(child), len(source.text)) <= most_characters:
                    children.append(child)
                    yield Example(card.name, source.text, child, offers[at], origin="rewriter")
            made += len(children)
            if not children or made >= count:
                break
            source = Source(children[int(rng.integers(len(children)))])


def renamed(text: str, rng: np.random.Generator) -> str:
    """The same module with other names for its functions, `run` apart, and for their parameters and local variables,
    upper case apart."""
    tree, texts = parse_module(text), TextMap(text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    taken = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | set(functions)
    mappings = {name: _names(node, taken, rng) for name, node in functions.items()}
    kernels = _kernel_names([name for name in functions if name != "run"], rng)
    edits: list[Edit] = []
    for name, node in functions.items():
        mapping = {**kernels, **mappings[name]}
        if name in kernels:
            start = texts.offset(node.lineno, node.col_offset) + len("def ")
            edits.append(Edit(start, start + len(name), kernels[name]))
        for one in ast.walk(node):
            edits += _edits(one, mapping, mappings, texts)
    changed = splice(text, {edit.start: edit for edit in edits}.values())
    parse_module(changed)
    return changed


def _names(function: ast.FunctionDef, taken: set[str], rng: np.random.Generator) -> dict[str, str]:
    """Old name -> new name of the locals of one function, all different and none of them in use."""
    local = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    local += [node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    old = [name for name in dict.fromkeys(local) if name == name.lower() and not name.startswith("_")]
    pool = sorted({stem + ending for stem in STEMS for ending in ENDINGS} - taken)
    rng.shuffle(pool)
    return dict(zip(old, pool, strict=False))


def _kernel_names(old: Sequence[str], rng: np.random.Generator) -> dict[str, str]:
    """Two words and `_kernel`, all different."""
    made: dict[str, str] = {}
    for name in old:
        while (new := f"{STEMS[rng.integers(len(STEMS))]}_{STEMS[rng.integers(len(STEMS))]}_kernel") in made.values():
            pass
        made[name] = new
    return made


def _edits(
    node: ast.AST, mapping: Mapping[str, str], mappings: Mapping[str, Mapping[str, str]], texts: TextMap
) -> list[Edit]:
    if isinstance(node, ast.Name) and node.id in mapping:
        return [texts.replace(node, mapping[node.id])]
    if isinstance(node, ast.arg) and node.arg in mapping:
        start = texts.offset(node.lineno, node.col_offset)
        return [Edit(start, start + len(node.arg), mapping[node.arg])]
    if isinstance(node, ast.Call):
        target = node.func.value if isinstance(node.func, ast.Subscript) else node.func
        called = mappings.get(target.id, {}) if isinstance(target, ast.Name) else {}
        starts = [(texts.offset(k.lineno, k.col_offset), k.arg) for k in node.keywords if k.arg in called]
        return [Edit(start, start + len(name), called[name]) for start, name in starts if name is not None]
    return []
