"""Models that are made of others and of scripts; and the parts of the door that need no server."""

import json
import threading

import pytest

from evo_kernel.budget import Budget, Ledger
from evo_kernel.types import Call
from operators.llm.base import Message, Model, ModelFailed, Reply, Tool
from operators.llm.limits import Endpoint, TokenBound
from operators.llm.models import Ensemble, ScriptedModel, smallest
from operators.llm.structured import problem, strict
from operators.llm.transcript import messages_payload, redact
from tests.operators.support_llm import ASK, WIRE

TOOLS = (Tool("read", "Read.", {"type": "object"}),)


def ask(text):
    return [ASK[0], Message("user", text)]


class Fake(Model):
    """A member: answers with its name, at its price, or fails."""

    def __init__(self, name, dollars=0.01, kind=""):
        self.name, self.dollars, self.kind, self.asked = name, dollars, kind, 0

    def answer(self, request):
        self.asked += 1
        call = Call(self.name, dollars=self.dollars)
        if self.kind:
            raise ModelFailed(f"{self.name} is {self.kind}", self.kind, (call,))
        return Reply(Message("assistant", self.name), call)


# --- scripts


def test_the_built_in_script_picks_the_first_offer_and_edits_a_little():
    model = ScriptedModel()
    assert isinstance(model, object) and model.name == "scripted"
    schema = {"type": "object", "properties": {"choice": {"type": "integer", "minimum": 0}}, "required": ["choice"]}
    assert json.loads(model.complete(ASK, schema=schema).message.content) == {"choice": 0}
    code = "def run(x):\n    k[(1,)](x, num_warps=4)\n"
    assert "num_warps=8" in model.complete(ask(f"```python\n{code}```")).message.content
    assert model.complete(ASK, tools=TOOLS).finish == "stop"


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["x", "y"]},
        {"type": "array", "items": {"type": "string", "minLength": 12}, "minItems": 2},
        {"anyOf": [{"type": "null"}, {"type": "string"}]},
        {"type": "integer", "minimum": 3},
    ],
)
def test_the_smallest_value_fits(schema):
    assert problem(smallest(schema), schema) == ""


# --- ensembles


def shares(ensemble, count=300):
    names = [ensemble.complete(ask(str(i))).message.content for i in range(count)]
    return {name: names.count(name) / count for name in names}


def test_conversations_are_shared_out_by_weight():
    ensemble = Ensemble([Fake("a"), Fake("b"), Fake("c")], {"a": 2.0, "c": 0.0})
    assert shares(ensemble) == {"a": pytest.approx(2 / 3, abs=0.1), "b": pytest.approx(1 / 3, abs=0.1)}


def test_a_conversation_stays_with_who_spoke():
    ensemble = Ensemble([Fake("a"), Fake("b"), Fake("c")])
    for i in range(20):
        messages = ask(f"start {i}")
        first = ensemble.complete(messages).message
        messages += [first, Message("user", "go on")]
        second = ensemble.complete(messages).message
        assert second == first
        assert ensemble.complete([*messages, second, Message("user", "and on")]).message == first


@pytest.mark.parametrize("kind", ["down", "too long", "refused", "budget", "invalid"])
def test_another_member_answers_for_one_that_cannot(kind):
    ill = Fake("ill", kind=kind)
    ensemble = Ensemble([ill, Fake("well")])
    replies = [ensemble.complete(ask(str(i))) for i in range(30)]
    assert {reply.message.content for reply in replies} == {"well"}
    assert sum(len(reply.earlier) for reply in replies) == ill.asked > 0  # what it cost is not lost
    if kind == "invalid":
        assert ill.asked == 1


def test_when_no_member_can_all_reasons_are_told():
    ensemble = Ensemble([Fake("a", kind="too long"), Fake("b", kind="down")])
    with pytest.raises(ModelFailed, match=r"(?s)(?=.*a is too long)(?=.*b is down)") as caught:
        ensemble.complete(ASK)
    assert caught.value.kind == "down" and len(caught.value.calls) == 2


# --- parts


def test_marks_lie_on_stable_messages_and_are_never_too_many():
    messages = [Message("system", "s", stable=True), *(Message("user", str(i), stable=True) for i in range(6))]
    payload = messages_payload([*messages, Message("user", "tail")], cache_marks=True)
    marked = [i for i, one in enumerate(payload) if isinstance(one["content"], list)]
    assert marked == [0, 4, 5, 6]
    assert not any(isinstance(one["content"], list) for one in messages_payload(messages, cache_marks=False))


def test_litellm_s_own_table_prices_a_known_model_offline():
    facts = WIRE.facts("anthropic/claude-sonnet-4-5", local=False)
    assert facts.price and facts.price.worst(1000, 0) >= facts.price.dollars(1000, 0) > 0
    assert facts.structured and facts.cache_marks
    assert WIRE.facts("nobody/knows-this", local=False).price is None


def test_a_prompt_s_bound_is_its_bytes_until_more_is_known():
    bound = TokenBound()
    assert bound.tokens(10_000, 2) >= 10_000
    for _ in range(TokenBound.ENOUGH):
        bound.learn(10_000, 2, 3_000)
    assert 3_000 <= bound.tokens(10_000, 2) < 5_000


def test_a_ledger_waits_for_what_others_set_aside():
    purse = Ledger(Budget(dollars=1.0, tokens=100))
    assert purse.set_aside(0.8, 10) and not purse.set_aside(0.8, 10)
    threading.Timer(0.1, purse.book, (0.8, 10, 0.1, 5)).start()
    assert purse.set_aside(0.8, 10, wait_s=5.0)
    assert not purse.set_aside(1.2, 1, wait_s=60.0)  # hopeless: not waited for
    assert not purse.set_aside(0.0, 96) and not purse.set_aside(None, 1)


def test_an_endpoint_lets_one_probe_through():
    now = [0.0]
    endpoint = Endpoint("e", threshold=2, rest_s=10, clock=lambda: now[0])
    endpoint.failed()
    assert endpoint.admit() == 0
    endpoint.failed()
    assert endpoint.admit() == 10
    now[0] = 11
    assert endpoint.admit() == 0 and endpoint.admit() > 0
    endpoint.failed()
    assert endpoint.admit() == 20  # twice as long
    now[0] = 32
    assert endpoint.admit() == 0
    endpoint.worked()
    assert endpoint.admit() == endpoint.admit() == 0


def test_redaction_knows_names_and_shapes():
    environ = {"A_API_KEY": "abcdefgh1", "HOME": "somewhere-long", "B_TOKEN": "short"}
    text = "abcdefgh1 somewhere-long short Bearer abc.def-ghi sk-abcdefghijklmnop"
    assert redact(text, environ) == "[A_API_KEY] somewhere-long short Bearer [key] [key]"
    code = "sk_offset_of_this_block, hf_row = task-independent-of-all-else"
    assert redact(code, environ) == code


def test_half_of_a_surrogate_pair_fits_no_schema():
    schema = {"type": "object", "properties": {"idea": {"type": "string"}}}
    assert problem({"idea": "\ud83d"}, schema).startswith("a text holds half of a surrogate pair")
    assert problem({"idea": "\U0001f600"}, schema) == ""


def test_which_schemas_are_strict():
    closed = {"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False}
    assert strict(closed) and not strict({**closed, "required": []})
    assert not strict({"type": "array", "items": {"type": "object", "properties": {}}})


def test_all_of_them_are_models():
    models: list[Model] = [ScriptedModel(), Ensemble([ScriptedModel()])]
    assert all(model.complete(ASK).calls for model in models)
