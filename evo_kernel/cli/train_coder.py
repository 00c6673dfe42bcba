"""`train coder`: supervised training on edits, then GRPO with the judge's rewards."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evo_kernel.cli.options import DEVICE, JSON, PATH, SECONDS, UNCONFINED
from evo_kernel.errors import UserError

if TYPE_CHECKING:
    from evo_kernel.app.train.judging import BenchSettings
    from operators.learning.coder.hub import HubSettings
    from operators.learning.coder.rewards import RewardParts
    from operators.learning.coder.scratch.run import RunSettings


@click.command()
@click.argument("examples", type=PATH)
@click.option("--out", required=True, type=PATH, help="The run's folder; an existing one is continued.")
@click.option("--model", default="scratch", show_default=True,
              help="`scratch`: a small network from nothing; `scratch:PATH`: one that was trained before; else a "
              "Hugging Face model, by name or path.")  # fmt: skip
@click.option("--size", type=click.Choice(["tiny", "mini", "small", "base"]), default="base", show_default=True)
@click.option("--reward", default="full", show_default=True, help="full, correct, or binary (Triton and passes).")
@click.option("--part", "parts", multiple=True, help="NAME=VALUE: a part of the reward; repeatable.")
@click.option("--task", "tasks", multiple=True, help="Task for rewards; repeatable. Default: all.")
@click.option("--apart", is_flag=True,
              help="Exclude examples of these tasks (--task) from the supervised stage.")  # fmt: skip
@click.option("--sft-steps", default=3000, show_default=True, help="Steps of the supervised stage.")
@click.option("--sft-minutes", type=float, help="Time limit of the supervised stage.")
@click.option("--grpo-steps", default=60, show_default=True, help="Steps of GRPO; 0: none.")
@click.option("--grpo-minutes", type=float, help="Time limit of GRPO.")
@click.option("--batch", default=48, show_default=True, help="Examples per supervised step.")
@click.option("--groups", default=12, show_default=True, help="Requests per GRPO step.")
@click.option("--answers", default=8, show_default=True, help="Answers per request.")
@click.option("--grpo-rate", default=3e-5, show_default=True, help="Learning rate of GRPO.")
@click.option("--most", default=384, show_default=True, help="Maximal tokens of an answer.")
@click.option("--asked", default=48, show_default=True, help="Held-out requests for measuring the rate; 0: none.")
@click.option("--samples", default=4, show_default=True, help="Answers per held-out request.")
@DEVICE
@click.option("--gpus", default="1", show_default=True, help="GPUs for judging: a number or all.")
@click.option("--threads", default=8, show_default=True, help="Kernels judged in parallel.")
@click.option("--most-open", default=8, show_default=True, help="Judges open at the same time.")
@click.option("--deadline", "deadline_s", type=SECONDS, default=20.0, show_default=True,
              help="Seconds for one recording or check.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Seed of weights, batches and samples.")
@UNCONFINED
@JSON
def coder(examples: Path, out: Path, model: str, as_json: bool, **options: Any) -> None:
    """Train a coder on the EXAMPLES of `train export-sft`: supervised, then by the judge's rewards (GRPO).

    With `--model scratch` a transformer of a few million parameters learns to write short edits; it needs only torch.
    A Hugging Face model is trained through TRL with LoRA (extra `rl`). The rate of correct answers on the held-out
    split is measured before and after GRPO. Ctrl-C keeps the state, and the same command continues.

    \b
    evo-kernel train coder edits.jsonl --out coder/
    evo-kernel train coder edits.jsonl --out rewarded/ --model scratch:coder/sft.pt --sft-steps 0 --reward correct
    evo-kernel train coder edits.jsonl --out coder/ --model Qwen/Qwen2.5-Coder-1.5B-Instruct --reward binary
    evo-kernel run softmax --model scratch:coder/coder.pt
    """
    from evo_kernel.app.train.coder import chosen_device
    from operators.learning.coder.rewards import parts_of

    reward, device = parts_of(options["reward"], _pairs(options["parts"])), chosen_device(options["device"])
    if options["apart"] and not options["tasks"]:
        raise UserError("--apart keeps the examples of rewarded tasks from being taught: name these with --task")
    kind, colon, start = model.partition(":")
    if kind == "scratch" and colon and not start:
        raise UserError("--model scratch: names no file: say scratch:PATH, or `scratch` to begin from nothing")
    if kind == "scratch":
        settings = _settings(Path(start) if start else None, reward, options)
        _scratch(examples, out, settings, _judging(options), device, as_json)
        return
    if options["apart"]:
        raise UserError("--apart is for `--model scratch`; give a Hugging Face model a file without those examples")
    from evo_kernel.app.train.reward import JudgedReward
    from operators.learning.coder.hub import train

    with JudgedReward(parts=reward, bench=_judging(options)) as judged:
        place = train(_hub_settings(model, device, options), examples, out, judged, options["tasks"])
    click.echo(f"adapter: {place}. Serve it with any OpenAI-compatible server and name that with --model.")


def _scratch(
    examples: Path, out: Path, settings: RunSettings, judging: BenchSettings, device: str, as_json: bool
) -> None:
    from evo_kernel.app.train.coder import train_from_nothing
    from operators.learning.coder.scratch.run import printed

    def tell(told: Mapping[str, Any]) -> None:
        click.echo(printed(told), err=as_json)

    result, verdicts = train_from_nothing(examples, out, settings, judging, device, tell)
    rates = {name: rate for name, rate in (("before", result.before), ("after", result.after)) if rate}
    if as_json:
        data = {"ended": result.ended, "stage": result.stage, "judged": verdicts, "coder": str(out / "coder.pt")}
        click.echo(json.dumps({**data, **rates}))
        return
    for name, rate in rates.items():
        when = f", {name} the rewards" if settings.grpo.steps else ""
        click.echo(
            f"held out{when}: {100 * rate['right']:.1f}% right ({100 * rate['low']:.1f} to "
            f"{100 * rate['high']:.1f}), {100 * rate['witnessed']:.1f}% with the sign asked for, likeliest answer "
            f"{100 * rate['likeliest']:.1f}%, reward {rate['reward']:.3f}; {rate['requests']} requests, "
            f"{rate['samples']} answers each"
        )
    if not result.ended:
        click.echo(f"stopped in stage {result.stage}; the same command goes on")
    click.echo(f"coder: {out / 'coder.pt'} ({verdicts} kernels judged in this session)")


def _settings(start: Path | None, reward: RewardParts, options: Mapping[str, Any]) -> RunSettings:
    from evo_kernel.fitness.gpus import usable_cores
    from operators.learning.coder.scratch.grpo import GrpoSettings
    from operators.learning.coder.scratch.run import RunSettings
    from operators.learning.coder.scratch.training import SftSettings

    seed, steps = options["seed"], options["sft_steps"]
    return RunSettings(
        size=options["size"],
        sft=SftSettings(steps, options["batch"], seed=seed, every=max(1, min(500, steps // 10))),
        grpo=GrpoSettings(
            options["grpo_steps"], options["groups"], options["answers"], most=options["most"],
            rate=options["grpo_rate"], seed=seed,
        ),
        parts=reward,
        sft_s=_seconds(options["sft_minutes"]),
        grpo_s=_seconds(options["grpo_minutes"]),
        asked=options["asked"],
        samples=options["samples"],
        start=start,
        apart=options["apart"],
        tasks=tuple(options["tasks"]),
        seed=seed,
        workers=usable_cores(),
    )  # fmt: skip


def _hub_settings(model: str, device: str, options: Mapping[str, Any]) -> HubSettings:
    from operators.learning.coder.hub import HubSettings

    names = ("sft_steps", "grpo_steps", "answers", "groups", "most", "seed")
    return HubSettings(model=model, cpu=device == "cpu", **{name: options[name] for name in names})


def _judging(options: Mapping[str, Any]) -> BenchSettings:
    from evo_kernel.app.train.judging import BenchSettings

    names = ("device", "gpus", "threads", "deadline_s", "most_open", "unconfined")
    return BenchSettings(**{name: options[name] for name in names})


def _pairs(parts: Sequence[str]) -> dict[str, str]:
    if wrong := [part for part in parts if "=" not in part]:
        raise UserError(f"--part {wrong[0]}: write NAME=VALUE, e.g. --part speed=0")
    return {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in parts)}


def _seconds(minutes: float | None) -> float | None:
    return None if minutes is None else 60.0 * minutes
