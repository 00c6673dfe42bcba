"""A language model as policy: a tiny one, made here at random, never fetched."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest

from evo_kernel.errors import UserError
from tests.operators.learning.planted import planted

torch = pytest.importorskip("torch")

from operators.learning import checkpoint  # noqa: E402
from operators.learning.imitation import OfflineSettings, imitate  # noqa: E402
from operators.learning.language import LanguagePolicy, LanguageSettings  # noqa: E402
from operators.learning.policy_features import described, sentence  # noqa: E402
from operators.learning.values import decision  # noqa: E402
from operators.macro.catalogue import STOP  # noqa: E402


def test_without_the_extra_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"pip install 'evo-kernel\[rl\]'"):
        LanguagePolicy(LanguageSettings("nothing"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A byte-level Llama of two layers, saved as any model is."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("peft")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = Tokenizer(models.BPE(vocab={sign: at for at, sign in enumerate(alphabet)}, merges=[]))
    words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words).save_pretrained(path)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=2048,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def tree():
    return planted(problems=2, steps=1, held_out=0)


def test_a_score_is_the_mean_log_probability_of_the_sentence(folder, tree):
    model = LanguagePolicy(LanguageSettings(folder, tokens=200)).eval()
    sight = decision(tree, tree.roots("train")[0])
    with torch.inference_mode():
        scores, values = model([sight])
        for at in (0, len(sight.offered) - 1):
            prompt = model._tokens(described(sight))[-200:]
            ending = model._tokens(sentence(sight.offered[at]))
            logs = model.base(input_ids=torch.tensor([prompt + ending])).logits[0].log_softmax(-1)
            each = [logs[len(prompt) - 1 + i, token].item() for i, token in enumerate(ending)]
            assert scores[0, at].item() == pytest.approx(math.fsum(each) / len(each), abs=1e-4)
    assert values.shape == (1,) and sight.offered[-1] == STOP


def test_it_learns_and_its_checkpoint_holds_only_what_was_trained(folder, tree, tmp_path):
    torch.manual_seed(0)
    model = LanguagePolicy(LanguageSettings(folder, tokens=64))
    frozen = {name: value.clone() for name, value in model.state_dict().items() if "base_layer" in name}
    steps = imitate(model, tree, OfflineSettings(lr=1e-2, batch=2), np.random.default_rng(0))
    losses = [report.numbers["loss"] for report in itertools.islice(steps, 40)]
    assert np.mean(losses[-8:]) < np.mean(losses[:8])
    assert all(torch.equal(model.state_dict()[name], value) for name, value in frozen.items())
    checkpoint.save(tmp_path / "p.pt", model, {})
    again, _ = checkpoint.load(tmp_path / "p.pt")
    sight = decision(tree, tree.roots("train")[0])
    with torch.inference_mode():
        assert torch.allclose(again([sight])[0], model.eval()([sight])[0], atol=1e-5)
    assert not any("base_layer" in name for name in model.stored())
