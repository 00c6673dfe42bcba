"""The tuner: which knob settings to try for a source. Optuna's TPE sampler behind ask and tell.

Settings are compared with the source's own by the judge; a knob change is never a strategy. Deterministic for a seed.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence

import optuna

from evo_kernel.fitness.knobs import Knob
from evo_kernel.types import Knobs, Source

_NOT_TILES = ("WARPS", "STAGES", "GROUP", "SPLIT", "PROGRAMS", ".config")
_STARTUP = 4  # settings drawn at random before the sampler models what it saw


MAX_TILE, MAX_WORK = 128 * 256, 128 * 256 * 64
"""Elements of the two, and of the three, largest tile sizes together. Beyond them the accumulators of a program do not
fit into the registers of an SM, and the compiler spends minutes on what then spills."""


def too_large(setting: Knobs) -> bool:
    """Whether several tile sizes of one setting are large together; one large row block alone is fine."""
    tiles = sorted((v for name, v in setting if not any(w in name for w in _NOT_TILES)), reverse=True)
    return len(tiles) > 1 and (tiles[0] * tiles[1] > MAX_TILE or math.prod(tiles[:3]) > MAX_WORK)


class Tuner:
    """Proposes settings for many sources at once. Thread-safe."""

    def __init__(self, seed: int) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._seed = seed
        self._lock = threading.Lock()
        self._open: dict[tuple[str, Knobs], tuple[optuna.Study, optuna.Trial]] = {}

    def settings(self, source: Source, knobs: Sequence[Knob], count: int) -> Iterator[Knobs]:
        """Up to `count` distinct settings other than the source's own; `tell` each before the next is taken."""
        if not knobs or count <= 0:
            return
        seed = (self._seed + int(source.sha256[:8], 16)) % (1 << 31)
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, multivariate=True, group=False)
        study = optuna.create_study(direction="minimize", sampler=sampler)
        own = tuple(sorted((knob.name, knob.value) for knob in knobs))
        seen = {own}
        for _ in range(4 * count):
            if len(seen) > count:
                return
            trial = study.ask()
            drawn = {knob.name: trial.suggest_categorical(knob.name, knob.choices) for knob in knobs}
            setting = tuple(sorted((name, int(value)) for name, value in drawn.items()))
            if setting in seen or too_large(setting):
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                continue
            seen.add(setting)
            with self._lock:
                self._open[(source.sha256, setting)] = (study, trial)
            yield tuple((n, v) for n, v in setting if dict(own)[n] != v)

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
