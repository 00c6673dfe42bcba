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
from tests.support.tiny_model import tiny_model


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
    place = tiny_model(tmp_path / "model")
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
