"""A child: what KernelBench's own functions say of solution files, on a CPU with TRITON_INTERPRET=1.

Arguments: its checkout, a problem's file, solutions' files. Prints one JSON line; ends with 3 where its own
dependencies are missing.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import torch


def main(checkout: str, problem: str, *solutions: str) -> None:
    sys.path.insert(0, f"{checkout}/src")
    try:
        from kernelbench import eval as harness  # pyright: ignore[reportMissingImports]
        from kernelbench.kernel_static_checker import validate_kernel_static  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        print(f"KernelBench needs {error.name}", file=sys.stderr)
        sys.exit(3)
    torch.cuda.synchronize = lambda device=None: None  # there is nothing to wait for
    text = Path(problem).read_text()
    found = [asked(harness, validate_kernel_static, text, Path(solution)) for solution in solutions]
    print(json.dumps(found))


def asked(harness: Any, validate: Any, problem: str, solution: Path) -> dict[str, Any]:
    """As eval_kernel_against_ref does it, without its clean-up of a GPU."""
    text = solution.read_text()
    original, init, inputs = harness.load_original_model_and_inputs(problem, {})
    new, temporary = harness.load_custom_model_with_tempfile(text, entry_point="ModelNew")
    made = []
    with torch.no_grad():
        harness.set_seed(42)
        given = [harness._process_input_tensor(value, "cpu", "triton") for value in init()]
        for model in (original, new):
            harness.set_seed(42)
            made.append(model(*given).to(dtype=torch.float32))
    result = harness.run_and_check_correctness(
        *made, inputs, metadata={}, num_correct_trials=1, seed=42, device="cpu", backend="triton"
    )
    temporary.close()
    os.remove(temporary.name)
    fine, errors, _ = validate(text, backend="triton", precision="fp32")
    return {
        "named": bool(re.fullmatch(r"level_\d+_problem_\d+_sample_\d+_kernel\.py", solution.name)),
        "compiled": result.compiled,
        "correct": result.correctness,
        "refused": [] if fine else errors,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
