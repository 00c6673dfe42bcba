"""Both stages through TRL and PEFT, with a model of no size and a tokenizer of bytes: nothing is fetched.

Skipped where the extra `rl` is not installed.
"""

import importlib.util
import json

import pytest

from evo_kernel.errors import UserError
from operators.learning.coder import hub
from operators.learning.coder.examples import placed, write
from tests.operators.learning.coder.support import EXAMPLES

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


@pytest.fixture
def examples(tmp_path):
    write(tmp_path / "examples.jsonl", [placed(one, ("rotary",)) for one in EXAMPLES])
    return tmp_path / "examples.jsonl"


def test_what_is_missing_is_said(examples, tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "NEEDED", ("json", "no_such_library"))
    with pytest.raises(UserError, match=r"needs no_such_library: pip install 'evo-kernel\[rl\]'"):
        hub.train(hub.HubSettings("any"), examples, tmp_path, list)


@pytest.mark.skipif(any(importlib.util.find_spec(name) is None for name in hub.NEEDED), reason="no extra rl")
def test_sft_and_grpo_of_a_local_model(examples, tmp_path):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled = Tokenizer(models.BPE({token: at for at, token in enumerate(["<pad>", "<end>", *alphabet])}, []))
    spelled.pre_tokenizer, spelled.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=spelled, pad_token="<pad>", eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    place = tmp_path / "model"
    tokenizer.save_pretrained(place)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=4096, pad_token_id=0, eos_token_id=1, bos_token_id=1,
        )
    ).save_pretrained(place)  # fmt: skip
    asked = []

    def reward(prompts, completions, **columns):
        asked.append((completions, columns))
        return [float(len(one[0]["content"]) % 3) for one in completions]

    settings = hub.HubSettings(
        str(place), sft_steps=2, grpo_steps=2, batch=1, answers=2, groups=1, most=8, asked=2, save_every=1, cpu=True
    )
    assert hub.train(settings, examples, tmp_path / "out", reward) == tmp_path / "out" / "grpo"
    for stage in ("sft", "grpo"):
        assert (tmp_path / "out" / stage / "adapter_config.json").exists()
    assert set(asked[0][1]) >= {"task", "parent", "action"} and set(json.loads(
        (tmp_path / "out" / "held-out.json").read_text()
    )) == {"before", "after"}  # fmt: skip
    calls = len(asked)
    hub.train(settings, examples, tmp_path / "out", reward)  # goes on where it ended: only the last rate is measured
    assert len(asked) - calls < calls
