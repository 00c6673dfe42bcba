"""Searches from nothing for 30 fused functions that no test has, beside torch.compile's own kernels by the same clock.

python -m benchmarks.fused [--seconds 60] [--only NAME,NAME] [--first auto] [--device cuda]
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

from evo_kernel.app import compose, early_start
from evo_kernel.config import load_config
from evo_kernel.engine import Silence
from evo_kernel.fitness.timing.baselines import COMPILED
from populations.reading import PopulationReader

FUNCTIONS = """
bias_silu_sum      8192 3072    x:m,n b:n                   F.silu(x + b).sum(-1)
gelu_gate          4096 5504    x:m,n:bfloat16 y:m,n:bfloat16   F.gelu(x) * y
residual_norm      4096 2560    x:m,n y:m,n w:n b:n         F.layer_norm(x + y, (x.shape[-1],), w, b)
scaled_softmax     4096 3000    x:m,n b:n                   torch.softmax(x * 0.125 + b, -1)
centred_columns    6000 1536    x:m,n                       x - x.mean(0)
relu_column_sum    16384 1000   x:m,n                       torch.relu(x).sum(0)
column_max         8192 2048    x:m,n                       x.abs().amax(0)
unit_rows          10000 777    x:m,n                       x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6)
mean_and_max       8192 2048    x:m,n                       (x.mean(-1), x.amax(-1))
tanh_and_sum       4096 4096    x:m,n y:m,n                 (torch.tanh(x) + y, (torch.tanh(x) + y).sum(-1))
rms_mixed          8192 2880    x:m,n:bfloat16 w:n          (x * (x.float() ** 2).mean(-1, True).rsqrt() * w).bfloat16()
dequantized        8192 4096    x:m,n:int8 s:m b:n          x * s[:, None] + b
log_mean           8192 3001    x:m,n                       torch.log(x.abs() + 1e-3).mean(-1)
outer_sigmoid      8192 4100    x:m y:n                     torch.sigmoid(x[:, None] + y)
squared_distance   8192 2048    x:m,n y:m,n                 ((x - y) ** 2).sum(-1)
cosine             8192 1536    x:m,n y:m,n                 (x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))
affine_leaky       8192 4096    x:m,n:bfloat16 s:n b:n      F.leaky_relu(x * s + b, 0.1)
hardswish_max      8192 3072    x:m,n y:m,n                 F.hardswish(x * y).amax(-1)
shifted_logsumexp  4096 8000    x:m,n b:n                   torch.logsumexp(x + b, -1)
entropy            4096 4096    x:m,n                       -(torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1)
transposed_add     4097 3000    x:m,n y:n,m                 x + y.T
larger_or_half     8192 4096    x:m,n y:m,n                 torch.where(x > y, x, y * 0.5)
rescaled_rows      8192 1999    x:m,n  (x - x.amin(-1, True)) / (x.amax(-1, True) - x.amin(-1, True) + 1)
huber_mean         8192 2500    x:m,n y:m,n                 F.smooth_l1_loss(x, y, reduction="none").mean(-1)
gated              8192 2048    x:m,2*n                     F.glu(x)
plane_mean         512 384      x:64,m,n                    x.mean(1)
plane_bias_sum     512 384      x:64,m,n b:64,n             F.relu(x + b[:, None, :]).sum(1)
variance           8192 4096    x:m,n:bfloat16              torch.var(x.float(), -1)
both_sums          8192 2048    x:m,n                       (F.softplus(x).sum(0), F.softplus(x).sum(-1))
sine_and_cosine    4096 4096    x:m,n y:m,n                 (x.sin() * y, x.cos() * y)
"""
TASK = '''"""{name}."""

import torch
import torch.nn.functional as F

CASES = {{"check": [{{"m": 5, "n": 127}}, {{"m": 64, "n": 129}}], "search": [{{"m": {m}, "n": {n}}}]}}


def inputs(case, generator, device):
    m, n = case["m"], case["n"]
    return ({draws},)


def reference({names}):
    return {expression}
'''


def task_text(name: str, m: str, n: str, rest: str) -> str:
    *tensors, expression = rest.split("  ", 1)[0].split(), rest.split("  ", 1)[1].strip()
    named = [one.split(":") for one in tensors[0]]
    draws = [_draw(shape, *dtype) for _, shape, *dtype in named]
    names = ", ".join(one[0] for one in named)
    return TASK.format(name=name, m=m, n=n, draws=", ".join(draws), names=names, expression=expression)


def _draw(shape: str, dtype: str = "float32") -> str:
    where = f"({shape},), generator=generator, device=device, dtype=torch.{dtype}"
    return f"torch.randint(-128, 128, {where})" if dtype == "int8" else f"torch.randn({where})"


def searched(path: Path, options: argparse.Namespace) -> float | None:
    """torch.compile ÷ the best; one line is printed."""
    keys = [f"task={path}", f"device={options.device}", f"first={options.first}"]
    keys.append(f"budget.hours={options.seconds / 3600:.5f}")
    config = load_config(Path("h200.toml" if options.device == "cuda" else "quickstart.toml"), keys)
    task, population = compose.task_of(config), path.with_suffix(".db")
    with compose.prepared(config, task, population, True) as parts:
        compose.search(config, parts, Silence(), compose.ledger_of(config, parts.population))
        best, made = parts.population.best(), parts.population.counters().candidates
    with PopulationReader(population) as reader:
        roots = [view for view in map(reader.candidate, range(1, min(made, 2) + 1)) if not view.parent]
    firsts = [
        f"{view.proposal.operator} {measured.median_us:.1f}"
        for view in roots for one in view.evaluations[:1] for measured in one.measurements
    ]  # fmt: skip
    measured = best.evaluation.measurements[0] if best is not None and best.evaluation is not None else None
    us, compiled = (measured.median_us, measured.baselines_us.get(COMPILED)) if measured else (math.nan, None)
    ratio = compiled / us if compiled else None
    line = f"{us:8.1f} {compiled or math.nan:8.1f} {ratio or math.nan:6.2f} {made:5}  {', '.join(firsts)}"
    print(f"{path.stem:18} {line}", flush=True)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="of each search")
    parser.add_argument("--only", default="", help="comma-separated names; all if not given")
    parser.add_argument("--first", default="all")
    parser.add_argument("--device", default="cpu", help="cpu: modeled; cuda: measured")
    options = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'function':18} {'best µs':>8} {'compiled':>8} {'ratio':>6}  made  roots, µs")
        paths = []
        for line in FUNCTIONS.strip().splitlines():
            name, m, n, rest = line.split(maxsplit=3)
            if not options.only or name in options.only.split(","):
                paths.append(Path(folder, f"{name}.py"))
                paths[-1].write_text(task_text(name, m, n, rest))
        if not paths:
            parser.error("no function has that name")
        early_start.begin(str(paths[0]), options.device)
        for path, following in zip(paths, [*paths[1:], None], strict=True):
            if following is not None:
                early_start.begin(str(following), options.device, now=False)
            ratios.append(searched(path, options))
    known = [ratio for ratio in ratios if ratio is not None]
    mean = math.exp(sum(map(math.log, known)) / max(1, len(known)))
    slower = sum(ratio < 0.995 for ratio in known)
    print(f"{len(known)} of {len(ratios)} functions, {slower} slower than torch.compile, mean {mean:.3f}x")


if __name__ == "__main__":
    main()
