"""Modes of the fuzzer.

live       new programs, shrunk by Hypothesis where executor and compiler disagree (with a GPU: results too)
record     compile and launch programs on this GPU, store the results
compare    stored results against the executor
undefined  store programs with a fault, which the executor must find
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.fuzz.farm import Farm, report
from benchmarks.fuzz.stored import read, write

RESULTS = Path(__file__).with_name("results")


def main() -> None:
    options = _parser().parse_args()
    if options.mode == "live":
        from benchmarks.fuzz.live import fuzz

        fuzz(options.examples)
    elif options.mode == "record":
        _record(options)
    elif options.mode == "compare":
        raise SystemExit(_compare(options.source or sorted(RESULTS.glob("*.xz")), options.workers))
    else:
        _undefined(options.out, options.count)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mode", choices=("live", "record", "compare", "undefined"))
    parser.add_argument("source", type=Path, nargs="*", help="files of cases (compare)")
    parser.add_argument("--out", type=Path, help="folder (record) or file of what is made")
    parser.add_argument("--name", default="h200", help="begins the names of files in the folder")
    parser.add_argument("--seconds", type=float, default=480.0, help="after which no program is begun")
    parser.add_argument("--seeds", default="0:1000", help="FIRST:END (record)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--count", type=int, default=2000, help="cases that are made (undefined)")
    parser.add_argument("--examples", type=int, default=300, help="programs that Hypothesis draws (live)")
    return parser


def _record(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    farm = Farm(options.out, options.name, options.seconds)
    farm.record(range(*map(int, options.seeds.split(":"))), options.workers)
    report(farm)


def _compare(paths: list[Path], workers: int) -> int:
    """Prints what differs; the number of such cases."""
    from benchmarks.fuzz.comparing import judged

    began, kinds = time.monotonic(), Counter[str]()
    with ProcessPoolExecutor(workers, initializer=_one_thread) as pool:
        cases = [case for path in paths for case in read(path)]
        for case, verdict in zip(cases, pool.map(judged, cases, chunksize=32), strict=True):
            kinds[verdict.kind] += 1
            if verdict.kind != "same" and kinds[verdict.kind] <= 60:
                made_of = " ".join(case.operations)
                print(f"{verdict.kind}\t{case.triton}\t{verdict.seed}\t{verdict.detail[:200]}\t{made_of}")
    print(f"{len(cases)} programs in {time.monotonic() - began:.0f} s: {dict(kinds)}")
    return len(cases) - kinds["same"]


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _undefined(out: Path, count: int) -> None:
    import triton

    from benchmarks.fuzz.compiling import compiled
    from benchmarks.fuzz.stored import case_of
    from benchmarks.fuzz.undefined import undefined_from_seed

    programs = [undefined_from_seed(seed) for seed in range(count)]
    write(out, [case_of(p, compiled(p, until="ttir"), triton.__version__) for p in programs], preset=9)


if __name__ == "__main__":
    main()
