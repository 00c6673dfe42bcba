"""A causal language model as a policy: any Hugging Face name or folder, trained by LoRA adapters.

An action's score is the mean log probability of the tokens of its sentence after the prompt, the normalised joint
token probability of TWOSOME (Tan et al. 2024); the softmax over the offers is the policy. The critic is a small head on
the last hidden state of the prompt. The base stays frozen, and out of checkpoints; give it by the same name again.

Needs the extra `rl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from evo_kernel.errors import UserError
from operators.learning.network import Scorer
from operators.learning.policy_features import Observation, Seen, described, sentence


@dataclass(frozen=True)
class LanguageSettings:
    """`model`: a Hugging Face name or folder. `tokens`: of a prompt; longer ones keep their end: the facts."""

    model: str
    rank: int = 16
    tokens: int = 1024
    seen: Seen = field(default_factory=Seen)


class LanguagePolicy(Scorer):
    """`rank` 16 on every linear layer, as is usual; the critic has one hidden layer."""

    kind = "language"
    offline_lr = 1e-4
    batch = 4  # about 6,000 tokens with gradients: some 20 GB for a model of 1.3 B parameters
    free_scores = False
    policy_lr = 1e-6  # MTMC's, as the next
    value_lr = 5e-5

    def __init__(self, settings: LanguageSettings) -> None:
        """Raises UserError where the extra is missing or the model cannot be had."""
        super().__init__()
        self.settings = settings
        self.base, self.words = _adapted(settings)
        width = int(self.base.config.hidden_size)
        self.value = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, 1))

    def forward(self, sights: Sequence[Observation]) -> tuple[Tensor, Tensor]:
        found = [self._scored(self.settings.seen.of(sight)) for sight in sights]
        scores = pad_sequence([scores for scores, _ in found], batch_first=True, padding_value=float("-inf"))
        return scores, torch.stack([value for _, value in found])

    def critic_parameters(self) -> list[nn.Parameter]:
        return list(self.value.parameters())

    def stored(self) -> dict[str, Tensor]:
        """Adapters and critic."""
        trained = {name for name, parameter in self.named_parameters() if parameter.requires_grad}
        return {name: value for name, value in self.state_dict().items() if name in trained}

    def restore(self, stored: dict[str, Tensor]) -> None:
        missing = self.stored().keys() ^ stored.keys()
        if missing:
            raise ValueError(f"adapters of another model or rank: {sorted(missing)[0]}")
        self.load_state_dict(stored, strict=False)

    def _scored(self, sight: Observation) -> tuple[Tensor, Tensor]:
        """Scores [offers] and the value of one decision. The prompt is read once: endings share its keys and values."""
        device = next(self.value.parameters()).device
        prompt = self._tokens(described(sight))[-self.settings.tokens :]
        endings = [torch.tensor(self._tokens(sentence(strategy))) for strategy in sight.offered]
        read = self.base(input_ids=torch.tensor([prompt], device=device), use_cache=True, output_hidden_states=True)
        shared = read.past_key_values
        shared.batch_repeat_interleave(len(endings))
        rows = pad_sequence(endings, batch_first=True).to(device)
        lengths = torch.tensor([len(ending) for ending in endings], device=device)
        there = torch.arange(rows.shape[1], device=device)[None] < lengths[:, None]
        mask = torch.cat([there.new_ones(len(endings), len(prompt)), there], 1).long()
        told = self.base(input_ids=rows, attention_mask=mask, past_key_values=shared, use_cache=True)
        first = read.logits[:, -1:].expand(len(endings), -1, -1)  # what the prompt says of each ending's first token
        logs = torch.cat([first, told.logits[:, :-1]], 1).float().log_softmax(-1)
        taken = logs.gather(-1, rows[..., None])[..., 0] * there
        return taken.sum(-1) / lengths, self.value(read.hidden_states[-1][0, -1].float().detach())[0]

    def _tokens(self, text: str) -> list[int]:
        return list(self.words(text, add_special_tokens=False)["input_ids"])


def _adapted(settings: LanguageSettings) -> tuple[Any, Any]:
    """The model with its adapters, and its tokenizer."""
    try:
        from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
        from transformers import AutoModelForCausalLM, AutoTokenizer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(f"a language model as policy needs {error.name}: pip install 'evo-kernel[rl]'.") from None
    try:
        words = AutoTokenizer.from_pretrained(settings.model)
        model = AutoModelForCausalLM.from_pretrained(settings.model)
    except (OSError, ValueError) as error:
        told = str(error).splitlines()[0]
        raise UserError(f"the language model {settings.model!r} cannot be had: {told}") from None
    adapters = LoraConfig(r=settings.rank, lora_alpha=2 * settings.rank, target_modules="all-linear")
    return get_peft_model(model, adapters), words
