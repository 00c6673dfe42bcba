"""The model's constants, fitted to measured times, and the honest figure of the fit: each task by the others' fit.

Residuals are log(modeled ÷ measured). What is the same for all plans of a case counts little (LEVEL): the model is
there to rank plans of one case. A soft loss keeps what the model does not know about from bending the constants, and
each constant stays where it makes sense physically.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.optimize import least_squares

from benchmarks.calibration.figures import Figures, figures, grouped, modeled_us
from benchmarks.calibration.samples import Sample
from evo_kernel.fitness.costmodel.model import CONSTANTS, Constants

BOUNDS: dict[str, tuple[float, float]] = {
    "launch_us": (1.2, 1.3),  # measured apart: 1.24 (docs/results/benchmarks.md, ceilings)
    "memory_latency_us": (0.3, 2.0),
    "l2_latency_us": (0.1, 1.0),
    "block_us": (0.02, 2.0),
    "issue_efficiency": (0.2, 1.0),
    "mma_share": (0.5, 0.66),  # the fastest kernels of h200.jsonl.xz reach 0.51 of the vendor's rate with mma.sync
    "wgmma_share": (0.85, 1.0),  # and 0.85 with wgmma; mma.sync cannot feed the tensor cores of sm_90 as fast
    "fp32_share": (0.1, 1.0),
    "shared_cycles": (1.0, 16.0),
    "spill_cycles": (1.0, 64.0),
    "l2_usable": (0.2, 1.0),
    "hiding_warps": (4.0, 64.0),
    "atomics_per_us": (2e4, 2e6),
    "store_cycles": (1.0, 4.0),
    "crowd_cycles": (1.3, 6.0),
    "ragged_share": (0.02, 1.0),
    "uneven_share": (0.05, 1.0),
    "mix": (1.5, 16.0),
    "l2_bytes_per_us": (2e6, 2e7),
}
"""What each constant may become: see Constants for what it means."""
LEVEL = 0.3  # weight of a case's common factor against the order within it
SOFT = 0.25  # log units beyond which a residual counts linearly
PER_TASK = 240  # plans of a task that a fit sees, evenly over its cases: more change the third digit
STEP = 0.02  # of a constant's logarithm, for differences


@dataclass(frozen=True)
class Fit:
    """Constants for all tasks, and each task's figures: before, with them, and by a fit that never saw the task."""

    constants: Constants
    before: dict[str, Figures]
    after: dict[str, Figures]
    apart: dict[str, Figures]


def fitted(samples: Sequence[Sample], start: Constants = CONSTANTS, seed: int = 0) -> Constants:
    """Constants that fit these samples best, near `start` where they do not tell. The same samples, the same answer."""
    chosen = thinned(samples, seed)
    measured = np.log([sample.us for sample in chosen])
    cases = list(grouped(chosen, lambda s: f"{s.task} {s.case}").values())
    names = list(BOUNDS)
    low, high = np.log([BOUNDS[name] for name in names]).T
    begin = np.clip(np.log([getattr(start, name) for name in names]), low + 1e-6, high - 1e-6)
    weight = {task: 1 / np.sqrt(len(places)) for task, places in grouped(chosen, lambda s: s.task).items()}
    weights = np.array([weight[sample.task] for sample in chosen])

    def residuals(point: np.ndarray) -> np.ndarray:
        constants = Constants(**dict(zip(names, np.exp(point).tolist(), strict=True)))
        off = np.log(modeled_us(chosen, constants)) - measured
        for places in cases:
            off[places] -= (1 - LEVEL) * np.median(off[places])
        return np.concatenate([soft(off) * weights, 0.01 * (point - begin)])

    found = least_squares(residuals, begin, bounds=(low, high), diff_step=STEP, xtol=1e-4, ftol=1e-5, max_nfev=60)
    return Constants(**{name: float(f"{value:.3g}") for name, value in zip(names, np.exp(found.x), strict=True)})


def soft(off: np.ndarray) -> np.ndarray:
    """Residuals whose squares grow linearly beyond SOFT."""
    return np.sign(off) * SOFT * np.sqrt(2 * (np.sqrt(1 + (off / SOFT) ** 2) - 1))


def thinned(samples: Sequence[Sample], seed: int) -> list[Sample]:
    """At most PER_TASK samples of each task, evenly over its cases."""
    rng = np.random.default_rng(seed)
    kept: list[Sample] = []
    for task_places in grouped(samples, lambda s: s.task).values():
        own = [samples[int(place)] for place in task_places]
        cases = grouped(own, lambda s: s.case)
        turns = sorted(
            (turn, case, int(place))
            for case, places in cases.items()
            for turn, place in enumerate(rng.permutation(places).tolist())
        )
        kept += [own[place] for _, _, place in turns[:PER_TASK]]
    return kept


def evaluated(samples: Sequence[Sample], processes: int = 2) -> Fit:
    """The fit to all tasks, and one more for each task that leaves it out."""
    tasks = sorted({sample.task for sample in samples})
    parts = [list(samples), *([s for s in samples if s.task != task] for task in tasks)]
    with ProcessPoolExecutor(processes) as pool:
        constants, *others = pool.map(fitted, [part or list(samples) for part in parts])
    own = {task: [s for s in samples if s.task == task] for task in tasks}
    return Fit(
        constants=constants,
        before={task: figures(some, modeled_us(some)) for task, some in own.items()},
        after={task: figures(some, modeled_us(some, constants)) for task, some in own.items()},
        apart={
            task: figures(own[task], modeled_us(own[task], other)) for task, other in zip(tasks, others, strict=True)
        },
    )


def changed(constants: Constants, start: Constants = CONSTANTS) -> dict[str, tuple[float, float]]:
    """Constants by name: before and after."""
    return {f.name: (getattr(start, f.name), getattr(constants, f.name)) for f in fields(Constants)}


def disturbed(constants: Constants, rng: np.random.Generator) -> Constants:
    """Other constants inside their bounds, up to twice or half of these: for tests of the fit."""
    values = {
        name: float(np.clip(getattr(constants, name) * 2 ** rng.uniform(-1, 1), low, high))
        for name, (low, high) in BOUNDS.items()
    }
    return replace(constants, **values)
