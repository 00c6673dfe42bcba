"""A training step over N responses to one prompt: the prompt once, or N times. Equal gradients, and what is saved.

    python -m benchmarks.shared_prompt_training [--seconds 240] [--json FILE]

A small decoder (rotary embedding, grouped queries, RMSNorm, SwiGLU) takes one step of a GRPO-style loss: clipped ratios
to an older policy, advantages normalised within the group, and a penalty for leaving a reference policy. Packed rows go
through FlexAttention, and through our first kernels of the tasks shared_prompt and shared_prompt_backward; replicated
ones, padded to the longest, through PyTorch's causal attention. Printed are the step's time (forward and backward,
median), the memory at its peak, and how far the gradients of all parameters are apart. `--device cpu` tries it small,
in float64.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from evo_kernel.tasks import shared_prompts
from evo_kernel.tasks.loading import load
from evo_kernel.tasks.packing import Packed, pack
from evo_kernel.tasks.task import describe

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of q (rows, heads, d), k and v (rows, key heads, d) of all rows of a step; returns (rows, heads, d)."""

CLIP, PENALTY = 0.2, 0.02
ROTARY_BASE = 500000.0


@dataclass(frozen=True)
class Size:
    """Of a model and of a step's data."""

    responses: int
    prompt: int
    response: int
    ragged: bool = False
    layers: int = 4
    width: int = 2048
    heads: int = 16
    key_heads: int = 4
    vocabulary: int = 32000

    @property
    def name(self) -> str:
        return f"N{self.responses} P{self.prompt} R{self.response}" + (" ragged" if self.ragged else "")


SIZES = (Size(16, 2048, 1024), Size(16, 8192, 1024), Size(32, 8192, 512, ragged=True), Size(8, 16384, 1024))
TINY = Size(3, 13, 7, ragged=True, layers=2, width=64, heads=4, key_heads=2, vocabulary=97)


class Layer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.d = size.width // size.heads
        self.qkv = nn.Linear(size.width, (size.heads + 2 * size.key_heads) * self.d, bias=False)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.up = nn.Linear(size.width, 2 * 3 * size.width, bias=False)
        self.down = nn.Linear(3 * size.width, size.width, bias=False)
        self.norms = nn.ParameterList([torch.ones(size.width) for _ in range(2)])
        self.split = [size.heads, size.key_heads, size.key_heads]

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend) -> torch.Tensor:
        """(rows, width) -> (rows, width)"""
        rows = self.qkv(F.rms_norm(x, x.shape[-1:], self.norms[0])).unflatten(-1, (-1, self.d))
        q, k, v = rows.split(self.split, dim=1)
        q, k = (self._rotated(part, cos, sin) for part in (q, k))
        x = x + self.out(attend(q, k, v.contiguous()).flatten(1))
        gate, up = self.up(F.rms_norm(x, x.shape[-1:], self.norms[1])).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)

    @staticmethod
    def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Decoder(nn.Module):
    """Rows of any sequences in, hidden rows out: which rows see which is the attention's."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.d = size.width // size.heads
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList([Layer(size) for _ in range(size.layers)])
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)  # small: every token is nearly as likely as any other

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        x = self.embedding(tokens)
        steps = torch.arange(0, self.d, 2, device=tokens.device, dtype=torch.float64) / self.d
        angles = positions[:, None, None] * ROTARY_BASE**-steps
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, attend)
        return F.rms_norm(x, x.shape[-1:])

    def log_probabilities(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Of the tokens that rows of `hidden` predict; at least float32."""
        logits = hidden @ self.embedding.weight.T
        return -F.cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), tokens, reduction="none")


@dataclass(frozen=True)
class Step:
    """One step's data: packed rows, and per token of the responses the older and the reference policy's logarithms."""

    rows: Packed
    advantages: torch.Tensor  # (N,)
    older: torch.Tensor
    reference: torch.Tensor

    def loss(self, chosen: torch.Tensor) -> torch.Tensor:
        """From log-probabilities of the responses' tokens: mean over each response, then over the group."""
        ratio = (chosen - self.older).exp()
        gain = self.advantages[self.rows.numbers]
        clipped = torch.minimum(ratio * gain, ratio.clamp(1 - CLIP, 1 + CLIP) * gain)
        away = self.reference - chosen
        each = -clipped + PENALTY * (away.exp() - away - 1)
        weight = 1 / (len(self.rows.lengths) * torch.tensor(self.rows.lengths, device=each.device, dtype=each.dtype))
        return (each * weight[self.rows.numbers]).sum()


def drawn(size: Size, device: str, seed: int = 0) -> Step:
    """Random tokens, rewards and policies; logarithms lie near those of a model that has learnt nothing."""
    generator = torch.Generator(device).manual_seed(seed)
    draw: dict[str, Any] = {"generator": generator, "device": device}
    r = size.response
    lengths = [r // 2 + i * 7919 % (r + 1) if size.ragged else r for i in range(size.responses)]
    prompt = torch.randint(size.vocabulary, (size.prompt,), **draw)
    sequences = [torch.cat([prompt, torch.randint(size.vocabulary, (length,), **draw)]) for length in lengths]
    rewards = torch.randn(size.responses, dtype=torch.float64, **draw)
    advantages = (rewards - rewards.mean()) / rewards.std()
    middle = -torch.tensor(float(size.vocabulary)).log()
    older, reference = (middle + torch.randn(sum(lengths), dtype=torch.float64, **draw) / 10 for _ in range(2))
    kind = torch.float64 if device == "cpu" else torch.float32
    return Step(pack(sequences, size.prompt), advantages.to(kind), older.to(kind), reference.to(kind))


def packed_loss(model: Decoder, step: Step, kernel: Callable[..., torch.Tensor]) -> torch.Tensor:
    """The prompt's rows once; `kernel` is the attention of the task shared_prompt."""
    rows, p = step.rows, step.rows.prompt

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return kernel(q, k[:p], v[:p], k[p:], v[p:], rows.cu)

    hidden = model(rows.tokens, rows.positions, attend)
    return step.loss(model.log_probabilities(hidden[rows.predictors], rows.responses))


def replicated_loss(model: Decoder, step: Step) -> torch.Tensor:
    """N sequences of prompt and response, padded to the longest."""
    rows = step.rows
    tokens = nn.utils.rnn.pad_sequence(rows.sequences(), batch_first=True)
    n, longest = tokens.shape

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (x.unflatten(0, (n, longest)).transpose(1, 2) for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    positions = torch.arange(longest, device=tokens.device).repeat(n)
    hidden = model(tokens.flatten(), positions, attend).unflatten(0, (n, longest))
    places = torch.cat([torch.arange(length, device=tokens.device) for length in rows.lengths]) + rows.prompt
    chosen = model.log_probabilities(hidden[rows.numbers, places - 1], tokens[rows.numbers, places])
    return step.loss(chosen)


_shared_prompt = functools.cache(lambda: load("shared_prompt"))


def by_reference(*inputs: torch.Tensor) -> torch.Tensor:
    return _shared_prompt().reference_function(*inputs)[0]


def by_flex(*inputs: torch.Tensor) -> torch.Tensor:
    return shared_prompts.flex(*inputs)[0]


class FirstKernels(torch.autograd.Function):
    """The first kernels of shared_prompt and shared_prompt_backward."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*inputs)
        return _run_of("shared_prompt")(*inputs)[0]

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> tuple[torch.Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        *tensors, cu = ctx.saved_tensors
        return *_run_of("shared_prompt_backward")(*tensors, upstream.contiguous(), cu), None


_RUNS: dict[str, Callable[..., Any]] = {}


def _run_of(name: str) -> Callable[..., Any]:
    if name not in _RUNS:
        spec = importlib.util.spec_from_file_location(name, load(name).path.with_name("seed.py"))
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _RUNS[name] = module.run
    return _RUNS[name]


def gradients(model: Decoder, loss: Callable[[], torch.Tensor]) -> tuple[float, list[torch.Tensor]]:
    """The loss, and its gradients by every parameter."""
    value = loss()
    return float(value.detach()), list(torch.autograd.grad(value, list(model.parameters())))


def apart(some: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> float:
    """The largest relative Frobenius distance of any parameter's gradients."""
    return max(
        float((a.double() - b.double()).norm() / b.double().norm().clamp(min=1e-300))
        for a, b in zip(some, others, strict=True)
    )


def measured(model: Decoder, loss: Callable[[], torch.Tensor], cuda: bool) -> dict[str, Any]:
    """Median seconds of a step, and its peak memory, after one step that is not counted."""
    value, made = gradients(model, loss)
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    taken = []
    while len(taken) < 3 or (len(taken) < 9 and sum(taken) < 3):
        begin = time.perf_counter()
        gradients(model, loss)
        if cuda:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() / 2**30 if cuda else None
    return {"ms": statistics.median(taken) * 1e3, "peak_gib": peak, "loss": value, "made": made}


def compare(size: Size, device: str, deadline: float) -> list[dict[str, Any]]:
    """Replicated first, then every packed way; what fails says why."""
    torch.manual_seed(0)
    cuda = device != "cpu"
    model = Decoder(size).to(device, torch.bfloat16 if cuda else torch.float64)
    step = drawn(size, device)
    packed = {"flex": by_flex, "first kernels": FirstKernels.apply} if cuda else {"reference": by_reference}
    ways: dict[str, Callable[[], torch.Tensor]] = {"replicated": lambda: replicated_loss(model, step)}
    ways |= {name: lambda kernel=kernel: packed_loss(model, step, kernel) for name, kernel in packed.items()}
    rows, wanted = [], None
    for name, loss in ways.items():
        row: dict[str, Any] = {"size": asdict(size), "case": size.name, "way": name, "saving": step.rows.saving}
        if time.monotonic() > deadline:
            rows.append(row | {"error": "no time left"})
            continue
        try:
            found = measured(model, loss, cuda)
        except Exception as error:  # noqa: BLE001 (memory, a missing path, a compiler: the other ways go on)
            rows.append(row | {"error": describe(error)[:300]})
            continue
        made = found.pop("made")
        rows.append(row | found | {"apart": None if wanted is None else apart(made, wanted)})
        wanted = made if name == "replicated" else wanted
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=240, help="start nothing after this long")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no GPU here; --device cpu tries the script at a small size")
    deadline, rows = time.monotonic() + options.seconds, []
    print(
        "| case | rows saved | way | ms a step | speed-up | peak GiB | loss | gradients apart |\n" + "| --- " * 8 + "|"
    )
    for size in SIZES if options.device == "cuda" else (TINY,):
        made = compare(size, options.device, deadline)
        base = made[0].get("ms")
        for row in made:
            head = f"| {row['case']} | {row['saving']:.2f}x | {row['way']} | "
            if "error" in row:
                print(head + f"{row['error']} |", flush=True)
                continue
            gain = f"{base / row['ms']:.2f}x" if base else "-"
            peak = "-" if row["peak_gib"] is None else f"{row['peak_gib']:.1f}"
            off = "-" if row["apart"] is None else f"{row['apart']:.1e}"
            print(head + f"{row['ms']:.1f} | {gain} | {peak} | {row['loss']:.6f} | {off} |", flush=True)
        rows += made
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
