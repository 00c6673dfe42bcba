"""Calibration of the time model: measure many plans, fit the model's constants to them, say how well it ranks.

    python -m benchmarks.calibrate collect --tasks softmax,rmsnorm --seconds 240 --out measured.jsonl
    python -m benchmarks.calibrate pack measured.jsonl.xz --out benchmarks/calibration/h200.jsonl.xz
    python -m benchmarks.calibrate fit benchmarks/calibration/h200.jsonl.xz

`collect` takes --seconds a task. It may be called again with the same file: it goes on with what is not in it. Several
may run side by side, each with a GPU (CUDA_VISIBLE_DEVICES), a part of the cores (taskset) and a file of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch
import triton

from benchmarks import FIGURES_OF
from benchmarks.calibration import samples
from benchmarks.calibration.collect import Collector, drawn, widened
from benchmarks.calibration.figures import print_ranks


def main(arguments: list[str] | None = None) -> None:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="command", required=True)
    one = commands.add_parser("collect", help="measure plans, a line each")
    one.add_argument("--tasks", default=",".join(FIGURES_OF), help="comma-separated")
    one.add_argument("--seconds", type=float, default=240.0, help="a task, starting and ending included")
    one.add_argument("--out", type=Path, required=True, help="rows are appended here, and packed beside it at the end")
    one.add_argument("--device", default="cuda", help="cpu: modeled times stand in for measured ones (a dry run)")
    one.add_argument("--variants", type=int, default=900, help="sources a task, at most")
    one.add_argument("--cases-each", type=int, default=3, help="cases that each structure is measured on")
    one.add_argument(
        "--threads", type=int, default=3 * len(os.sched_getaffinity(0)) // 2 + 2, help="variants in flight"
    )
    one.add_argument("--seed", type=int, default=0)
    two = commands.add_parser("pack", help="one file of several packed ones")
    two.add_argument("files", type=Path, nargs="+", help="what `collect` left packed, on one kind of device")
    two.add_argument("--out", type=Path, required=True)
    three = commands.add_parser("fit", help="fit the constants, and say how well the model ranks before and after")
    three.add_argument("files", type=Path, nargs="*", default=[samples.SHIPPED])
    three.add_argument("--processes", type=int, default=2)
    four = commands.add_parser("show", help="how well the model ranks with its constants as they are")
    four.add_argument("files", type=Path, nargs="*", default=[samples.SHIPPED])
    chosen = made.parse_args(arguments)
    {"collect": collect, "pack": pack, "fit": fit, "show": show}[chosen.command](chosen)


def collect(chosen: argparse.Namespace) -> None:
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    known = {(s.task, s.case, s.source) for s in (samples.read([chosen.out]) if chosen.out.exists() else [])}
    print(f"{'task':<14}{'rows':>6}{'s':>6}{'rows/s':>8}", flush=True)
    device = ""
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.tasks.split(","):
            end = time.monotonic() + chosen.seconds - 5.0
            try:
                task = widened(name, Path(folder))
                variants = drawn(task, chosen.variants, chosen.cases_each, chosen.seed)
                collector = Collector(task, chosen.device, chosen.out, known)
                tally = collector.collect(variants, chosen.threads, end)
                device = tally.device or device
                rate = tally.rows / max(tally.elapsed_s, 1e-9)
                print(f"{name:<14}{tally.rows:>6}{tally.elapsed_s:>6.0f}{rate:>8.1f}", flush=True)
                for what, count in tally.out.most_common():
                    print(f"    left out: {count} {what}, for example: {tally.why[what][-300:]!r}", flush=True)
            except Exception:  # noqa: BLE001 (the other tasks' rows are still wanted)
                print(f"{name}: failed\n{traceback.format_exc()}", flush=True)
    if not chosen.out.exists():
        sys.exit("nothing was measured: see the faults above")
    found = samples.read([chosen.out])
    packed = chosen.out.with_suffix(chosen.out.suffix + ".xz")
    samples.pack(found, packed, origin(device))
    print(f"{len(found)} rows in {chosen.out}, packed in {packed}: {packed.stat().st_size} bytes")
    print_ranks(found)


def fit(chosen: argparse.Namespace) -> None:
    from benchmarks.calibration import fit as fits  # needs scipy, which collecting does not

    found = samples.read(chosen.files)
    made = fits.evaluated(found, chosen.processes)
    titles = ("task", "plans", "before", "after", "left out", "siblings", "left out", "factor off", "", "top kept", "")
    print("{:<14}{:>6}{:>9}{:>9}{:>10}{:>11}{:>10}{:>12}{:>6}{:>10}{:>6}".format(*titles))
    for task, old in made.before.items():
        new, apart = made.after[task], made.apart[task]
        print(
            f"{task:<14}{new.rows:>6}{old.within:>9.3f}{new.within:>9.3f}{apart.within:>10.3f}"
            f"{old.siblings:>11.3f}{apart.siblings:>10.3f}{old.factor:>12.2f}{apart.factor:>6.2f}"
            f"{old.kept:>10.0%}{apart.kept:>6.0%}"
        )
    print("Spearman within a case before, after, and by constants that never saw the task (left out); the same among")
    print("settings of one structure, before and left out; so are the median factor off, and the share of the fastest")
    print("tenth that is in the best-modeled half.")
    print("\nconstants:")
    for name, (before, after) in fits.changed(made.constants).items():
        print(f"    {name}: float = {after:<12g}# was {before:g}")


def show(chosen: argparse.Namespace) -> None:
    for path in chosen.files:
        if path.suffix == ".xz":
            print(f"{path.name}: {samples.about(path)}")
    print_ranks(samples.read(chosen.files))


def pack(chosen: argparse.Namespace) -> None:
    for path in chosen.files:
        if path.suffix != ".xz":
            sys.exit(f"{path} is not packed and does not say where it was measured: give {path.name}.xz, beside it")
    origins = [samples.about(path) for path in chosen.files]
    if len({(one["device"], one["torch"], one["triton"]) for one in origins}) > 1:
        sys.exit("the files come from different devices or versions: their times do not compare")
    found = samples.read(chosen.files)
    samples.pack(found, chosen.out, origins[0] | {"command": "; ".join(one["command"] for one in origins)})
    print(f"{len(found)} rows, {chosen.out.stat().st_size} bytes")


def origin(device: str) -> dict[str, str]:
    return {
        "device": device,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "command": " ".join(["python -m benchmarks.calibrate", *sys.argv[1:]]),
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    main()
