"""Examples that the offline rewriter makes: random walks from first kernels, and random references to write these for.

Not judged, unless somebody does: the rewriter keeps to what it can prove, and the judge has the last word in training.
Names are changed so that a model from nothing cannot learn kernels by heart: it must copy what it is shown.

What is written for them as first kernels shows a coder hundreds of programs where there are some dozens of tasks: one
that has seen few programs learns them by heart, whatever their variables are called.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.syntax import parse_module
from evo_kernel.types import Source, TaskCard
from operators.learning.coder.examples import Example
from operators.micro.coder import RewriteCoder
from operators.micro.text import Edit, TextMap, splice

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
        for _ in range(int(rng.integers(1, DEPTH + 1))):
            offers = [one for one in coder.offer(source, card) if not strategies or one.name in strategies]
            children: list[str] = []
            for at in rng.permutation(len(offers))[: min(A_SOURCE, count - made)]:
                try:
                    child = coder.implement(source, offers[at])
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
    kernels: dict[str, str] = {}  # two words and `_kernel`, all different
    for name in [name for name in functions if name != "run"]:
        while (
            new := f"{STEMS[rng.integers(len(STEMS))]}_{STEMS[rng.integers(len(STEMS))]}_kernel"
        ) in kernels.values():
            pass
        kernels[name] = new
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


MOST_FUSED = 16  # kernels that are joined at most

UNARY = (
    "torch.relu({v})", "torch.sigmoid({v})", "torch.tanh({v})", "F.silu({v})", "F.gelu({v})",
    "F.gelu({v}, approximate='tanh')", "F.softplus({v})", "torch.exp(-{v} * {v})", "{v} * {v}", "torch.abs({v})",
    "torch.clamp({v}, -{c}, {c})", "{v} * {c}", "{v} + {c}", "torch.sqrt(torch.abs({v}) + {c})", "torch.sin({v})",
    "F.leaky_relu({v}, {c})", "F.hardswish({v})", "torch.where({v} > 0, {v}, {c} * {v})", "F.elu({v})", "F.mish({v})",
    "torch.rsqrt({v} * {v} + {c})", "1.0 / (1.0 + torch.exp(-{c} * {v}))", "torch.log1p({v} * {v})",
)  # fmt: skip
BINARY = (
    "{v} + {u}", "{v} - {u}", "{v} * {u}", "torch.maximum({v}, {u})", "torch.minimum({v}, {u})", "{v} * {c} + {u}",
    "{v} / (1.0 + torch.abs({u}))", "torch.sigmoid({v}) * {u}", "{u} - {c} * {v}", "torch.where({u} > 0, {v}, {u})",
)  # fmt: skip
ALONG = (  # rows to rows
    "torch.softmax({v}, dim=-1)", "torch.log_softmax({v}, dim=-1)", "F.layer_norm({v}, ({v}.shape[-1],))",
    "F.rms_norm({v}, ({v}.shape[-1],))", "{v} - {v}.mean(dim=-1, keepdim=True)", "{v} - {v}.amax(dim=-1, keepdim=True)",
    "{v} / (1.0 + {v}.abs().sum(dim=-1, keepdim=True))", "F.normalize({v}, dim=-1)", "torch.cumsum({v}, dim=-1)",
    "{v} * torch.rsqrt({v}.pow(2).mean(dim=-1, keepdim=True) + {c})",
)  # fmt: skip
OVER = (  # rows to one number each
    "{v}.sum(dim=-1, keepdim=True)", "{v}.mean(dim=-1, keepdim=True)", "{v}.amax(dim=-1, keepdim=True)",
    "{v}.amin(dim=-1, keepdim=True)", "{v}.var(dim=-1, keepdim=True)", "torch.logsumexp({v}, dim=-1, keepdim=True)",
    "{v}.norm(dim=-1, keepdim=True)", "({v} * {v}).sum(dim=-1, keepdim=True)",
)  # fmt: skip
IMAGE = (
    "F.conv2d({v}, weight, padding=1)", "F.max_pool2d({v}, 2)", "F.avg_pool2d({v}, 2)", "F.group_norm({v}, 2)",
    "{v} + shift[None, :, None, None]", "{v} * {v}.mean(dim=(2, 3), keepdim=True)", "F.instance_norm({v})",
)  # fmt: skip
LAST = ("{v}.transpose(1, 2).contiguous()", "{v}.sum(dim=2)", "{v}.mean(dim=1)")
ROWS = (64, 96, 128, 250, 512, 777, 1024, 2048, 3000, 4096, 6144, 8192)
SHORT = (16, 24, 32, 48, 64, 80, 128)
DTYPES = ("torch.float32", "torch.float32", "torch.bfloat16", "torch.float16")


@dataclass
class _Text:
    """The reference while it is written: lines, and inputs as (name, expression of its sizes)."""

    rng: np.random.Generator
    lines: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)

    def one(self, offered: tuple[str, ...] | list[str]) -> str:
        return offered[int(self.rng.integers(len(offered)))]

    def size(self, offered: tuple[int, ...] = ROWS) -> int:
        return offered[int(self.rng.integers(len(offered)))]

    def line(self, form: str, v: str, u: str = "") -> str:
        name = f"t{len(self.lines)}"
        constant = round(float(self.rng.uniform(0.05, 2.0)), 2)
        self.lines.append(f"{name} = " + form.format(v=v, u=u, c=constant))
        return name

    def steps(self, value: str, count: int, others: tuple[tuple[str, str], ...]) -> str:
        """`count` operations on rows. `others`: (name, sizes) of inputs that may be used besides, as they are."""
        narrow: list[str] = []
        for _ in range(count):
            kind = self.rng.random()
            if kind < 0.35:
                value = self.line(self.one(UNARY), value)
            elif kind < 0.65 and others:
                name, sizes = others[int(self.rng.integers(len(others)))]
                self.inputs[name] = sizes
                value = self.line(self.one(BINARY), value, name)
            elif kind < 0.85:
                value = self.line(self.one(ALONG), value)
            elif narrow:
                value = self.line(self.one(BINARY), value, narrow.pop())
            else:
                narrow.append(self.line(self.one(OVER), value))
        return value if not narrow else self.line(self.one(BINARY), value, narrow.pop())


def invented(rng: np.random.Generator) -> str:
    """The text of a task file. The same generator makes the same texts. Not every one can be lowered."""
    text = _Text(rng)
    kind = rng.random()
    if kind < 0.5:
        sizes = {"m": text.size(), "n": text.size()}
        text.inputs["x"] = "m n"
        out = text.steps("x", int(rng.integers(1, 5)), (("y", "m n"), ("w", "n"), ("s", "m 1"), ("z", "m n")))
    elif kind < 0.7:
        sizes = {"m": text.size(), "n": text.size(), "k": text.size()}
        text.inputs |= {"x": "m k", "w": "n k" if rng.random() < 0.5 else "k n"}
        product = "F.linear({v}, {u})" if text.inputs["w"] == "n k" else "{v} @ {u}"
        first = text.line(text.one(UNARY), "x") if rng.random() < 0.3 else "x"
        out = text.line(product, first, "w")
        out = text.steps(out, int(rng.integers(0, 3)), (("bias", "n"), ("y", "m n"), ("s", "m 1")))
    elif kind < 0.85:
        sizes = {"b": text.size(SHORT), "h": text.size((2, 4, 8)), "s": text.size(), "d": text.size(SHORT)}
        text.inputs["x"] = "b h s d"
        if rng.random() < 0.3:
            text.inputs["w"] = "b h d s"
            out = text.line(text.one(("torch.matmul({v}, {u})", "torch.matmul({v}, {u}) * {c}")), "x", "w")
            out = text.steps(out, int(rng.integers(0, 2)), ())
        else:
            out = text.steps("x", int(rng.integers(1, 4)), (("y", "b h s d"), ("w", "d"), ("g", "s 1")))
            if rng.random() < 0.3:
                out = text.line(text.one(LAST), out)
    else:
        sizes = {"b": text.size((2, 4, 8, 16)), "c": text.size((4, 8, 16, 32)), "p": text.size((14, 28, 32, 56))}
        text.inputs |= {"x": "b c p p"}
        out = "x"
        for _ in range(int(rng.integers(1, 4))):
            form = text.one((*IMAGE, *UNARY[:10]))
            if "weight" in form:
                text.inputs["weight"] = "c c 3 3"
            if "shift" in form:
                text.inputs["shift"] = "c"
            out = text.line(form, out)
    return _module(text, sizes, text.one(DTYPES), out)


def fused(source: Source, card: TaskCard, rng: np.random.Generator) -> Source:
    """The same with kernels joined, in any order, until the rewriter knows none that could be: as a person begins."""
    coder = RewriteCoder()
    for _ in range(MOST_FUSED):
        offers = [one for one in coder.offer(source, card) if one.family == "fusion"]
        if not offers:
            break
        try:
            source = Source(coder.implement(source, offers[int(rng.integers(len(offers)))]))
        except OperatorFailed:
            break
    return source


def _module(text: _Text, sizes: dict[str, int], dtype: str, out: str) -> str:
    def drawn(dims: str) -> str:
        places = ", ".join(f'case["{dim}"]' if dim in sizes else dim for dim in dims.split())
        return f"torch.randn({places}, generator=generator, device=device, dtype={dtype})"

    small = {name: min(size, 40) if name != "c" else size for name, size in sizes.items()}
    inputs = "".join(f"    {name} = {drawn(dims)}\n" for name, dims in text.inputs.items())
    names = ", ".join(text.inputs)
    body = "".join(f"    {line}\n" for line in text.lines)
    return (
        "import torch\nimport torch.nn.functional as F\n\n"
        f'CASES = {{"search": [{sizes!r}], "check": [{small!r}]}}\n\n\n'
        f"def inputs(case, generator, device):\n{inputs}    return ({names},)\n\n\n"
        f"def reference({names}):\n{body}    return {out}\n"
    )
