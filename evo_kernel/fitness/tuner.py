"""The tuner: which knob settings to try for a source. Optuna's TPE sampler behind ask and tell.

Settings are compared with the source's own by the judge; a knob change is never a strategy. Deterministic for a seed.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Sequence

import optuna

from evo_kernel.fitness.knobs import Knob
from evo_kernel.types import Knobs, Source

_NOT_TILES = ("WARPS", "STAGES", "GROUP", "SPLIT", "PROGRAMS", ".config")
BATCH = 4  # settings drawn before any of them is told; the first batch is drawn at random


MAX_TILE, MAX_WORK = 128 * 256, 128 * 256 * 64
"""Elements of the two, and of the three, largest tile sizes together. Beyond them the accumulators of a program do not
fit into the registers of an SM, and the compiler spends minutes on what then spills."""
MAX_TILE_A_THREAD = 128
"""Elements of the two largest tile sizes together a thread, which has 255 registers: half of them for an accumulator.
More takes the compiler long, since all of it is unrolled, and then spills."""
_DEFAULT_WARPS = 4


def too_large(setting: Knobs) -> bool:
    """Whether several tile sizes of one setting are large together; one large row block alone is fine."""
    tiles = sorted((v for name, v in setting if not any(w in name for w in _NOT_TILES)), reverse=True)
    if len(tiles) < 2:
        return False
    threads = 32 * max((v for name, v in setting if "WARPS" in name), default=_DEFAULT_WARPS)
    tile = tiles[0] * tiles[1]
    return tile > MAX_TILE or tile > MAX_TILE_A_THREAD * threads or math.prod(tiles[:3]) > MAX_WORK


class Tuner:
    """Proposes settings for many sources at once. Thread-safe."""

    def __init__(self, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._seed = seed
        self._lock = threading.Lock()
        self._open: dict[tuple[str, Knobs], tuple[optuna.Study, optuna.Trial]] = {}

    def batches(self, source: Source, knobs: Sequence[Knob], count: int) -> Iterator[list[Knobs]]:
        """Up to `count` distinct settings other than the source's own, BATCH at a time, so that they compile side by
        side. `tell` each of a batch before the next is taken."""
        if not knobs or count <= 0:
            return
        seed = (self._seed + int(source.sha256[:8], 16)) % (1 << 31)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=BATCH, multivariate=True, group=False, constant_liar=True
            )
        study = optuna.create_study(direction="minimize", sampler=sampler)
        own = tuple(sorted((knob.name, knob.value) for knob in knobs))
        seen, tries = {own}, 0
        while len(seen) <= count:
            batch: list[Knobs] = []
            while len(batch) < BATCH and len(seen) <= count and tries < 4 * count:
                tries += 1
                setting = self._draw(study, source, knobs, seen)
                if setting is not None:
                    batch.append(tuple((n, v) for n, v in setting if dict(own)[n] != v))
            if not batch:
                return
            yield batch

    def _draw(self, study: optuna.Study, source: Source, knobs: Sequence[Knob], seen: set[Knobs]) -> Knobs | None:
        """One more setting, or None when what was drawn is known or too large."""
        trial = study.ask()
        drawn = {knob.name: trial.suggest_categorical(knob.name, knob.choices) for knob in knobs}
        setting = tuple(sorted((name, int(value)) for name, value in drawn.items()))
        if setting in seen or too_large(setting):
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return None
        seen.add(setting)
        with self._lock:
            self._open[(source.sha256, setting)] = (study, trial)
        return setting

    def tell(self, source: Source, setting: Knobs, cost: float | None) -> None:
        """Log time of a setting, or None when it did not build or run."""
        with self._lock:
            for key in [k for k in self._open if k[0] == source.sha256 and set(setting) <= set(k[1])]:
                study, trial = self._open.pop(key)
                if cost is None:
                    study.tell(trial, state=optuna.trial.TrialState.FAIL)
                else:
                    study.tell(trial, cost)
                return
