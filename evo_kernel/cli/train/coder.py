"""`train coder`: supervised training on edits, then GRPO with the judge's rewards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from evo_kernel.app.signals import handling
from evo_kernel.app.train.device import chosen_device
from evo_kernel.cli.options import JSON
from evo_kernel.errors import UserError

if TYPE_CHECKING:
    from evo_kernel.app.train.judging import BenchSettings
    from operators.learning.coder.rewards import RewardParts
    from operators.learning.coder.scratch.run import RunSettings


@click.command()
@click.argument("examples", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The run's folder; an old one goes on.")
@click.option("--model", default="scratch", show_default=True,
              help="`scratch`: a small network from nothing; `scratch:PATH`: one that was trained before; else a "
              "Hugging Face model, by name or path.")  # fmt: skip
@click.option("--size", type=click.Choice(["tiny", "mini", "small", "base"]), default="base", show_default=True)
@click.option("--reward", default="full", show_default=True, help="full, correct, or binary (Triton and passes).")
@click.option("--part", "parts", multiple=True, help="NAME=VALUE: a part of the reward; again for more.")
@click.option("--task", "tasks", multiple=True, help="Earn rewards on this task alone; again for more.")
@click.option("--apart", is_flag=True,
              help="Do not teach the examples of these tasks (--task): rewards alone speak of them.")  # fmt: skip
@click.option("--sft-steps", default=3000, show_default=True, help="Steps of the supervised stage.")
@click.option("--sft-minutes", type=float, help="End the supervised stage after so long.")
@click.option("--grpo-steps", default=60, show_default=True, help="Steps of the rewarded stage; 0: none.")
@click.option("--grpo-minutes", type=float, help="End the rewarded stage after so long.")
@click.option("--batch", default=48, show_default=True, help="Examples in a supervised step.")
@click.option("--groups", default=12, show_default=True, help="Requests in a rewarded step.")
@click.option("--answers", default=8, show_default=True, help="Answers to each request.")
@click.option("--sft-rate", default=1e-3, show_default=True, help="Learning rate of the supervised stage.")
@click.option("--grpo-rate", default=3e-5, show_default=True, help="Learning rate of the rewarded stage.")
@click.option("--most", default=384, show_default=True, help="Tokens of an answer.")
@click.option("--asked", default=48, show_default=True, help="Held-out requests that the rate is measured on; 0: none.")
@click.option("--samples", default=4, show_default=True, help="Answers to each of them.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--gpus", default="1", show_default=True, help="GPUs that judge, a number or all.")
@click.option("--threads", default=8, show_default=True, help="Kernels that are judged at once.")
@click.option("--most-open", default=8, show_default=True, help="Tasks whose judges are open at once.")
@click.option("--deadline", "deadline_s", default=20.0, show_default=True, help="Seconds for one recording or check.")
@click.option("--seed", default=0, show_default=True, help="Of weights, batches and samples.")
@click.option("--unconfined", is_flag=True, help="Go on where candidate code cannot be confined at all.")
@JSON
def coder(examples: Path, out: Path, model: str, as_json: bool, **options: Any) -> None:
    """Train a coder on the EXAMPLES of `train export-sft`: supervised, then by the judge's rewards (GRPO).

    With `--model scratch` a transformer of a few million parameters learns to write short edits; it needs torch alone.
    A Hugging Face model is trained through TRL with LoRA (extra `rl`). The rate of right answers on the held-out split
    is measured before and after the rewards. Ctrl-C keeps what there is, and the same command goes on.

    \b
    evo-kernel train coder edits.jsonl --out coder/
    evo-kernel train coder edits.jsonl --out rewarded/ --model scratch:coder/sft.pt --sft-steps 0 --reward correct
    evo-kernel train coder edits.jsonl --out coder/ --model Qwen/Qwen2.5-Coder-1.5B-Instruct --reward binary
    evo-kernel run softmax --model scratch:coder/coder.pt
    """
    from operators.learning.coder.examples import read
    from operators.learning.coder.rewards import parts_of

    reward = parts_of(options["reward"], _pairs(options["parts"]))
    if options["apart"] and not options["tasks"]:
        raise UserError("--apart keeps the examples of rewarded tasks from being taught: name these with --task")
    kind, colon, start = model.partition(":")
    if kind == "scratch" and colon and not start:
        raise UserError("--model scratch: names no file: say scratch:PATH, or `scratch` to begin from nothing")
    if kind != "scratch":
        if options["apart"]:
            raise UserError("--apart is for `--model scratch`; give a Hugging Face model a file without those examples")
        _hub(model, examples, out, reward, options)
        return
    settings = _settings(Path(start) if start else None, reward, options)
    _scratch(read(examples), settings, out, options, as_json)


def _settings(start: Path | None, reward: RewardParts, options: Mapping[str, Any]) -> RunSettings:
    from evo_kernel.fitness.gpus import usable_cores
    from operators.learning.coder.scratch.grpo import GrpoSettings
    from operators.learning.coder.scratch.run import RunSettings
    from operators.learning.coder.scratch.sft import SftSettings

    return RunSettings(
        size=options["size"],
        sft=SftSettings(
            options["sft_steps"], options["batch"], options["sft_rate"], seed=options["seed"],
            every=max(1, min(500, options["sft_steps"] // 10)),
        ),
        grpo=GrpoSettings(
            options["grpo_steps"], options["groups"], options["answers"], most=options["most"],
            rate=options["grpo_rate"], seed=options["seed"],
        ),
        parts=reward,
        sft_s=_seconds(options["sft_minutes"]),
        grpo_s=_seconds(options["grpo_minutes"]),
        asked=options["asked"],
        samples=options["samples"],
        start=start,
        apart=options["apart"],
        tasks=tuple(options["tasks"]),
        seed=options["seed"],
        workers=usable_cores(),
    )  # fmt: skip


def _scratch(
    examples: Sequence[Any], settings: RunSettings, out: Path, options: Mapping[str, Any], as_json: bool
) -> None:
    from evo_kernel.app.train.judging import PlanRewardJudge
    from operators.learning.coder.scratch.run import printed, run

    out.mkdir(parents=True, exist_ok=True)
    with (
        (out / "progress.jsonl").open("a", encoding="utf-8") as log,
        interruptible() as stop,
        PlanRewardJudge(_judging(options)) as bench,
    ):

        def tell(told: Mapping[str, Any]) -> None:
            log.write(json.dumps(dict(told)) + "\n")
            log.flush()
            click.echo(printed(told), err=as_json)

        needed = bench if options["grpo_steps"] or options["asked"] else None
        result = run(examples, out, settings, needed, chosen_device(options["device"]), tell, stop.is_set)
        verdicts = bench.judged_count
    rates = {name: rate.data() for name, rate in (("before", result.before), ("after", result.after)) if rate}
    if as_json:
        data = {"ended": result.ended, "stage": result.stage, "judged": verdicts, "coder": str(out / "coder.pt")}
        click.echo(json.dumps({**data, **rates}))
        return
    for name, rate in rates.items():
        when = f", {name} the rewards" if options["grpo_steps"] else ""
        click.echo(
            f"held out{when}: {100 * rate['right']:.1f}% right ({100 * rate['low']:.1f} to "
            f"{100 * rate['high']:.1f}), {100 * rate['witnessed']:.1f}% with the sign asked for, likeliest answer "
            f"{100 * rate['likeliest']:.1f}%, reward {rate['reward']:.3f}; {rate['requests']} requests, "
            f"{rate['samples']} answers each"
        )
    if not result.ended:
        click.echo(f"stopped in stage {result.stage}; the same command goes on")
    click.echo(f"coder: {out / 'coder.pt'} ({verdicts} kernels judged in this session)")


def _hub(model: str, examples: Path, out: Path, reward: RewardParts, options: Mapping[str, Any]) -> None:
    from evo_kernel.app.train.reward import JudgedReward
    from operators.learning.coder.hub import HubSettings, train

    settings = HubSettings(
        model=model, sft_steps=options["sft_steps"], grpo_steps=options["grpo_steps"], answers=options["answers"],
        groups=options["groups"], most=options["most"], seed=options["seed"],
        cpu=chosen_device(options["device"]) == "cpu",
    )  # fmt: skip
    with JudgedReward(parts=reward, bench=_judging(options)) as judged:
        place = train(settings, examples, out, judged, tuple(options["tasks"]))
    click.echo(f"adapter: {place}. Serve it with any OpenAI-compatible server and name that with --model.")


def _judging(options: Mapping[str, Any]) -> BenchSettings:
    from evo_kernel.app.train.judging import BenchSettings

    names = ("device", "gpus", "threads", "deadline_s", "most_open", "unconfined")
    return BenchSettings(**{name: options[name] for name in names})


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Set by the first SIGINT or SIGTERM, which finishes the step under way; the second interrupts it."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        os.write(2, f"\n{signal.Signals(number).name}: finishing this step; once more stops now\n".encode())

    with handling(handle):
        yield stop


def _pairs(parts: Sequence[str]) -> dict[str, str]:
    if wrong := [part for part in parts if "=" not in part]:
        raise UserError(f"--part {wrong[0]}: write NAME=VALUE, e.g. --part speed=0")
    return {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in parts)}


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else 60.0 * minutes
