"""The door to models, with the real litellm against a real HTTP server that behaves badly in every way we know."""

import json
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from evo_kernel.budget import Budget, Ledger
from operators.llm.base import Message, ModelFailed, Tool
from operators.llm.limits import Endpoint, Price
from operators.llm.litellm_model import LiteLLMModel, Patience
from operators.llm.litellm_request import LiteLLMWire
from operators.llm.transcript import unpack
from tests.operators.support_llm import ASK, QUICK, WIRE, served
from tests.support.chat_server import Answer, broken, busy, drip, failure, overflow, reset

SCHEMA = {
    "type": "object",
    "properties": {"choice": {"enum": ["a", "b"]}, "why": {"type": "string"}},
    "required": ["choice"],
    "additionalProperties": False,
}
GOOD = '{"choice": "a"}'
EVALUATE = Tool("evaluate", "Judge it.", {"type": "object", "properties": {"source": {"type": "string"}}})


def failed(model, *, messages=ASK, **how):
    with pytest.raises(ModelFailed) as caught:
        model.complete(messages, **how)
    return caught.value


def test_an_answer_is_a_row_with_all_that_it_cost():
    price = Price(read=1e-6, write=1e-5, cached=1e-7)
    with served([Answer("hello", tokens=(100, 20, 40))], price=price) as (server, model):
        reply = model.complete(ASK, max_tokens=77)
    assert reply.message == Message("assistant", "hello") and reply.finish == "stop" and reply.earlier == ()
    assert (reply.call.tokens_in, reply.call.tokens_out, reply.call.tokens_cached) == (100, 20, 40)
    assert reply.call.dollars == pytest.approx(60e-6 + 40e-7 + 20e-5)
    assert reply.call.wall_s > 0 and not reply.call.error and reply.call.model == "anything"
    kept = unpack(reply.call.messages)
    assert [one["content"] for one in kept["request"]["messages"]] == [one.content for one in ASK]
    assert kept["reply"]["content"] == "hello"
    assert server.requests[0]["max_tokens"] == 77 and server.requests[0]["model"] == "anything"


def test_a_price_that_nobody_knows_is_none_not_nothing():
    with served([Answer("hello")]) as (_, model):
        assert model.complete(ASK).call.dollars is None


def test_a_server_that_keeps_no_count_is_charged_at_most():
    with served([Answer("hello", tokens=(0, 0, 0))], price=Price(1e-6, 1e-6)) as (_, model):
        call = model.complete(ASK).call
    assert call.tokens_in >= 30 and call.tokens_out == 5 and call.dollars


def test_tool_calls_go_both_ways():
    wrong = Answer(None, tool_calls=(("evaluate", '{"source": '), ("no_such_tool", "{}")))
    with served([wrong, Answer("done")]) as (server, model):
        reply = model.complete(ASK, tools=[EVALUATE])
        assert reply.finish == "tool_calls"
        assert [(call.name, call.arguments) for call in reply.message.tool_calls] == [
            ("evaluate", '{"source": '),  # as written: whoever offered the tool says what is wrong with it
            ("no_such_tool", "{}"),
        ]
        answers = [Message("tool", "not JSON", tool_call_id=call.id) for call in reply.message.tool_calls]
        assert model.complete([*ASK, reply.message, *answers], tools=[EVALUATE]).message.content == "done"
    sent = server.requests[1]["messages"]
    assert server.requests[0]["tools"][0]["function"]["name"] == "evaluate"
    assert json.loads(sent[2]["tool_calls"][0]["function"]["arguments"]) == {"unreadable": '{"source": '}
    assert sent[3]["tool_call_id"] == sent[2]["tool_calls"][0]["id"]


@pytest.mark.parametrize(
    ("bad", "kind"),
    [
        (busy(), "busy"),
        (busy(retry_after_s=0.05), "busy"),
        (broken(), "broken"),
        (failure(503, "overloaded"), "broken"),
        (reset(), "broken"),
        (reset(after=0), "broken"),
        (Answer(raw=b'{"choices": [{"mess'), "broken"),
        (Answer(raw=b"<html>gateway</html>"), "broken"),
        (Answer(raw=b'{"id": "1", "object": "chat.completion", "choices": []}'), "broken"),
        (Answer(""), "an empty answer"),
    ],
)
def test_what_may_pass_is_tried_again_and_every_try_is_a_row(bad, kind):
    with served([bad, bad, Answer("at last")]) as (server, model):
        reply = model.complete(ASK)
    assert reply.message.content == "at last" and len(server.requests) == 3
    assert [call.error[: len(kind)] for call in reply.earlier] == [kind, kind]
    assert len(reply.calls) == 3 and all(unpack(call.messages)["request"] for call in reply.calls)


def test_half_an_answer_may_have_been_billed_and_a_refused_one_not():
    with served([reset(), broken(), busy(), Answer("fine")], price=Price(1e-6, 1e-6)) as (_, model):
        lost, down, wait = model.complete(ASK).earlier
    assert lost.dollars and lost.tokens_out == 1000
    assert down.dollars is None and wait.dollars is None


def test_retry_after_is_kept_to():
    with served([busy(retry_after_s=0.6), Answer("fine")]) as (_, model):
        began = time.monotonic()
        model.complete(ASK)
        assert time.monotonic() - began >= 0.6


def test_a_wait_beyond_the_deadline_is_not_begun():
    with served([busy(retry_after_s=60)]) as (_, model):
        began = time.monotonic()
        assert failed(model).kind == "down"
        assert time.monotonic() - began < 5


def test_a_storm_of_429_ends_well_for_everybody():
    with served(lambda _, n: busy(0.02) if n < 40 else Answer("fine")) as (_, model), ThreadPoolExecutor(16) as pool:
        assert {reply.message.content for reply in pool.map(lambda _: model.complete(ASK), range(16))} == {"fine"}


def test_a_slow_drip_ends_with_its_time():
    patience = replace(QUICK, try_s=0.5, tries=2)
    with served([drip()], patience=patience) as (_, model):
        began = time.monotonic()
        failure_ = failed(model)
    assert time.monotonic() - began < 3 and failure_.kind == "down"
    assert [call.error[:7] for call in failure_.calls] == ["timeout", "timeout"]


def test_the_deadline_holds_over_all_tries():
    with served([drip()], patience=Patience(deadline_s=1.0, try_s=0.4, tries=99, first_wait_s=0.01)) as (_, model):
        began = time.monotonic()
        failed(model)
        assert 0.3 < time.monotonic() - began < 3


def test_the_circuit_opens_and_a_probe_closes_it():
    endpoint = Endpoint("there", threshold=4, rest_s=0.3)
    with served([*[broken()] * 4, Answer("back")], endpoint=endpoint) as (server, model):
        assert len(failed(model).calls) == 4
        began = time.monotonic()
        assert failed(model).kind == "down" and failed(model).calls == ()
        assert time.monotonic() - began < 0.2 and len(server.requests) == 4
        time.sleep(0.3)
        assert model.complete(ASK).message.content == "back"


def test_nobody_there():
    model = LiteLLMModel("anything", base_url="http://127.0.0.1:9/v1", patience=QUICK, wire=WIRE)
    failure_ = failed(model)
    assert failure_.kind == "down" and len(failure_.calls) == QUICK.tries
    assert all(call.tokens_in == 0 for call in failure_.calls)  # no connection, no bill


@pytest.mark.parametrize(("status", "code"), [(400, ""), (401, ""), (403, ""), (404, ""), (429, "insufficient_quota")])
def test_what_will_not_pass_is_not_tried_again(status, code):
    with served([failure(status, "no such thing", code)]) as (server, model):
        failure_ = failed(model)
    assert failure_.kind == "invalid" and len(server.requests) == 1 and len(failure_.calls) == 1


def test_an_empty_key_is_named(monkeypatch):
    monkeypatch.delenv("SOME_API_KEY", raising=False)
    with served([Answer("x")], api_key_env="SOME_API_KEY") as (server, model):
        assert "SOME_API_KEY" in failed(model).reason and not server.requests


def test_no_key_of_one_provider_goes_to_the_server_of_another(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-somebody-else-entirely")
    with served([Answer("x")]) as (server, model):
        model.complete(ASK)
    assert "somebody" not in server.keys[0]


def test_secrets_reach_no_prompt_no_row_no_error_and_no_log(monkeypatch, caplog, capfd):
    secret = "very-secret-value-9c1"
    monkeypatch.setenv("MY_API_KEY", secret)
    caplog.set_level(logging.DEBUG)
    script = [broken(), failure(401, f"Incorrect API key provided: {secret}")]
    with served(script, api_key_env="MY_API_KEY") as (server, model):
        failure_ = failed(model, messages=[*ASK, Message("user", f"the key is {secret}")])
    assert server.keys[0] == f"Bearer {secret}"
    said = [json.dumps(server.requests), failure_.reason, caplog.text, *capfd.readouterr()]
    said += [call.error + json.dumps(unpack(call.messages)) for call in failure_.calls]
    assert not any(secret in text for text in said) and "[MY_API_KEY]" in failure_.reason


def test_an_outgrown_context_is_for_whoever_asks():
    with served([overflow()]) as (_, model):
        assert failed(model).kind == "too long"


def test_room_asked_for_the_answer_leaves_room_for_the_prompt():
    small = lambda request, _: Answer("ok") if request["max_tokens"] <= 4096 else overflow(8192)  # noqa: E731
    with served(small, max_tokens=16384) as (server, model):
        assert model.complete(ASK).message.content == "ok"
    assert [one["content"] for one in server.requests[-1]["messages"]] == [one.content for one in ASK]


@pytest.mark.parametrize(
    ("answer", "finish"),
    [
        (Answer("I'm sorry, but I can't help with that."), "refused"),
        (Answer("", refusal="I will not."), "refused"),
        (Answer("half a", finish="content_filter"), "refused"),
        (Answer("I can't believe how slow this was; here:\n```python\nx = 1\n```"), "stop"),
        (Answer("```python\ndef run(x):\n    y = tl.l", finish="length"), "length"),
    ],
)
def test_how_an_answer_ended(answer, finish):
    with served([answer]) as (_, model):
        assert model.complete(ASK).finish == finish


def test_a_content_filter_is_a_refusal():
    with served([failure(400, "The response was filtered", "content_policy_violation")]) as (_, model):
        assert failed(model).kind == "refused"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        f"Sure!\n```json\n{GOOD}\n```\nHope it helps {{}}.",
        f"<think>maybe {{'b'}}</think>{GOOD}",
        f"The answer is {GOOD}, because {{it}} fits.",
    ],
)
def test_json_is_found_in_prose(text):
    with served([Answer(text)]) as (server, model):
        assert json.loads(model.complete(ASK, schema=SCHEMA).message.content) == {"choice": "a"}
    assert "JSON schema" in server.requests[0]["messages"][-1]["content"]
    assert "response_format" not in server.requests[0]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a", "no JSON object"),
        ('{"choice": "c"}', "$.choice"),
        ('{"choice": "a", "more": 1}', "more"),
        ('{"choice": "a"} or {"choice": "b"}', "2 different"),
        ('{"choice": "a', "no JSON object"),
        ('[{"choice": "c"}]', "$.choice"),
    ],
)
def test_json_that_does_not_fit_is_asked_for_once_more(text, complaint):
    with served([Answer(text), Answer(GOOD)]) as (server, model):
        reply = model.complete(ASK, schema=SCHEMA)
    assert json.loads(reply.message.content) == {"choice": "a"}
    assert complaint in reply.earlier[0].error and complaint in server.requests[1]["messages"][-1]["content"]


def test_json_that_never_fits_is_a_failure_with_both_rows():
    with served([Answer("no")]) as (server, model):
        failure_ = failed(model, schema=SCHEMA)
    assert failure_.kind == "malformed" and len(server.requests) == len(failure_.calls) == 2


def test_a_provider_that_takes_schemas_gets_one_and_may_turn_it_down():
    script = lambda request, _: (  # noqa: E731
        failure(400, "unknown field response_format") if "response_format" in request else Answer(GOOD)
    )
    with served([Answer(GOOD)], structured=True) as (server, model):
        model.complete(ASK, schema=SCHEMA)
    assert server.requests[0]["response_format"]["json_schema"]["schema"] == SCHEMA
    with served(script, structured=True) as (server, model):
        model.complete(ASK, schema=SCHEMA)
        model.complete(ASK, schema=SCHEMA)
    assert ["response_format" in request for request in server.requests] == [True, False, False]


def test_a_budget_holds_with_32_attempts_in_flight():
    purse = Ledger(Budget(dollars=0.05))
    price = Price(read=0.0, write=1e-5)  # at most 0.01 a call
    script = lambda _, n: Answer("x", tokens=(10, 300 + n % 700, 0), delay_s=0.01)  # noqa: E731
    billed, lock = [], threading.Lock()

    def attempt(model):
        while True:
            try:
                reply = model.complete(ASK)
            except ModelFailed as failure_:
                return failure_.kind
            with lock:
                billed.append(reply.call.dollars)

    with served(script, price=price, purse=purse) as (server, model), ThreadPoolExecutor(32) as pool:
        assert set(pool.map(attempt, [model] * 32)) == {"budget"}
    assert sum(billed) == pytest.approx(purse.spent().dollars)
    assert 0.04 <= sum(billed) <= 0.05 and len(server.requests) == len(billed)


def test_a_budget_in_dollars_needs_a_price():
    with served([Answer("x")], purse=Ledger(Budget(dollars=1.0))) as (server, model):
        assert "price" in failed(model).reason and not server.requests


@pytest.mark.parametrize("answer", [busy(retry_after_s=5), Answer("late", delay_s=2.5)])
def test_stopping_ends_waits(answer):
    stop = threading.Event()
    with served([answer], stop=stop) as (_, model):
        threading.Timer(0.3, stop.set).start()
        began = time.monotonic()
        assert "stopped" in failed(model).reason and time.monotonic() - began < 2


def test_a_wire_that_is_closed_leaves_no_thread_and_may_be_used_again():
    earlier, wire = set(threading.enumerate()), LiteLLMWire()
    for _ in range(2):
        with served([Answer("hello")], wire=wire) as (_, model):
            assert model.complete(ASK).message.content == "hello"
            assert "model-calls" in {thread.name for thread in set(threading.enumerate()) - earlier}
        wire.close()
        until = time.monotonic() + 10
        while (left := set(threading.enumerate()) - earlier) and time.monotonic() < until:
            time.sleep(0.01)
        assert not left
    wire.close()
