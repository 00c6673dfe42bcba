"""Supervised training and GRPO of a Hugging Face model, by name or path: TRL's trainers with LoRA.

The extra `rl` is imported when called.

    out/sft-run, out/grpo-run   TRL's checkpoints: the same command goes on from the last one
    out/sft, out/grpo           adapters, as PEFT and every server that knows LoRA load them

The reward is handed in; it has TRL's signature (evo_kernel.app.train.reward.JudgedReward).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evo_kernel.errors import UserError
from operators.learning.coder.examples import read, request, rewarded, row

NEEDED = ("trl", "peft", "transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class HubSettings:
    """`most`: tokens of an answer; `longest`: of prompt and answer in the supervised stage, cut off beyond."""

    model: str
    sft_steps: int = 300
    grpo_steps: int = 100
    batch: int = 4
    answers: int = 8
    groups: int = 4
    sft_rate: float = 1e-4
    grpo_rate: float = 1e-5
    most: int = 2048
    longest: int = 8192
    rank: int = 16
    divergence: float = 0.02
    asked: int = 16  # held-out requests whose reward is measured before and after
    save_every: int = 25
    seed: int = 0
    cpu: bool = False


def require() -> None:
    """Raises UserError where a library of the extra is missing."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise UserError(
            f"training a Hugging Face model needs {', '.join(missing)}: pip install 'evo-kernel[rl]'. "
            "`--model scratch` needs none of them."
        )


def train(
    settings: HubSettings, examples: Path, out: Path, reward: Callable[..., list[float]], tasks: Sequence[str] = ()
) -> Path:
    """Supervised, then by rewards; the folder of the last adapter. Raises UserError."""
    require()
    found = read(examples)
    chosen = [one for one in found if one.split == "train"]
    if not chosen:
        raise UserError(f"{examples} has no example of split `train`")
    asks = rewarded(chosen, tasks)
    held_out = [one for one in found if one.split == "held-out"][: settings.asked]
    place = _supervised(settings, [row(one) for one in chosen], out) if settings.sft_steps else None
    if not settings.grpo_steps:
        return place or out
    if not asks:
        raise UserError(f"no example of {', '.join(tasks)} is in the train split: rewards are earned on its requests")
    return _rewarded(settings, list(map(_asked, asks)), list(map(_asked, held_out)), place, out, reward)


def _supervised(settings: HubSettings, rows: list[dict[str, Any]], out: Path) -> Path:
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from peft import LoraConfig  # pyright: ignore[reportMissingImports]
    from trl import SFTConfig, SFTTrainer  # pyright: ignore[reportMissingImports]

    done = out / "sft"
    if (done / "adapter_config.json").exists():
        return done
    said = [{"prompt": one["messages"][:-1], "completion": one["messages"][-1:]} for one in rows]
    config = SFTConfig(
        output_dir=str(out / "sft-run"), max_steps=settings.sft_steps, per_device_train_batch_size=settings.batch,
        learning_rate=settings.sft_rate, max_length=settings.longest, packing=False, lr_scheduler_type="cosine",
        warmup_steps=max(1, settings.sft_steps // 20), gradient_checkpointing=not settings.cpu, **_shared(settings),
    )  # fmt: skip
    data, lora = Dataset.from_list(said), _lora(LoraConfig, settings)
    trainer = SFTTrainer(model=settings.model, args=config, train_dataset=data, peft_config=lora)
    trainer.train(resume_from_checkpoint=_last(out / "sft-run"))
    trainer.save_model(str(done))
    _tokenizer(settings.model).save_pretrained(str(done))
    return done


def _rewarded(
    settings: HubSettings,
    asks: list[dict[str, Any]],
    held_out: list[dict[str, Any]],
    adapter: Path | None,
    out: Path,
    reward: Callable[..., list[float]],
) -> Path:
    from datasets import Dataset  # pyright: ignore[reportMissingImports]
    from peft import AutoPeftModelForCausalLM, LoraConfig  # pyright: ignore[reportMissingImports]
    from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports]

    config = GRPOConfig(
        output_dir=str(out / "grpo-run"), max_steps=settings.grpo_steps, learning_rate=settings.grpo_rate,
        per_device_train_batch_size=settings.answers, per_device_eval_batch_size=settings.answers,
        gradient_accumulation_steps=settings.groups, num_generations=settings.answers,
        max_completion_length=settings.most, beta=settings.divergence, temperature=1.0,
        gradient_checkpointing=not settings.cpu, **_shared(settings),
    )  # fmt: skip
    model: Any = settings.model
    if adapter is not None:
        model = AutoPeftModelForCausalLM.from_pretrained(str(adapter), is_trainable=True)
    trainer = GRPOTrainer(
        model=model, reward_funcs=reward, args=config, train_dataset=Dataset.from_list(asks),
        eval_dataset=Dataset.from_list(held_out) if held_out else None, processing_class=_tokenizer(settings.model),
        peft_config=_lora(LoraConfig, settings) if adapter is None else None,
    )  # fmt: skip
    last = _last(out / "grpo-run")
    measured = out / "held-out.json"
    rates: dict[str, float] = json.loads(measured.read_text()) if measured.exists() else {}
    if held_out and last is None:
        rates["before"] = float(trainer.evaluate().get("eval_reward", math.nan))
    trainer.train(resume_from_checkpoint=last)
    if held_out:
        rates["after"] = float(trainer.evaluate().get("eval_reward", math.nan))
    measured.write_text(json.dumps(rates))
    trainer.save_model(str(out / "grpo"))
    return out / "grpo"


def _asked(one: Any) -> dict[str, Any]:
    """A row of GRPO's dataset: the request, and the columns that the reward reads."""
    whole = row(one)
    return {"prompt": request(one), **{name: whole[name] for name in ("task", "parent", "action")}}


def _shared(settings: HubSettings) -> dict[str, Any]:
    return {
        "seed": settings.seed, "logging_steps": 1, "save_steps": settings.save_every, "save_total_limit": 2,
        "report_to": "none", "disable_tqdm": True, "use_cpu": settings.cpu, "bf16": not settings.cpu,
    }  # fmt: skip


def _lora(kind: Any, settings: HubSettings) -> Any:
    return kind(r=settings.rank, lora_alpha=2 * settings.rank, target_modules="all-linear", task_type="CAUSAL_LM")


def _tokenizer(model: str) -> Any:
    from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports]

    found = AutoTokenizer.from_pretrained(model)
    if found.pad_token is None:
        found.pad_token = found.eos_token
    return found


def _last(folder: Path) -> str | None:
    """The newest checkpoint of a trainer's folder."""
    found = [one for one in folder.glob("checkpoint-*") if (one / "trainer_state.json").exists()]
    return str(max(found, key=lambda one: int(one.name.rpartition("-")[2]))) if found else None
