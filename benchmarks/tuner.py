"""How much of what knobs are worth the tuner finds, on made-up landscapes: no GPU, no kernel, under a minute.

    python -m benchmarks.tuner

Log time is a sum over knobs of how many steps each is from its best value, which lies up to two steps from where the
source begins, with one interaction between two knobs; settings whose tiles do not fit shared memory fail. Printed: the
share of the gain that was found by so many settings, mean over sixty landscapes. "product": three tile sizes and warps;
"row": a block size and warps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from evo_kernel.fitness.knobs import Knob
from evo_kernel.fitness.tuner import Search, Space
from evo_kernel.types import Knobs, Source

TILES, WARPS = (16, 32, 64, 128, 256, 512), Knob("NUM_WARPS", 4, (1, 2, 4, 8, 16))
PRODUCT = (Knob("BLOCK_M", 64, TILES), Knob("BLOCK_N", 64, TILES), Knob("BLOCK_K", 32, TILES[:-1]), WARPS)
ROW = (Knob("BLOCK", 1024, (64, 256, 512, 1024, 2048, 4096, 8192)), WARPS)
LANDSCAPES = 60
SHARED_BYTES = 232_000


def landscape(knobs: Sequence[Knob], rng: np.random.Generator) -> Callable[[Knobs], float | None]:
    best = {}
    for knob in knobs:
        place = knob.choices.index(knob.value) + int(rng.choice([-2, -1, 0, 1, 2], p=[0.12, 0.23, 0.3, 0.23, 0.12]))
        best[knob.name] = min(max(place, 0), len(knob.choices) - 1)
    weights = {knob.name: rng.uniform(0.02, 0.25) for knob in knobs}
    cross = rng.uniform(-0.08, 0.08)

    def log_time(setting: Knobs) -> float | None:
        values = {knob.name: knob.value for knob in knobs} | dict(setting)
        away = [knob.choices.index(values[knob.name]) - best[knob.name] for knob in knobs]
        tiles = sorted((values[knob.name] for knob in knobs if "BLOCK" in knob.name), reverse=True)
        if len(tiles) > 2 and (tiles[0] + tiles[1]) * tiles[2] * 4 * 3 > SHARED_BYTES:
            return None
        apart = sum(weights[knob.name] * abs(steps) ** 1.5 for knob, steps in zip(knobs, away, strict=True))
        return apart + abs(cross * (away[0] + away[-1]))

    return log_time


def share_found(knobs: Sequence[Knob], count: int) -> float:
    shares = []
    for seed in range(LANDSCAPES):
        log_time = landscape(knobs, np.random.default_rng(seed))
        own = log_time(())
        assert own is not None
        search, best = Search(seed, Source(f"# {seed}\n"), [Space(tuple(knobs))], count, own), own
        for batch in search.batches():
            for setting in batch:
                cost = log_time(setting)
                search.tell(setting, cost)
                best = best if cost is None else min(best, cost)
        shares.append((own - best) / own if own > 0.02 else 1.0)
    return sum(shares) / len(shares)


def main() -> None:
    for count in (6, 12, 16, 24):
        print(f"{count:3} settings: product {share_found(PRODUCT, count):.2f}, row {share_found(ROW, count):.2f}")


if __name__ == "__main__":
    main()
