"""References that nobody asked for: random chains of tensor operations, as texts of task files.

What is written for them as first kernels shows a coder hundreds of programs where there are some dozens of tasks: one
that has seen few programs learns them by heart, whatever their variables are called.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Source, TaskCard
from operators.micro.coder import RewriteCoder

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
            source = Source(coder.implement(source, offers[int(rng.integers(len(offers)))], card, rng))
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
