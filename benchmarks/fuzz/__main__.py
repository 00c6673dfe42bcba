"""Modes of the fuzzer. See `python -m benchmarks.fuzz --help`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.fuzz.farm import Farm, report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True)
    for mode, help in (
        ("record", "compile and launch programs on this GPU, store the results"),
        ("compile", "compile programs here, for a GPU elsewhere"),
        ("launch", "launch on this GPU what was compiled elsewhere"),
    ):
        sub = modes.add_parser(mode, help=help)
        sub.add_argument("--out", type=Path, required=True)
        sub.add_argument("--name", default=mode)
        sub.add_argument("--seconds", type=float, default=480.0)
        if mode == "launch":
            sub.add_argument("source", type=Path, nargs="+")
        else:
            sub.add_argument("--seeds", default="0:1000", help="FIRST:END")
            sub.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    farm = Farm(options.out, options.name, options.mode != "compile", options.seconds)
    if options.mode == "launch":
        for source in options.source:
            farm.launch_all(source)
    else:
        first, end = map(int, options.seeds.split(":"))
        farm.compile(range(first, end), options.workers)
    report(farm)


if __name__ == "__main__":
    main()
