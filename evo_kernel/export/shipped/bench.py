"""`python -m PACKAGE.bench`: the operator against the reference, as it is and compiled, on this GPU.

Times are medians of CUDA events around one call, the L2 cache overwritten before each, so launches and the choice of a
kernel count; evo-kernel's judge times kernels alone. Needs torch alone; the compiled reference needs Triton.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from . import _op, _task

FLUSH_BYTES = 256 << 20  # more than the L2 cache of any GPU of today


def median_us(call: Callable[[], Any], samples: int) -> float:
    """Median time of a call by the GPU's own clock."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for _ in range(5):
        call()
    times = []
    for _ in range(samples):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def rows(samples: int) -> list[dict[str, Any]]:
    """One row a timed case."""
    found = []
    for group in (*_op.GROUPS, *_op.BACKWARD_GROUPS):
        module = _task.load(group.data["task"])
        compiled = torch.compile(module.reference)
        for case in group.data["cases"]:
            if case["kind"] == "check":
                continue
            inputs = _task.draw(module, case, 0, "cuda")
            row: dict[str, Any] = {"case": case["name"], "kernel": case["kernel"]}
            # A kernel of the backward is timed by itself: the operator would differentiate around it.
            own = _op.OP if group in _op.GROUPS else functools.partial(_alone, case)
            calls = {"operator": own, "reference": module.reference, "compiled": compiled}
            for name, call in calls.items():
                row[f"{name}_us"] = median_us(lambda call=call, inputs=inputs: call(*inputs), samples)
            found.append(row | {"claimed_us": case.get("us"), "claimed_on": group.data["environment"]})
    return found


def _alone(case: dict[str, Any], *inputs: Any) -> Any:
    return _op.program(case["kernel"]).run(case["name"], inputs)


def main() -> None:
    """Exit code 0: timed; 3: there is no GPU here."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.bench", description=__doc__)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no GPU here: nothing to time", file=sys.stderr)
        sys.exit(3)
    found = rows(options.samples)
    if options.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "cases": found}))
        return
    print(f"µs on {torch.cuda.get_device_name()}, medians of {options.samples}")
    print(f"{'case':<24} {'operator':>10} {'reference':>10} {'compiled':>10} {'claimed':>10}  kernel")
    for row in found:
        times = " ".join(f"{row[f'{name}_us']:>10.1f}" for name in ("operator", "reference", "compiled"))
        claimed = f"{row['claimed_us']:>10.1f}" if row["claimed_us"] is not None else f"{'-':>10}"
        print(f"{row['case']:<24} {times} {claimed}  {row['kernel']} ({row['claimed_on']})")


if __name__ == "__main__":
    main()
