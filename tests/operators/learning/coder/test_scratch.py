"""The coder from nothing: its vocabulary and network, both stages, resuming, and the door."""

import dataclasses
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from evo_kernel.errors import UserError
from evo_kernel.types import Brief, Environment, ScoredCandidate, Source, Strategy
from operators.learning.coder.answers import applied, numbered
from operators.learning.coder.examples import Example, placed
from operators.learning.coder.rewards import RewardOutcome, RewardParts
from operators.learning.coder.scratch import grpo, training
from operators.learning.coder.scratch.coder import ScratchModel, asked
from operators.learning.coder.scratch.network import Cache, network_of, sample
from operators.learning.coder.scratch.run import DONE, RunSettings, run
from operators.learning.coder.scratch.training import (
    Clock,
    CoderState,
    Trained,
    lesson,
    lessons,
    load_coder,
    optimiser_of,
    request,
    save_coder,
    vocabulary_of,
)
from operators.learning.coder.scratch.vocabulary import END, Names, Vocabulary
from operators.llm.base import ModelFailed
from operators.llm.models import ScriptedModel
from operators.micro.edit_blocks import GIVE_UP
from operators.micro.llm_coder import LlmCoder
from operators.open_model import open_model
from tests.operators.learning.coder.support import EXAMPLES, FIRSTS

VOCABULARY = vocabulary_of(EXAMPLES, 1000)


def coder(seed=0, **changes):
    torch.manual_seed(seed)
    return Trained(network_of("tiny", VOCABULARY.size, **changes), VOCABULARY)


@given(st.text(max_size=60))
@settings(max_examples=30, deadline=None)
def test_any_text_is_written_and_read(text):
    assert VOCABULARY.decode(VOCABULARY.encode(text)) == text.encode("utf-8", "replace").decode()
    assert Vocabulary.of(VOCABULARY.data()).encode(text) == VOCABULARY.encode(text)


def test_an_example_is_a_lesson_that_makes_the_child():
    for one in EXAMPLES:
        taught, asked_for = lesson(VOCABULARY, one), request(VOCABULARY, one.strategy, one.parent)
        assert asked_for.prompt == taught.prompt
        assert asked_for.read(VOCABULARY, taught.prompt) == one.strategy.key + numbered(one.parent)
        made = applied(asked_for.read(VOCABULARY, taught.answer), one.parent)
        assert same_but_for_names(made, one.child)
        names = Names.of(one.parent, one.child, VOCABULARY.usual)
        assert applied(VOCABULARY.decode(taught.answer, names), one.parent).strip() == one.child.strip()
        assert taught.answer[-1] == END and len(taught.prompt) < 0.6 * len(one.parent)  # pairs were learnt
    assert VOCABULARY.encode("@12") != VOCABULARY.encode("@012") and len(VOCABULARY.encode("@12@14")) == 2


def test_many_processes_make_the_same_lessons(monkeypatch):
    monkeypatch.setattr(training, "MANY", 3)
    assert lessons(VOCABULARY, EXAMPLES[:5], workers=2) == [lesson(VOCABULARY, one) for one in EXAMPLES[:5]]


def same_but_for_names(one, two):
    """Whether one-to-one renaming makes one text of the other."""
    words = [re.findall(r"\w+|[^\w\s]", text) for text in (one, two)]
    pairs = set(zip(*words, strict=True))
    return len({a for a, _ in pairs}) == len(pairs) == len({b for _, b in pairs})


SOURCES = st.lists(
    st.sampled_from(["first", " = ", "STAGES", "x", ", ", "(", ")", " + ", ".first", "\n", "for ", " in ", ": int = 4", '"']),
    max_size=40,
).map("".join)  # fmt: skip


@given(SOURCES, SOURCES)
@settings(max_examples=100, deadline=None)
def test_a_source_is_read_as_it_was_written_whatever_it_binds(source, child):
    names = Names.of(source, child, ("STAGES", "first", "tile"))
    assert VOCABULARY.decode(VOCABULARY.encode(source, names), names) == source
    told = Example("softmax", source, child, Strategy("hoist", "memory"))
    assert lesson(VOCABULARY, told).prompt == request(VOCABULARY, told.strategy, source).prompt


def test_names_are_slots_and_lessons_are_the_same_in_any_slots():
    source = "N = 4\ndef kernel(x_ptr, BLOCK):\n    mask = x_ptr.mask + BLOCK\n    load(x_ptr, mask=mask)\n"
    names = Names.of(source)
    assert names.known == ("N", "kernel", "x_ptr", "BLOCK", "mask")
    assert [one for one in names.split("kernel(mask=mask, BLOCK=N) # x.mask") if not isinstance(one, str)] == [
        ("known", 1), ("known", 4), ("known", 3), ("known", 0),
    ]  # fmt: skip
    taught = lesson(VOCABULARY, EXAMPLES[0])
    other = taught.shuffled(VOCABULARY, np.random.default_rng(0))
    assert other != taught and len(other.prompt) == len(taught.prompt) and len(other) == len(taught)
    pairs = set(zip((*taught.prompt, *taught.answer), (*other.prompt, *other.answer), strict=True))
    assert len({one for one, _ in pairs}) == len(pairs) == len({two for _, two in pairs})  # one for one


def test_what_an_answer_calls_its_own_things_is_free_where_it_is_read():
    names = Names.of("STAGES = 1\nvalue = 2\n", usual=("STAGES", "tile"))
    pieces = [
        ("usual", 0),
        " ",
        ("usual", 1),
        " ",
        ("lower", 3),
        " ",
        ("upper", 0),
        " ",
        ("upper", 0),
        " ",
        ("known", 1),
    ]
    assert names.spelled(pieces) == "STAGES_2 tile count VALUE VALUE value"


def test_padding_and_cache_change_nothing():
    network = coder().network.eval()
    tokens = torch.randint(5, 40, (2, 12))  # few, so that there is what to copy
    with torch.no_grad():
        network.pointing.gate.bias.fill_(0.5)
        plain = network(tokens)
        padded = torch.cat([torch.zeros(2, 3, dtype=torch.long), tokens], dim=1)
        start, cache = torch.tensor([3, 3]), Cache(network.shape, 2, 15, torch.empty(0))
        assert torch.allclose(network(padded, start, 11), plain, atol=1e-4)
        assert torch.allclose(network(padded, start, 4), plain[:, -4:], atol=1e-4)
        said = [network.following(padded[:, :9], start, cache)]
        said += [network.following(padded[:, at : at + 1], start, cache) for at in range(9, 14)]
        followed = torch.stack(said, dim=1)
        assert torch.allclose(followed.exp().sum(dim=-1), torch.ones(2, 6), atol=1e-4)
        assert torch.allclose(followed.gather(-1, tokens[:, 6:, None])[..., 0], plain[:, 5:], atol=1e-4)


def test_what_follows_a_like_place_is_pointed_at():
    network = coder().network.eval()
    again = torch.tensor([[21, 22, 23, 24, 25, 26, 27, 28, 21, 22, 23, 24, 25, 26, 27, 28]])
    with torch.no_grad():
        found = network.features(again)
        shares = network.pointing.shares(found[:, -1:], network.pointing.known(found[:, :-1]), None)
        assert int(shares[0, 0].argmax()) == 7, "before this one stood the same token"
        network.pointing.gate.bias.fill_(5.0)
        pointing = network(again)[0, 8:].mean()
        network.pointing.gate.bias.fill_(-5.0)
        assert pointing > network(again)[0, 8:].mean() + 1


def test_answers_end_and_fit_the_context():
    made = coder(context=64)
    generator = torch.Generator().manual_seed(0)
    prompts = [lesson(VOCABULARY, one).prompt[:50] for one in EXAMPLES[:3]]
    first = sample(made.network, prompts, temperature=1.0, most=100, generator=generator)
    assert all(len(prompt) + len(answer) <= 64 for prompt, answer in zip(prompts, first))
    assert all(END not in answer[:-1] and min(answer, default=9) >= END for answer in first)
    again = sample(made.network, prompts, temperature=1.0, most=100, generator=generator.manual_seed(0))
    assert again == first
    assert sample(made.network, [prompts[0] * 2], temperature=1.0, most=9, generator=generator) == [[]]


class Says:
    """A bench with one verdict for all."""

    def __init__(self):
        self.asked = 0

    def judged(self, kernels, timed):
        self.asked += len(kernels)
        return [RewardOutcome(None)] * len(kernels)


def test_what_earns_more_becomes_likelier():
    made = coder()
    state = CoderState("grpo", 0, made, optimiser_of(made.network), Clock())
    taught = lessons(VOCABULARY, EXAMPLES[:2])
    prompts, answers = [one.prompt[:40] for one in taught], [one.answer[:20] for one in taught]
    batch = grpo._Batch.of(prompts, answers, made.device)
    with torch.no_grad():
        before = batch.chances(made.network).sum(dim=1)
    some = grpo.GrpoSettings(rate=1e-3, divergence=0.0)
    reference = coder().network
    for _ in range(5):
        grpo.learn(state, reference, prompts, answers, torch.tensor([1.0, -1.0]), some, 1e-3)
    with torch.no_grad():
        after = batch.chances(made.network).sum(dim=1)
    assert after[0] > before[0] and after[1] < before[1]


def test_advantages_are_of_groups_and_of_what_was_judged():
    grade = grpo.Grade
    found = [grade(1.0), grade(0.0), grade(math.nan), grade(0.5), grade(0.5), grade(0.5)]
    advantages = grpo.advantages_of(found, 3).tolist()
    assert advantages[0] == pytest.approx(-advantages[1]) and advantages[0] > 0.9
    assert advantages[2:] == [0.0] * 4
    assert grpo.summary(found)["judged"] == 5 / 6


def some_settings(**changes):
    fields = {
        "size": "tiny", "vocabulary": 800, "sft": training.SftSettings(steps=4, batch=2, every=2, watched=2),
        "grpo": grpo.GrpoSettings(steps=2, groups=2, answers=2, most=50), "parts": RewardParts(), "asked": 2, "samples": 2,
    }  # fmt: skip
    return RunSettings(**{**fields, **changes})


def no_rewards():
    return dataclasses.replace(some_settings().grpo, steps=0)


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "EXACT", 20)  # of answers that nothing here looks at
    examples = [placed(one, ("rotary",)) for one in EXAMPLES]
    told, stops = [], iter([False, False, False, True, *[False] * 99])
    bench = Says()
    whole = run(examples, tmp_path / "whole", some_settings(), bench, "cpu", told.append)
    assert whole.ended and whole.stage == DONE and whole.before is not None and whole.after is not None
    assert {one["stage"] for one in told} == {"sft", "grpo", "held-out"}
    stopped = run(examples, tmp_path / "parts", some_settings(), bench, "cpu", told.append, lambda: next(stops))
    assert not stopped.ended and stopped.stage == "sft"
    ended = run(examples, tmp_path / "parts", some_settings(), bench, "cpu", told.append)
    assert ended.ended and any("goes_on_after_s" in one for one in told)
    for name in ("sft.pt", "coder.pt"):
        one, two = (load_coder(tmp_path / folder / name)[0].network for folder in ("whole", "parts"))
        for first, second in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(first, second)
    asked_before = bench.asked
    assert run(examples, tmp_path / "parts", some_settings(), bench, "cpu", told.append) == ended  # nothing again
    assert bench.asked == asked_before
    with pytest.raises(UserError, match="other size"):
        run(examples, tmp_path / "parts", some_settings(size="mini"), bench, "cpu", told.append)
    later = some_settings(start=tmp_path / "parts" / "sft.pt", sft=training.SftSettings(steps=0), grpo=no_rewards())
    begun = run(examples, tmp_path / "later", later, bench, "cpu", told.append)
    assert begun.before == ended.before, "a coder that was trained before begins where it ended"
    assert begun.stage == "sft" and begun.after is None
    further = dataclasses.replace(later, grpo=some_settings().grpo)
    assert run(examples, tmp_path / "later", further, bench, "cpu", told.append).stage == DONE  # not measured again
    assert sum(one["stage"] == "held-out" for one in told[-4:]) == 1
    with pytest.raises(UserError, match="own folder"):
        run(examples, tmp_path / "parts", later, bench, "cpu", told.append)
    first = some_settings(grpo=no_rewards())
    run(examples, tmp_path / "further", first, bench, "cpu", told.append)
    more = dataclasses.replace(first, sft=dataclasses.replace(first.sft, steps=6))
    run(examples, tmp_path / "further", more, bench, "cpu", told.append)
    assert told[-1]["stage"] == "held-out" and told[-1]["step"] == 6  # of the network that there is now
    with pytest.raises(UserError, match="cannot be read"):
        run(examples, tmp_path / "no", some_settings(start=tmp_path / "no.pt"), bench, "cpu", told.append)
    with pytest.raises(UserError, match="split `train`"):
        run(examples[:0], tmp_path / "none", some_settings(), bench, "cpu", told.append)


def test_examples_of_rewarded_tasks_may_be_kept_apart(tmp_path, monkeypatch):
    examples, told = [placed(one, ("none",)) for one in EXAMPLES], []
    apart = some_settings(apart=True, tasks=("rotary",))
    one_case = dataclasses.replace(examples[0], task="rotary@b4-s4096-h32-hk8-d128")
    taught = []
    monkeypatch.setattr(
        "operators.learning.coder.scratch.run.train_supervised",
        lambda state, lessons, *rest: taught.append(len(lessons)) or True,
    )
    run([*examples, one_case], tmp_path / "one", apart, None, "cpu", told.append)
    assert told[0]["examples"] == taught[0] == sum(one.task != "rotary" for one in examples) > 0
    with pytest.raises(UserError, match="sofmax"):
        run(examples, tmp_path / "three", some_settings(tasks=("sofmax",)), None, "cpu", told.append)
    with pytest.raises(UserError, match="--apart"):
        run(examples, tmp_path / "two", some_settings(apart=True, tasks=("rotary", "swiglu")), None, "cpu", told.append)


def test_the_door_reads_what_the_coder_of_a_run_asks(tmp_path):
    save_coder(tmp_path / "coder.pt", coder(), {})
    model = open_model(f"scratch:{tmp_path / 'coder.pt'}")
    card, first = FIRSTS[0]
    environment = Environment("modeled", "sm_90", "", "2", "3", True, 1, "none")
    brief = Brief(1, card, ScoredCandidate(1, first, 0, 0, None), (), (), 0, (0,), environment)
    for one in EXAMPLES:
        source = Source(one.parent)
        messages = LlmCoder(ScriptedModel()).opening(brief, source, one.strategy).messages
        assert asked(messages[-1].content) == (one.strategy, one.parent.rstrip() + "\n")
    reply = model.complete(messages, max_tokens=8)
    assert isinstance(model, ScratchModel) and reply.message.content.startswith(GIVE_UP) and reply.call.dollars == 0.0
    assert model.complete(messages, schema={"type": "object", "required": []}).message.content == "{}"
    with pytest.raises(ModelFailed, match="strategies"):
        model.complete(messages[:1])
    (tmp_path / "torn.pt").write_bytes((tmp_path / "coder.pt").read_bytes()[:999])
    for name in ("torn.pt", "none.pt"):
        with pytest.raises(UserError, match="coder"):
            open_model(f"scratch:{tmp_path / name}")
