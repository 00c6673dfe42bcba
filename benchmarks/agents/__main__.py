"""Are the agents any good? A language model as policy and as coder, held against measured kernels.

    make bench-agents BASE_URL=http://localhost:8000/v1 MODEL=NAME N=300
    python -m benchmarks.agents --no-model                                    # regrets that need no model

Resumable: called again with the same --out it asks only what it does not know. docs/results/agents.md describes it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from benchmarks.agents import macro, micro
from benchmarks.agents.notebook import Counted, Notebook
from benchmarks.agents.report import print_no_model, print_report
from benchmarks.agents.situations import Situation, situations
from evo_kernel.errors import EvoKernelError, UserError
from operators.learning import TREE
from operators.learning.tree import Tree
from operators.llm.base import Model
from operators.llm.litellm_model import Patience
from operators.open_model import open_model

PARTS = ("macro", "micro")
A_PAIR = 2  # calls that a pair takes, about
ANSWER_S = 300.0  # that one answer may take
TRIES = 3  # that a call's deadline leaves room for


def main(arguments: list[str] | None = None) -> None:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    chosen = options().parse_args(arguments)
    try:
        found = situations(Tree.load(chosen.tree))
        if not found:
            raise UserError(f"no state in {chosen.tree} has all its offers judged: let `train collect` go on")
        if chosen.no_model:
            print_no_model(found)
        else:
            bench(chosen, found)
    except EvoKernelError as error:
        sys.exit(str(error))


def options() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "python -m benchmarks.agents", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--no-model", action="store_true", help="only the policies that need none")
    made.add_argument("--model", help="as litellm spells it")
    made.add_argument("--base-url", help="of a server that speaks chat completions")
    made.add_argument("--api-key-env", help="the environment variable that holds its key")
    made.add_argument("--calls", type=int, default=300, help="in all sessions, shared evenly among the parts")
    made.add_argument("--out", type=Path, default=Path("agents-bench.jsonl"), help="what is found out, a row each")
    made.add_argument("--parts", default=",".join(PARTS), help="of these")
    made.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="judges what is written")
    made.add_argument("--width", type=int, default=4, help="conversations at once")
    made.add_argument("--tree", type=Path, default=TREE, help="what `evo-kernel train collect` made")
    return made


def bench(chosen: argparse.Namespace, found: list[Situation]) -> None:
    """Ask what is not known yet, as far as the calls go, and print all that is. Raises UserError."""
    parts = chosen.parts.split(",")
    check(chosen, parts)
    limit = chosen.calls // len(parts)
    notebook = Notebook(chosen.out, {"model": chosen.model, "tree": chosen.tree.name})
    model = open_chosen_model(chosen)
    try:
        if "macro" in parts:
            asked = Counted(model, notebook, "macro", limit)
            macro.ask(found, asked, notebook, limit // 2, chosen.width)
        if "micro" in parts:
            asked = Counted(model, notebook, "micro", limit)
            some = micro.pairs(found)[: max(1, limit // A_PAIR)]
            micro.ask(some, asked, notebook, chosen.device, chosen.width)
    finally:
        print_report(notebook, found)


def check(chosen: argparse.Namespace, parts: list[str]) -> None:
    """Raises UserError with what to give instead."""
    if not chosen.model:
        raise UserError("name a model with --model, or give --no-model")
    if chosen.model == "scripted":
        raise UserError(f"{chosen.model} thinks nothing: the bench needs a model that answers by itself")
    if unknown := [part for part in parts if part not in PARTS]:
        raise UserError(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if chosen.calls < len(parts):
        raise UserError(f"--calls must be at least {len(parts)}: one a part")


def open_chosen_model(chosen: argparse.Namespace) -> Model:
    patience = Patience(deadline_s=TRIES * ANSWER_S, try_s=ANSWER_S)
    return open_model(chosen.model, base_url=chosen.base_url, api_key_env=chosen.api_key_env, patience=patience)


if __name__ == "__main__":
    main()
