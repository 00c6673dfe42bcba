"""The corpus of answers: the well-formed all apply, the malformed all end in a repair request with the right category."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Source
from operators.micro.edit_blocks import EditAnswer, EditBlock, MalformedAnswer, apply, feedback, parse
from operators.micro.session import CoderSession, Opening, SessionLimits
from tests.operators.answers.malformed import MALFORMED
from tests.operators.answers.source import BOTH, FUSED, SCALE, SOURCE
from tests.operators.answers.well_formed import WELL_FORMED
from tests.operators.support_model import FakeModel, Judged, block

COMPILE = ("not valid Python", "no top-level `def run")


def session(model, probe=None, **limits):
    return CoderSession(model, lambda source: Opening(()), Source(SOURCE), probe or Judged(), SessionLimits(**limits))


def test_the_corpus_is_large_and_its_names_differ():
    for corpus in (MALFORMED, WELL_FORMED):
        assert len(corpus) >= 60
        assert len({name for name, *_ in corpus}) == len(corpus)


@pytest.mark.parametrize(("name", "answer", "wanted"), WELL_FORMED, ids=[name for name, *_ in WELL_FORMED])
def test_well_formed_answers_apply(name, answer, wanted):
    parsed = parse(answer)
    edited = apply(parsed, SOURCE)
    assert not edited.misfits and edited.text == wanted
    assert parsed.more == name.startswith("go on")
    assert session(FakeModel(answer, block("BLOCK = 256", "BLOCK = 512"))).work().text.startswith(wanted[:40])


@pytest.mark.parametrize(("name", "answer", "said"), MALFORMED, ids=[name for name, *_ in MALFORMED])
def test_malformed_answers_ask_for_repair_and_then_fail_with_their_category(name, answer, said):
    category = "compile" if said in COMPILE else "format"
    model, probe = FakeModel(answer), Judged()
    with pytest.raises(OperatorFailed, match=f"^{category}: ") as caught:
        session(model, probe, repairs=1).work()
    assert not probe.seen, "a malformed answer must cost no probe"
    assert len(caught.value.calls) == len(model.asked) == 2
    first, second = caught.value.steps
    assert first.outcome == second.outcome == "rolled back" and first.detail.startswith(f"{category}: ")
    assert said in first.detail or said in model.asked[1][-1].content
    request = model.asked[1][-1]
    assert request.role == "user" and request.content.startswith(f"Failed ({category}).")


@pytest.mark.parametrize(("name", "answer", "said"), MALFORMED, ids=[name for name, *_ in MALFORMED])
def test_malformed_answers_can_be_mended(name, answer, said):
    fixed = session(FakeModel(answer, f"```python\n{FUSED}```")).work()
    assert fixed.text == FUSED and [step.outcome for step in fixed.steps] == ["rolled back", "repaired"]


def test_a_misfit_shows_the_nearest_lines_and_what_is_in():
    edited = apply(parse(block(SCALE, BOTH) + block("    y = torch.zeros_like(x)", "    y = x")), SOURCE)
    assert edited.applied == (1,) and [number for number, _ in edited.misfits] == [2]
    told = feedback(edited)
    assert "y = torch.empty_like(x)" in told and "Already in, do not send again: block 1." in told
    assert BOTH in edited.text


def test_a_misfit_of_a_large_file_is_answered_in_time():
    large = "\n".join(f"    y{n} = tl.load(x_ptr + {n} * stride + cols, mask=mask, other=0.0)" for n in range(2000))
    started = time.monotonic()
    edited = apply(parse(block(large.replace("y1000 =", "z1000 ="), "    pass") + block("q" * 300_000, "")), large)
    assert len(edited.misfits) == 2 and "The nearest are at line 1001:" in edited.misfits[0][1]
    assert time.monotonic() - started < 20


@given(st.text(alphabet="<>=` \nSEARCHREPLACEdef run(x):python~#.", max_size=200))
def test_any_text_is_parsed_or_turned_down(text):
    try:
        answer = parse(text)
    except MalformedAnswer as error:
        assert str(error)
    else:
        assert bool(answer.blocks) != (answer.whole is not None)
        apply(answer, SOURCE)


LINES = st.lists(st.sampled_from(["a", "b", " c", "", "d = 1"]), min_size=1, max_size=5)


@given(LINES, LINES, LINES)
def test_a_block_changes_its_lines_and_nothing_else(before, wanted, after):
    if not any(line.strip() for line in wanted):
        return
    text = "\n".join([*before, *wanted, *after])
    edited = apply(EditAnswer((EditBlock(tuple(wanted), ("new",)),)), text)
    if edited.applied:
        assert edited.text.split("\n").count("new") == 1
        core = "\n".join(wanted).strip("\n")
        assert edited.text.replace("new", core, 1) == text
    else:
        assert edited.text == text
