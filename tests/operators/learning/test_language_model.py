"""A language model as policy: one pass over a tree of offers, its prompt, its files, and how a run waits for it."""

from __future__ import annotations

import itertools
import threading
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from evo_kernel.errors import UserError
from tests.operators.learning.planted import planted
from tests.support.commands import evo
from tests.support.commands import told as result
from tests.support.tiny_model import tiny_model

torch = pytest.importorskip("torch")

from benchmarks.regret import contenders, regret  # noqa: E402
from evo_kernel.app.operator_factory import policy_of  # noqa: E402
from evo_kernel.config import load_config  # noqa: E402
from operators.learning import language_model  # noqa: E402
from operators.learning.batching import BatchedModel  # noqa: E402
from operators.learning.language_model import OfferTree, new_policy, prompt_of  # noqa: E402
from operators.learning.network import NetworkSettings, PolicyNetwork  # noqa: E402
from operators.learning.policy_features import Observation  # noqa: E402
from operators.learning.policy_training import imitate, ppo  # noqa: E402
from operators.learning.trained_policy import TrainedPolicy  # noqa: E402
from operators.learning.values import decision, shortfall  # noqa: E402

extra = pytest.mark.skipif(any(find_spec(one) is None for one in ("transformers", "peft")), reason="no extra rl")


@pytest.fixture(scope="module")
def tree():
    return planted(problems=4, steps=1, held_out=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Its folder."""
    torch.manual_seed(0)
    return tiny_model(tmp_path_factory.mktemp("model"))


def test_offers_share_what_they_begin_with():
    offers = [[5, 6, 7], [5, 6, 8], [5, 6], [9]]
    tree, logits = OfferTree(offers), torch.randn(6, 12)
    assert tree.tokens == [5, 6, 7, 8, 9] and tree.depths == [0, 1, 2, 2, 0]
    logs = logits.log_softmax(-1)  # row 0: after the prompt, row n + 1: after node n
    first = [logs[0, 5], logs[1, 6]]
    wanted = [sum([*first, logs[2, 7]]) / 3, sum([*first, logs[2, 8]]) / 3, sum(first) / 2, logs[0, 9]]
    assert torch.allclose(tree.scores(logits), torch.stack(wanted), atol=1e-6)


def test_a_prompt_tells_the_decision(tree):
    said = prompt_of(decision(tree, tree.roots("train")[0], tried=[0, 4]))
    for part in (
        "Task: rows",
        "Case m8-n16",
        "Kernel k: 100% of time",
        "64 B spilled",
        "persistent at kernel k failed",
    ):
        assert part in said, said
    assert said.endswith("The best next optimisation:")
    with pytest.raises(ValueError, match="sight_of"):
        prompt_of(Observation((), ()))


# -- live ------------------------------------------------------------------------------------------------------------


def test_decisions_that_wait_are_scored_together(tree):
    sights = [decision(tree, root) for root in tree.roots()]
    small, begun, go = PolicyNetwork(NetworkSettings(32, 1, 2, 0.0)).eval(), threading.Event(), threading.Event()
    sizes: list[int] = []

    def slow(some):
        sizes.append(len(some))
        begun.set()
        go.wait()
        return small(some)

    batched, answers = BatchedModel(lambda: slow), {}

    def ask(at):
        answers[at] = batched([sights[at]])

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(4)]
    threads[0].start()
    begun.wait()
    for one in threads[1:]:
        one.start()
    while batched._waiting.qsize() < 3:
        threading.Event().wait(0.01)
    go.set()
    for one in threads:
        one.join()
    assert sizes == [1, 3]
    with torch.inference_mode():
        for at, sight in enumerate(sights):
            assert torch.allclose(answers[at][0], small([sight])[0], atol=1e-5)


def test_a_late_model_leaves_the_decision_to_the_bandit_and_a_broken_one_is_told_of(tree):
    root, never = tree.roots()[0], threading.Event()
    late = TrainedPolicy(BatchedModel(lambda: lambda _: never.wait(5), latency_s=0.05))
    chosen = late.choose(tree.macro_state(root.id), tree.offered(root.id), np.random.default_rng(0))
    never.set()
    assert sum(chosen.probabilities) == pytest.approx(1)

    def broken():
        raise UserError("no such model")

    for _ in range(2):
        with pytest.raises(UserError, match="no such model"):
            BatchedModel(broken)([decision(tree, root)])


def test_what_is_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(language_model, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs transformers, peft, safetensors, gguf: pip install 'evo-kernel\[rl\]'"):
        new_policy("some.gguf", tmp_path)


# -- with the extra --------------------------------------------------------------------------------------------------


@extra
def test_one_pass_scores_what_a_pass_an_offer_does(tree, model, tmp_path):
    policy = new_policy(str(model), tmp_path).eval()
    states = list(tree.roots("train"))
    sights = [decision(tree, states[0]), decision(tree, states[1], tried=[0, 1, 2])]
    with torch.inference_mode():
        scores, values = policy(sights)
        for sight, row, value in zip(sights, scores, values, strict=True):
            prompt, offers = policy._tokens(sight)
            for score, ids in zip(row, offers, strict=False):
                logs = policy.language(input_ids=torch.tensor([[*prompt, *ids]])).logits[0].log_softmax(-1)
                taken = logs[len(prompt) - 1 : -1].gather(1, torch.tensor(ids)[:, None])
                assert score.item() == pytest.approx(taken.mean().item(), abs=1e-4)
            assert row[len(offers) :].isinf().all() and value.isfinite()


@extra
@pytest.mark.parametrize(
    ("method", "steps"),
    [
        (partial(imitate, rate=5e-3, batch=4, regression=0.0), 30),
        (partial(ppo, rate=5e-3, warm_up=0, walks=4, batch=16), 10),
    ],
)
def test_both_methods_make_better_actions_more_likely(tree, model, tmp_path, method, steps):
    train = tree.only(lambda one: one.split == "train")
    torch.manual_seed(0)
    policy = new_policy(str(model), tmp_path)
    before = shortfall(policy, train)
    list(itertools.islice(method(policy, train, np.random.default_rng(0)), steps))
    assert shortfall(policy, train) < 0.95 * before
    moved = {name.split(".")[-3] for name, one in policy.language.named_parameters() if one.grad is not None}
    assert moved == {"lora_A", "lora_B"}, "the model itself stays"


@extra
def test_it_is_trained_goes_on_and_decides(tree, model, tmp_path):
    file, out = tmp_path / "tree.gz", tmp_path / "lm"
    tree.save(file)
    words = ["train", "policy", "--tree", str(file), "--out", str(out), "--batch", "2", "--seconds", "0.1", "--json"]
    first = result(evo(*words, "--model", str(model)))
    assert first["shortfall"] > 0 and first["bytes"] > 1000
    again = result(evo(*words, "--resume", "--method", "ppo"))
    assert again["shortfall"] <= first["shortfall"]
    with pytest.raises(UserError, match="adapts"):
        evo(*words, "--resume", "--model", "another")
    with pytest.raises(UserError, match="cannot be loaded as a causal language model"):
        evo("train", "policy", "--tree", str(file), "--out", str(tmp_path / "no"), "--model", str(tmp_path))
    config = load_config(None, [f"operators.policy={out}"])
    policy, root = policy_of(config.operators.policy, config), tree.roots("held-out")[0]
    chosen = policy.choose(tree.macro_state(root.id), tree.offered(root.id), np.random.default_rng(0))
    assert chosen.policy == "trained"
    assert regret(tree, contenders([out])["lm"], seeds=range(1), episodes=1).interval.mean >= 0
    (out / "policy.pt").unlink()
    with pytest.raises(UserError, match="cannot be read"):
        policy_of(str(out), config)
