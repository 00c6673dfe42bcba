"""`python -m PACKAGE.verify`: are these the files that were exported, and do the kernels compute the reference?

On a GPU every judged case is computed again. Without one nothing is, unless evo-kernel is installed, which executes the
kernels' IR: then all cases of kernels that were judged so are, of others the small ones. Inputs are drawn anew. Errors
are measured from the reference in float64 and held against what the reference itself reaches in the task's dtypes. The
judge of evo-kernel is stricter (it also watches inputs, unwritten elements and repeatability): `evo-kernel verify` runs
it. Needs torch alone.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import math
import secrets
import sys
from collections.abc import Mapping
from typing import Any

import torch

from . import _launch, _op, _task

EPSILON = {torch.float64: 2.0**-52, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


def changed_files() -> list[str]:
    """Files that are not what was exported."""
    wanted = _op.MANIFEST["files"]
    found = {name: _op.HERE / name for name in wanted}
    return [
        name
        for name, path in found.items()
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != wanted[name]
    ]


def compare(group: Mapping[str, Any], case: dict[str, Any], device: str, seed: int) -> tuple[str, float]:
    """(what is wrong, or nothing; the worst error ÷ what is allowed) of a case's kernel on inputs drawn now."""
    module = _task.load(group["task"])
    inputs = _task.draw(module, case, seed, device)
    got = _op.program(case["kernel"]).run(case["name"], _copies(inputs))
    own = _task.outputs(module, _copies(inputs))
    truth = _task.outputs(module, _wide(inputs))
    moved = _task.outputs(module, _moved(_wide(inputs), group["tolerance"], seed))
    if len(got) != len(own):
        return f"{len(got)} outputs where the reference has {len(own)}", math.inf
    worst = 0.0
    for parts in zip(got, own, truth, moved, strict=True):
        reason, error = fault(*parts, tolerance=group["tolerance"], length=_longest(inputs))
        worst = max(worst, error)
        if reason:
            return reason, worst
    return "", worst


def fault(
    got: torch.Tensor,
    own: torch.Tensor,
    truth: torch.Tensor,
    moved: torch.Tensor,
    *,
    tolerance: dict[str, Any],
    length: int,
) -> tuple[str, float]:
    """(what is wrong with an output, or nothing; its error ÷ what is allowed).

    By the reference in the task's dtypes, in float64, and in float64 on moved inputs.
    """
    if (got.shape, got.dtype) != (own.shape, own.dtype):
        return f"gives {got.dtype} {tuple(got.shape)} for {own.dtype} {tuple(own.shape)}", math.inf
    if not own.is_floating_point():
        return _integer_fault(got, own, moved, tolerance["relative_multiple"])
    epsilon = EPSILON.get(_dtype_of(tolerance, own), 2.0**-23)
    got, own, truth, moved = (one.double() for one in (got, own, truth, moved))
    finite = truth.isfinite() & own.isfinite()
    if not torch.equal(got.isfinite() & finite, finite):
        return "gives infinities or NaN where the reference does not", math.inf
    got, own, truth, moved = (torch.where(finite, one, 0.0) for one in (got, own, truth, moved))
    rounding = epsilon + min(epsilon, 2.0**-23) * 0.25 * math.sqrt(length)  # sums are at least float32
    error, honest = (got - truth).abs(), (own - truth).abs() + (moved - truth).abs()
    largest = truth.abs().max().item() if truth.numel() else 0.0
    bounds = [
        (error.norm().item(), tolerance["relative_multiple"] * (honest.norm().item() + rounding * truth.norm().item())),
        (error.max().item() if error.numel() else 0.0,
         tolerance["max_multiple"] * ((honest.max().item() if honest.numel() else 0.0) + rounding * largest)),
    ]  # fmt: skip
    ratio = max(found / (bound + tolerance["absolute"] + 1e-300) for found, bound in bounds)
    return ("" if ratio <= 1.0 else f"is off by {ratio:.3g}x what is allowed"), ratio


def _integer_fault(got: torch.Tensor, own: torch.Tensor, moved: torch.Tensor, multiple: float) -> tuple[str, float]:
    """Integers may differ at `multiple` times as many elements as where inputs are moved by a rounding, and by as much;
    not where more than a hundredth changes: there ties decide."""
    wrong, unsure = got != own, moved != own
    count, changed = int(wrong.sum()), int(unsure.sum())
    if not count:
        return "", 0.0
    if count <= multiple * changed <= multiple * 0.01 * own.numel():
        steps = [
            (one[where].double() - own[where].double()).abs().max() for one, where in ((got, wrong), (moved, unsure))
        ]
        if bool(steps[0] <= steps[1]):
            return "", count / (multiple * changed)
    return f"differs at {count} of {own.numel()} integers", math.inf


def _dtype_of(tolerance: dict[str, Any], own: torch.Tensor) -> torch.dtype:
    return getattr(torch, tolerance["dtype"], own.dtype)


def _copies(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.clone() if isinstance(value, torch.Tensor) else value for value in inputs)


def _wide(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    floating = [isinstance(value, torch.Tensor) and value.is_floating_point() for value in inputs]
    return tuple(value.double() if wide else value for value, wide in zip(inputs, floating, strict=True))


def _moved(wide: tuple[Any, ...], tolerance: dict[str, Any], seed: int) -> tuple[Any, ...]:
    """Every input moved by rounding (of tf32 where that is allowed): what an honest kernel may be off by, too."""
    step = 2.0**-11 if tolerance["precision"] == "tf32" else 2.0**-22
    generator = torch.Generator().manual_seed(seed)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        signs = torch.randint(0, 2, value.shape, generator=generator).to(value.device) * 2 - 1
        return value * (1.0 + step * signs)

    return tuple(map(moved, wide))


def _longest(inputs: tuple[Any, ...]) -> int:
    return max((max(v.shape, default=1) for v in inputs if isinstance(v, torch.Tensor)), default=1)


def executes_ir() -> bool:
    """Whether this process can execute kernels without a GPU: from here on it does."""
    found = importlib.util.find_spec("evo_kernel") if sys.modules.get("evo_kernel", ...) is not None else None
    if found is not None:
        importlib.import_module(_launch.ON_A_CPU)
    return found is not None


def main() -> None:
    """Exit code 0: all is as exported, and right; 1: it is not; 3: nothing could be executed here."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.verify", description=__doc__)
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--seed", type=int, help="of the inputs; drawn if left out")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    seed = secrets.randbits(31) if options.seed is None else options.seed
    changed, rows, skipped = changed_files(), [], ""
    if device == "cpu" and not executes_ir():
        skipped = "kernels are machine code of a GPU; evo-kernel, which executes their IR, is not installed"
    for group in () if skipped else (*_op.GROUPS, *_op.BACKWARD_GROUPS):
        if skipped := _launch.misplaced([torch.empty(1, device=device)], group.data["target"]):
            continue
        was_measured = "modeled" not in group.data["environment"]
        for case in group.data["cases"]:
            if device == "cpu" and was_measured and case["kind"] != "check":
                continue  # large cases of what a GPU judged take minutes here
            try:
                reason, error = compare(group.data, case, device, seed)
            except NotImplementedError as failure:
                skipped = str(failure)
                break
            rows.append({"case": case["name"], "kernel": case["kernel"], "fault": reason, "error": error})
    _tell(options.json, device, seed, changed, rows, skipped)
    wrong = changed or any(row["fault"] for row in rows)
    sys.exit(1 if wrong else 0 if rows else 3)


def _tell(as_json: bool, device: str, seed: int, changed: list[str], rows: list[dict[str, Any]], skipped: str) -> None:
    unsure = _op.MANIFEST["not_confirmed"]
    if as_json:
        told = {"device": device, "seed": seed, "changed": changed, "cases": rows, "skipped": skipped}
        print(json.dumps(told | {"not_confirmed": unsure}))
        return
    if unsure:
        print(f"NOT CONFIRMED: {', '.join(unsure)}; README.md says why")
    files = len(_op.MANIFEST["files"])
    print("changed since export: " + ", ".join(changed) if changed else f"{files} files are as exported")
    for row in rows:
        verdict = f"WRONG: {row['fault']}" if row["fault"] else f"ok, off by {row['error']:.3g}x what is allowed"
        print(f"{row['case']:<24} {row['kernel']:<16} {verdict}")
    if skipped:
        print(f"not executed: {skipped}")
    print(f"on {device}, seed {seed}; what is allowed is this check's estimate, which is simpler than the judge's")


if __name__ == "__main__":
    main()
