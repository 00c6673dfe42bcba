"""A child process: compile the examples of the knowledge notes for sm_90, with no GPU.

    python -P compile_notes.py FOLDER     (FOLDER holds jobs.json: a list of {name, file, options, signature, constants})

Prints a JSON list: per job its PTX, or the reason why it did not compile.
"""

import importlib.util
import json
import os
import sys
from pathlib import Path

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource


def compiled(folder, job):
    spec = importlib.util.spec_from_file_location(job["name"], folder / job["file"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = getattr(module, job["name"])
    assert kernel.arg_names == list(job["signature"]), f"the comment names {list(job['signature'])}"
    aligned = [(i,) for i, kind in enumerate(job["signature"].values()) if kind.startswith("*") or kind == "i32"]
    attributes = {path: [["tt.divisibility", 16]] for path in aligned}
    source = GluonASTSource if job["gluon"] else ASTSource
    built = triton.compile(
        source(kernel, job["signature"], job["constants"], attributes),
        target=GPUTarget("cuda", 90, 32),
        options=job["options"],
    )
    assert built.asm["cubin"]
    return built.asm["ptx"]


def main(folder):
    answers = []
    for job in json.loads((folder / "jobs.json").read_text()):
        try:
            answers.append([compiled(folder, job), ""])
        except Exception as error:  # noqa: BLE001  whatever the compiler raises is the answer
            answers.append(["", f"{type(error).__name__}: {error}"])
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
