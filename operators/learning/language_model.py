"""A pretrained causal language model as policy network: TWOSOME (Tan et al. 2024) with LoRA and a critic.

An offer's score is the mean log-likelihood a token of its text after a prompt that tells the decision; the policy is
the softmax of the scores. The critic reads the last hidden state of the prompt, and moves no adapter.

    prompt ──┬─ cache-hints at kernel rows ─┬─ on=loads        One sequence a decision: offers are a tree of tokens, so
             │                              └─ on=stores       that what they have in common is computed once. A token
             └─ hoist ...                                      sees the prompt and its own ancestors.

It is called like `PolicyNetwork`, and trained by the same code. The extra `rl` is imported when a model is loaded. A
prompt with an offer has at most MOST tokens: shorter than the sliding windows that some models have.

    DIR/policy.pt     critic, name of the model, how it came to be
    DIR/adapter/      LoRA weights, as PEFT writes them
    DIR/base/         the model, of a GGUF file only: reading its weights back to floats takes minutes
    DIR/last/         policy.pt and adapter/ as they are now; above it are the best
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from evo_kernel.errors import UserError
from evo_kernel.types import Measurement
from operators.learning.network import OfferScorer, WeightsFormat
from operators.learning.policy_features import ActionOutcome, Observation
from operators.prompts.evidence import strategy_line
from operators.prompts.parts import one_line

FORMAT = WeightsFormat(
    "evo-kernel language-model policy", 1, "policy", "evo-kernel train policy --model NAME --out DIR"
)
FILE, ADAPTER, BASE, LAST = "policy.pt", "adapter", "base", "last"
GGUF = ".gguf"
RANK = 16
MOST, OFFER = 480, 48  # tokens of a prompt with an offer, and of the offer
AT_ONCE, AT_ONCE_GPU = 8, 32  # decisions
HALF_FROM = 5e8  # parameters from which weights are bfloat16
CRITIC_WIDTH = 64
KERNELS, CASES, PAST = 4, 2, 8  # that a prompt tells of
SUMMARY = 48  # tokens of what a task is


def require(model: str) -> None:
    """Raises UserError where a library is missing."""
    needed = ("transformers", "peft", "safetensors", *(("gguf",) if model.endswith(GGUF) else ()))
    if missing := [name for name in needed if find_spec(name) is None]:
        raise UserError(
            f"a language model as policy needs {', '.join(missing)}: pip install 'evo-kernel[rl]'. "
            "Without --model a small transformer is trained, which needs none of them."
        )


class LanguagePolicy(OfferScorer):
    """`name`: of the model without adapters; `language`: the model with them."""

    def __init__(self, name: str, language: nn.Module, tokenizer: Any) -> None:
        super().__init__()
        self.name, self.language, self._tokenizer = name, language, tokenizer
        self.value = nn.Sequential(
            nn.Linear(self._embedding.shape[1], CRITIC_WIDTH), nn.Tanh(), nn.Linear(CRITIC_WIDTH, 1)
        )

    def forward(self, sights: Sequence[Observation]) -> tuple[Tensor, Tensor]:
        many = AT_ONCE if self._embedding.device.type == "cpu" else AT_ONCE_GPU
        parts = [self._scored(sights[start : start + many]) for start in range(0, len(sights), many)]
        scores = [one for some, _ in parts for one in some]
        return pad_sequence(scores, batch_first=True, padding_value=float("-inf")), torch.cat([v for _, v in parts])

    @property
    def _embedding(self) -> Tensor:
        return self.language.get_input_embeddings().weight  # pyright: ignore[reportCallIssue]

    def _scored(self, sights: Sequence[Observation]) -> tuple[list[Tensor], Tensor]:
        rows = [self._tokens(sight) for sight in sights]
        at = max(len(prompt) for prompt, _ in rows)
        packed = [OfferTree(offers) for _, offers in rows]
        width = at + max(len(one.tokens) for one in packed)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        places = torch.zeros(len(rows), width, dtype=torch.long)
        seen = torch.eye(width, dtype=torch.bool).repeat(len(rows), 1, 1)  # padding sees itself: softmax needs one
        for row, ((prompt, _), tree) in enumerate(zip(rows, packed, strict=True)):
            start, end = at - len(prompt), at + len(tree.tokens)
            ids[row, start:end] = torch.tensor([*prompt, *tree.tokens])
            places[row, start:end] = torch.tensor([*range(len(prompt)), *(len(prompt) + one for one in tree.depths)])
            seen[row, start:at, start:at] = torch.ones(len(prompt), len(prompt), dtype=torch.bool).tril()
            seen[row, at:end, start:at] = True
            sees = [(at + node, at + one) for node, above in enumerate(tree.ancestors) for one in above]
            seen[row][tuple(torch.tensor(sees, dtype=torch.long).reshape(-1, 2).T)] = True
        device, kind = self._embedding.device, self._embedding.dtype
        mask = torch.zeros(seen.shape, dtype=kind).masked_fill(~seen, torch.finfo(kind).min)
        # Only the last token of the prompt and the offers' tokens foretell something that is asked for.
        told = self.language(
            input_ids=ids.to(device), position_ids=places.to(device), attention_mask=mask[:, None].to(device),
            logits_to_keep=torch.arange(at - 1, width, device=device), output_hidden_states=True, use_cache=False,
        )  # fmt: skip
        values = self.value(told.hidden_states[-1][:, at - 1].detach().float())[..., 0]
        return [tree.scores(one.float()) for tree, one in zip(packed, told.logits, strict=True)], values

    def _tokens(self, sight: Observation) -> tuple[list[int], list[list[int]]]:
        """Of the prompt, and of each offer. A prompt that is too long loses its beginning."""
        said = [" " + strategy_line(one) for one in sight.offered]
        offers = [ids[:OFFER] for ids in self._tokenizer(said, add_special_tokens=False)["input_ids"]]
        prompt = self._tokenizer(prompt_of(sight))["input_ids"]
        return prompt[-(MOST - OFFER) :], offers


class OfferTree:
    """Texts of offers as a tree of tokens; node numbers follow their ancestors'."""

    def __init__(self, offers: Sequence[Sequence[int]]) -> None:
        self.tokens: list[int] = []
        self.ancestors: list[tuple[int, ...]] = []  # without itself
        self._paths: list[list[int]] = []  # an offer's nodes
        known: dict[tuple[int, ...], int] = {}
        for ids in offers:
            path: list[int] = []
            for depth, token in enumerate(ids):
                node = known.setdefault(tuple(ids[: depth + 1]), len(self.tokens))
                if node == len(self.tokens):
                    self.tokens.append(token)
                    self.ancestors.append(tuple(path))
                path.append(node)
            self._paths.append(path)

    @property
    def depths(self) -> list[int]:
        return [len(above) for above in self.ancestors]

    def scores(self, logits: Tensor) -> Tensor:
        """Mean log-likelihood a token of each offer. `logits` [1 + nodes, vocabulary]: after the prompt, and nodes."""
        before = torch.tensor([above[-1] + 1 if above else 0 for above in self.ancestors], device=logits.device)
        tokens = torch.tensor(self.tokens, device=logits.device)
        logs = logits[before, tokens] - logits[: len(tokens) + 1].logsumexp(-1)[before]
        return torch.stack([logs[path].mean() for path in self._paths])


# -- the prompt ------------------------------------------------------------------------------------------------------


def prompt_of(sight: Observation) -> str:
    """A decision in words. Raises ValueError for an observation that was not made of a state."""
    state = sight.state
    if state is None:
        raise ValueError("a language model reads the state of a decision: make observations with `sight_of`")
    evaluation = state.parent.evaluation
    summary = state.task.reference.lstrip().lstrip("rR\"'").partition("\n")[0].rstrip("\"'")
    lines = [f"Task: {one_line(f'{state.task.name}: {summary}', SUMMARY)}"]
    if evaluation is not None:
        lines.append(f"GPU: {evaluation.environment.device}")
        slowest = sorted(evaluation.measurements, key=lambda one: -one.median_us)
        lines += [_case(one) for one in slowest[:CASES]]
        plan = evaluation.features
        for kernel in sorted(plan.kernels, key=lambda one: -one.share)[:KERNELS] if plan else ():
            grid = "x".join(str(size) for size in kernel.grid if size > 1) or "1"
            lines.append(
                f"Kernel {kernel.name}: {kernel.share:.0%} of time, grid {grid}, {kernel.num_warps} warps, "
                f"{kernel.registers} registers, {kernel.spill_bytes} B spilled, {kernel.shared_bytes} B shared, "
                f"{kernel.tensor_core} mma, {kernel.data_path}, {kernel.schedule}"
            )
    if sight.path:
        lines.append("Done: " + ", ".join(one.strategy.name for one in sight.path[-PAST:]))
    for name, outcomes in (("Earned elsewhere", sight.earned), ("Tried here", sight.tried)):
        if outcomes:
            lines.append(f"{name}: " + "; ".join(map(_outcome, outcomes[-PAST:])))
    return "\n".join([*lines, "The best next optimisation:"])


def _case(timed: Measurement) -> str:
    light = "" if timed.light_share is None else f", {timed.light_share:.0%} of what the hardware allows"
    launches = "" if timed.features is None else f", launches: {timed.features.launches}"
    speedup = f", speed-up {timed.speedup:.2f}" if timed.baselines_us else ""
    return f"Case {timed.case}: {timed.median_us:.1f} us{speedup}{light}{launches}"


def _outcome(one: ActionOutcome) -> str:
    came = "failed" if one.failed else "unknown" if one.log_gain is None else f"{math.expm1(one.log_gain):+.0%}"
    return f"{strategy_line(one.strategy)} {came}"


# -- models and files ------------------------------------------------------------------------------------------------


def new_policy(model: str, out: Path) -> LanguagePolicy:
    """With adapters that change nothing yet. A GGUF file's weights are written to `out`. Raises UserError."""
    model = placed(model)
    require(model)
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]

    language, tokenizer = _base(model, out)
    config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
    return LanguagePolicy(model, get_peft_model(language, config), tokenizer)


def placed(model: str) -> str:
    """A path as an absolute one, which is found from any folder; a name as it is."""
    return str(Path(model).absolute()) if Path(model).exists() else model


def save_policy(out: Path, model: LanguagePolicy, about: Mapping[str, str | int | float | bool]) -> int:
    """Returns the size of what it wrote, in bytes. policy.pt comes last, so that a folder with one is whole."""
    model.language.save_pretrained(str(out / ADAPTER))  # pyright: ignore[reportCallIssue]
    critic = {name: value.cpu() for name, value in model.value.state_dict().items()}
    written = FORMAT.write(out / FILE, {"model": model.name, "critic": critic, "about": dict(about)})
    return written + sum(one.stat().st_size for one in (out / ADAPTER).iterdir())


def described(out: Path) -> tuple[str, dict[str, Any]]:
    """The model that a folder's adapters belong to, and what is told about it; nothing is loaded. Raises UserError."""
    data = FORMAT.read(out / FILE)
    require(data["model"])
    return data["model"], dict(data["about"])


def load_policy(out: Path, last: bool = False) -> tuple[LanguagePolicy, dict[str, Any]]:
    """The best one, ready to score, and what is told about it; `last`: with the latest weights. Raises UserError."""
    name, about = described(out)
    from peft import PeftModel  # pyright: ignore[reportMissingImports]

    at = out / LAST if last and (out / LAST / FILE).exists() else out
    critic = FORMAT.read(at / FILE)["critic"]
    language, tokenizer = _base(name, out)
    with FORMAT.described(at / FILE):
        adapted = PeftModel.from_pretrained(language, str(at / ADAPTER), is_trainable=True)
        model = LanguagePolicy(name, adapted, tokenizer)
        model.value.load_state_dict(critic)
    return model.eval(), about


def _base(name: str, out: Path) -> tuple[Any, Any]:
    """(model, tokenizer). Raises UserError."""
    import transformers  # pyright: ignore[reportMissingImports]
    from transformers import AutoModelForCausalLM, AutoTokenizer  # pyright: ignore[reportMissingImports]

    place, more, loading = name, {}, {"dtype": "auto"}
    if (out / BASE / "config.json").exists():
        place = str(out / BASE)
    elif name.endswith(GGUF):  # FOLDER/FILE.gguf or OWNER/NAME/FILE.gguf
        place, _, file = name.rpartition("/")
        more = {"gguf_file": file}
        # Newer versions leave weights packed unless told otherwise; older ones know nothing else than floats.
        packed = getattr(transformers, "GgufConfig", None)
        loading = {"dtype": torch.bfloat16} | ({"quantization_config": packed(dequantize=True)} if packed else {})
    else:
        transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # PEFT's to heed
    try:
        tokenizer = AutoTokenizer.from_pretrained(place or ".", **more)
        language = AutoModelForCausalLM.from_pretrained(place or ".", **more, **loading)
    except (OSError, ValueError, KeyError, ImportError) as error:
        said = str(error).strip().partition("\n")[0][:300]
        raise UserError(
            f"{name} cannot be loaded as a causal language model ({said}). A copy in {out / BASE} is taken first."
        ) from None
    if more:
        language.hf_quantizer = None  # they are floats now
        language.config.__dict__.pop("quantization_config", None)
        language.save_pretrained(str(out / BASE))
        tokenizer.save_pretrained(str(out / BASE))
    many = sum(one.numel() for one in language.parameters()) > HALF_FROM
    return language.to(torch.bfloat16 if many else torch.float32), tokenizer
