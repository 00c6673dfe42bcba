"""Are the agents any good? Policies and coders of a language model against a measured ground truth.

    make bench-agents BASE_URL=http://localhost:8000/v1 MODEL=NAME N=300
    python -m benchmarks.agents --no-model                                    # regrets that need no model

Resumable: called again with the same --out it asks only what it does not know. docs/agents-bench.md says what is asked.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from benchmarks.agents import coding, problems, thinking, truth
from benchmarks.agents.arms import ARMS, TASKS, ArmLimits, Asked
from benchmarks.agents.arms import run as run_arms
from benchmarks.agents.notebook import MOST_CALLS, Notebook
from benchmarks.agents.regret import Situation, print_no_model, situations
from benchmarks.agents.report import print_report
from evo_kernel.errors import EvoKernelError, UserError
from operators.llm.base import Model
from operators.llm.choose import open_model
from operators.llm.line import Patience

WEIGHTS = {"macro": 4, "micro": 4, "repair": 2, "arms": 4}
"""How the calls are shared among the parts that are asked for."""
A_PAIR = 2 * len(coding.VARIANTS)  # calls that a pair takes in all variants, about
A_FAULT = 3  # calls that a fault takes in both variants, about
ANSWER_S = 300.0
TRIES = 3  # that a call's deadline leaves room for


def main(arguments: list[str] | None = None) -> None:
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    chosen = options().parse_args(arguments)
    try:
        if not chosen.truth.exists():
            raise UserError(f"{chosen.truth} is not there: `python -m benchmarks.agents.collect --out` it, on a GPU")
        rows = truth.read(chosen.truth)
        made = problems.load(chosen.problems)
        found = situations(rows, made)
        if not found:
            raise UserError(f"no parent in {chosen.truth} has every action measured: let `collect` go on")
        if chosen.no_model:
            print_no_model(found)
            return
        bench(chosen, made, found)
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
    made.add_argument("--calls", type=int, default=MOST_CALLS, help=f"in all sessions; at most {MOST_CALLS}")
    made.add_argument("--answer-s", type=float, default=ANSWER_S, help="that one answer may take")
    made.add_argument("--out", type=Path, default=Path("agents-bench.jsonl"), help="what is found out, a row each")
    made.add_argument("--parts", default="macro,micro,repair", help=f"of {', '.join(WEIGHTS)}")
    made.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"], help="judges what is written")
    made.add_argument("--width", type=int, default=4, help="conversations at once")
    made.add_argument("--tune-plans", type=int, default=0, help="knob settings for parent and child each, in micro")
    made.add_argument("--truth", type=Path, default=truth.SHIPPED)
    made.add_argument("--problems", type=Path, default=problems.SHIPPED)
    made.add_argument("--arm-tasks", default=",".join(TASKS), help="comma-separated")
    made.add_argument("--arm-dollars", type=float, help="of each arm on each task")
    made.add_argument("--arm-tokens", type=int, help="the same, where the model's price is not known")
    made.add_argument("--arm-hours", type=float, default=1.0)
    return made


def bench(chosen: argparse.Namespace, made: problems.Problems, found: list[Situation]) -> None:
    """Ask what is not known yet, as far as the calls go, and print all that is. Raises UserError."""
    parts = chosen.parts.split(",")
    check(chosen, parts)
    calls = min(chosen.calls, MOST_CALLS)
    notebook = Notebook(chosen.out, {"model": chosen.model, "problems": made.sha256[:16]}, calls)
    limits = shares(calls, parts)
    model = _model(chosen)
    where = coding.Where(chosen.device, chosen.tune_plans, chosen.width)
    try:
        if "macro" in parts:
            thinking.ask(found, model, notebook, limits["macro"], chosen.width)
        if "micro" in parts:
            pairs = coding.pairs(found, min(coding.PAIRS, max(1, limits["micro"] // A_PAIR)))
            coding.write(pairs, model, notebook, limits["micro"], where)
        if "repair" in parts:
            faults = in_turn(made.planted)[: max(1, limits["repair"] // A_FAULT)]
            coding.repair(faults, model, notebook, limits["repair"], where)
        if "arms" in parts:
            tasks = tuple(chosen.arm_tasks.split(","))
            each = ArmLimits(
                chosen.arm_dollars, chosen.arm_tokens, chosen.arm_hours, limits["arms"] // (len(ARMS) * len(tasks))
            )
            asked = Asked(chosen.model, chosen.base_url, chosen.device, chosen.api_key_env)
            run_arms(notebook, tasks, asked, each, chosen.out.with_suffix(".arms"))
    finally:
        print_report(notebook, found)


def check(chosen: argparse.Namespace, parts: list[str]) -> None:
    """Raises UserError with what to give instead."""
    if not chosen.model:
        raise UserError("name a model with --model, or give --no-model")
    if chosen.model.split(":")[0] in ("scripted", "replay"):
        raise UserError(f"{chosen.model} thinks nothing: the bench needs a model that answers by itself")
    if unknown := [part for part in parts if part not in WEIGHTS]:
        raise UserError(f"no such part: {', '.join(unknown)}; there are {', '.join(WEIGHTS)}")
    if chosen.calls < 1:
        raise UserError("--calls must be at least 1")
    if "arms" in parts and (chosen.arm_dollars is None) == (chosen.arm_tokens is None):
        raise UserError("the arms need one limit that is the same for all: --arm-dollars, or --arm-tokens")


def shares(calls: int, parts: list[str]) -> dict[str, int]:
    """Calls by part; they add up to no more than `calls`."""
    whole = sum(WEIGHTS[part] for part in parts)
    return {part: calls * WEIGHTS[part] // whole for part in parts}


def in_turn(planted: tuple[problems.Planted, ...], seed: int = 0) -> list[problems.Planted]:
    """Categories in turn, tasks mixed: any first part of them has all categories."""
    order = np.random.default_rng(seed).permutation(len(planted))
    by_category: dict[str, list[problems.Planted]] = {}
    for at in order:
        by_category.setdefault(planted[int(at)].category, []).append(planted[int(at)])
    ranked = [(place, name, one) for name in sorted(by_category) for place, one in enumerate(by_category[name])]
    return [one for _, _, one in sorted(ranked, key=lambda entry: entry[:2])]


def _model(chosen: argparse.Namespace) -> Model:
    patience = Patience(deadline_s=TRIES * chosen.answer_s, try_s=chosen.answer_s)
    return open_model(
        [chosen.model],
        np.random.default_rng(0),
        base_url=chosen.base_url,
        api_key_env=chosen.api_key_env,
        patience=patience,
    )


if __name__ == "__main__":
    main()
