"""The llm coder and its sessions: edits, probes, repairs, roll-backs, costs, with a model that says what it is told."""

import dataclasses

import pytest

from evo_kernel.errors import OperatorFailed
from evo_kernel.types import Operator, Purpose, Source, Status, Strategy, Tried
from operators.llm.base import ModelFailed, ToolCall
from operators.llm.models import ScriptedModel
from operators.llm_policy import LlmPolicy
from operators.macro.bandit import BanditPolicy
from operators.macro.catalogue import CATALOGUE, UNGUIDED, proposed
from operators.macro.policies import UniformPolicy
from operators.micro.coder import Coder, Job, RewriteCoder
from operators.micro.llm_coder import MASKS, CombinedCoder, LlmCoder, applicable, guides
from operators.micro.session import SessionLimits
from operators.mtmc import MtmcOperator
from operators.prompts.evidence import ADVICE, EditFault, fault_of
from operators.prompts.parts import Budgets
from operators.prompts.writer import Prompts
from tests.operators.answers.source import BOTH, CALL, FUSED, SCALE, SOURCE
from tests.operators.support_model import FakeModel, Judged, block, choice, reply
from tests.operators.support_search import TASK, brief, broken, kept_strategies, no_probe, relative, seed_of

PARENT = relative(1, Source(SOURCE))
FUSE = Strategy("fuse-consumer", "fusion", "kernel scale_kernel -> shift_kernel")
ONE, TWO = block(SCALE, BOTH), block(CALL, "")
UNFUSED = (Status.WRONG, "the output is off by 9x what is allowed: at (0,) it is 2 where the reference is 1")


def half(text):
    """The first block alone is wrong: both kernels run, and one does the work of both."""
    return UNFUSED if BOTH in text and CALL in text else None


def job(probe, strategy=FUSE, parent=PARENT, **more) -> Job:
    return Job(parent.source, strategy, brief(parent, **more), probe)


def outcomes(steps):
    return [(step.action, step.outcome) for step in steps]


def test_one_answer_one_probe_one_step():
    model, probe = FakeModel(ONE + TWO), Judged()
    coder = LlmCoder(model)
    assert isinstance(coder, Coder)
    coded = coder.carry_out(job(probe))
    assert coded.text == FUSED == probe.seen[-1].text and coded.probes == len(probe.seen) == 1
    assert outcomes(coded.steps) == [("edit 1", "kept")] and len(coded.calls) == 1
    system, user = model.asked[0]
    assert system.role == "system" and system.stable and "SEARCH" in system.content
    assert user.role == "user" and "fuse-consumer" in user.content and SCALE in user.content


def test_a_fault_is_answered_with_its_category_and_repaired():
    model, probe = FakeModel(ONE, TWO), Judged(half)
    coded = LlmCoder(model).carry_out(job(probe))
    assert coded.text == FUSED and coded.probes == 2
    assert outcomes(coded.steps) == [("edit 1", "rolled back"), ("repair 1 of edit 1", "repaired")]
    assert coded.steps[0].detail.startswith("calculation: the output is off by 9x")
    request = model.asked[1][-1].content
    assert request.startswith("Failed (calculation).") and ADVICE[EditFault.CALCULATION] in request
    assert model.asked[1][:2] == model.asked[0], "the prefix of a conversation must not change"


def test_a_repair_may_start_from_the_last_good_source():
    coded = LlmCoder(FakeModel(ONE, ONE + TWO)).carry_out(job(Judged(half)))
    assert coded.text == FUSED


def test_repairs_are_limited_and_what_they_cost_is_told():
    probe = Judged(lambda text: UNFUSED)
    blocks = [block("BLOCK = 256" if n == 0 else f"BLOCK = {n}", f"BLOCK = {n + 1}") for n in range(9)]
    with pytest.raises(OperatorFailed, match=r"^calculation: .*after 3 answers") as caught:
        LlmCoder(FakeModel(*blocks), limits=SessionLimits(repairs=2)).carry_out(job(probe))
    assert len(caught.value.calls) == len(caught.value.steps) == len(probe.seen) == 3
    assert {step.outcome for step in caught.value.steps} == {"rolled back"}


def test_a_step_that_passed_survives_a_later_one_that_fails():

    def fused(text):
        return UNFUSED if CALL not in text else None

    model = FakeModel(ONE + "CONTINUE\n", TWO)
    coded = LlmCoder(model, limits=SessionLimits(repairs=1)).carry_out(job(Judged(fused)))
    assert coded.text == SOURCE.replace(SCALE, BOTH)
    assert outcomes(coded.steps)[0] == ("edit 1", "kept") and coded.steps[-1].outcome == "rolled back"


def test_edits_are_limited():
    answers = [block(f"BLOCK = {256 + n}", f"BLOCK = {257 + n}") + "CONTINUE" for n in range(9)]
    coded = LlmCoder(FakeModel(*answers), limits=SessionLimits(edits=3)).carry_out(job(Judged()))
    assert "BLOCK = 259" in coded.text and len(coded.steps) == 3


def test_the_same_failing_source_is_probed_once():
    probe = Judged(lambda text: UNFUSED)
    with pytest.raises(OperatorFailed, match=r"^calculation") as caught:
        LlmCoder(FakeModel(ONE)).carry_out(job(probe))
    assert len(probe.seen) == 1 and "failed before" in caught.value.steps[1].detail


def test_a_known_candidate_is_no_news():
    other = relative(7, Source(FUSED))
    with pytest.raises(OperatorFailed, match="candidate 7 again"):
        LlmCoder(FakeModel(ONE + TWO)).carry_out(job(no_probe, inspirations=(other,)))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply(ONE + TWO, finish="length"), "format: the answer was cut off"),
        (reply("", tool_calls=[ToolCall("1", "edit", "{}")]), "format: there are no tools here"),
        (reply("B's idea is in A already.\n\nGIVE UP: nothing is left to merge."), "gave up: nothing is left to merge"),
        (reply("", finish="refused"), r"the model failed \(refused\)"),
        (ModelFailed("out of money", "budget"), r"the model failed \(budget\): out of money"),
        (ModelFailed("gone", "down"), r"the model failed \(down\)"),
    ],
)
def test_answers_that_are_none_fail_with_their_reason(answer, said):
    with pytest.raises(OperatorFailed, match=said):
        LlmCoder(FakeModel(answer)).carry_out(job(no_probe))


def test_a_model_that_goes_away_leaves_what_passed():
    model = FakeModel(ONE + "CONTINUE", ModelFailed("gone", "down", (reply("").call,)))
    coded = LlmCoder(model).carry_out(job(Judged()))
    assert coded.text == SOURCE.replace(SCALE, BOTH) and len(coded.calls) == 2


def test_a_conversation_that_is_too_long_starts_again_from_the_source_as_it_stands():
    model = FakeModel(ONE + "CONTINUE", ModelFailed("no room", "too long"), TWO)
    coded = LlmCoder(model).carry_out(job(Judged()))
    assert coded.text == FUSED
    again = model.asked[2]
    assert len(again) == 3 and "as it stands after the steps so far" in again[1].content and BOTH in again[1].content


def test_a_machine_fault_is_not_repaired():
    model = FakeModel(ONE)
    with pytest.raises(OperatorFailed, match=r"^machine: "):
        LlmCoder(model).carry_out(job(Judged(lambda text: (Status.INFRA_ERROR, "the disk is full"))))
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    ("status", "reason", "fault"),
    [
        (Status.BUILD_ERROR, "CompilationError: at 3:4: Incompatible block shapes", EditFault.COMPILE),
        (Status.BUILD_ERROR, "OutOfResources: out of resource: shared memory, Required: 294912", EditFault.LAUNCH),
        (Status.BUILD_ERROR, "not valid Python: '(' was never closed (line 3)", EditFault.COMPILE),
        (Status.RUNTIME_ERROR, "the GPU stopped: an illegal memory access was encountered", EditFault.LOAD_STORE),
        (
            Status.RUNTIME_ERROR,
            "kernel k fails at `y = x.too()`: AttributeError: no attribute 'too'",
            EditFault.COMPILE,
        ),
        (Status.RUNTIME_ERROR, "kernel reads outside a buffer", EditFault.LOAD_STORE),
        (Status.RUNTIME_ERROR, "out of GPU memory: 96 GiB", EditFault.LAUNCH),
        (Status.WRONG, "the output has 7 of 9 elements that were never written", EditFault.LOAD_STORE),
        (Status.WRONG, "a kernel writes outside a buffer (near buffer 2 of the plan)", EditFault.LOAD_STORE),
        (Status.WRONG, "the kernel changes its input 0", EditFault.LOAD_STORE),
        (Status.WRONG, "the output is off by 3x what is allowed", EditFault.CALCULATION),
        (Status.WRONG, "the output is nan at (0, 1) where the reference is 2", EditFault.CALCULATION),
        (Status.REJECTED, "run reads a tensor's values on the host", EditFault.RULE),
        (Status.TIMEOUT, "it did not finish", EditFault.TIMEOUT),
        (Status.INFRA_ERROR, "no", EditFault.MACHINE),
    ],
)
def test_categories(status, reason, fault):
    found = fault_of(dataclasses.replace(broken(reason), status=status, purpose=Purpose.PROBE))
    assert found is fault


# -- what is offered -----------------------------------------------------------------------------------------------


def test_every_strategy_has_a_mask():
    assert set(MASKS) == set(CATALOGUE) - {"stop"}


@pytest.mark.parametrize("task", ["softmax", "matmul", "attention", "layernorm", "cross_entropy", "linear_gelu"])
def test_masks_offer_wherever_the_rewriter_can(task):
    card = dataclasses.replace(TASK, precision="tf32")
    offered = {(s.name, s.region.split(",")[0]) for s in applicable(seed_of(task), card)}
    exact = {(s.name, s.region.split(",")[0]) for s in RewriteCoder().offer(seed_of(task), card)}
    assert exact <= offered


def test_masks_keep_out_what_has_nothing_to_work_on():
    names = {strategy.name for strategy in applicable(Source(SOURCE), TASK)}
    assert {"fuse-consumer", "fuse-producer", "drop-masks", "tile-2d"} <= names
    assert not names & {"split-k", "causal-skip", "exp2", "input-precision", "online-row", "stop"}
    assert not applicable(Source("def run(x:"), TASK) and not applicable(Source("x = 1"), TASK)
    assert {s.region for s in applicable(Source(SOURCE, "gluon"), TASK)} == {""}


def test_the_rewriter_goes_first_where_it_can():
    parent = relative(1, seed_of("softmax"))
    model = FakeModel(block("BLOCK = 256", "BLOCK = 128"))
    coder = CombinedCoder(RewriteCoder(), LlmCoder(model))
    offered = coder.offer(parent.source, TASK)
    exact = RewriteCoder().offer(parent.source, TASK)
    assert offered[: len(exact)] == exact and len({s.key for s in offered}) == len(offered) > len(exact)
    assert not coder.carry_out(job(no_probe, exact[0], parent)).calls
    assert coder.carry_out(job(Judged(), offered[-1], parent)).calls
    again = job(Judged(), exact[0], parent)
    again = dataclasses.replace(again, brief=dataclasses.replace(again.brief, tried=(Tried(exact[0], None, None),)))
    assert coder.carry_out(again).calls, "what the rewriter has done to this parent already goes to the model"


def test_guides_belong_to_the_catalogue_and_reach_the_prompt(monkeypatch):
    assert set(guides()) == set(CATALOGUE) - {"stop"}
    opening = LlmCoder(FakeModel("")).opening(brief(PARENT), PARENT.source, FUSE)
    assert guides()["fuse-consumer"][:200] in opening.messages[1].content
    monkeypatch.setattr("operators.micro.llm_coder.guides", dict)
    bare = LlmCoder(FakeModel("")).opening(brief(PARENT), PARENT.source, FUSE)
    assert "Guide" not in bare.messages[1].content


def test_a_whole_file_is_refused_where_parts_were_not_shown():
    far = "\n".join(f"    y{n} = x + {n}" for n in range(400))
    text = SOURCE.replace("def run", f"@triton.jit\ndef far_kernel(x):\n{far}\n    return y1\n\n\ndef run")
    parent, prompts = relative(1, Source(text)), Prompts(Budgets(source=600))
    model = FakeModel(f"```python\n{FUSED}```", ONE + TWO)
    coded = LlmCoder(model, prompts).carry_out(job(Judged(), parent=parent))
    assert "y399" not in model.asked[0][1].content and "y399" in coded.text
    assert "parts of the source were not shown" in coded.steps[0].detail


# -- in the operator -----------------------------------------------------------------------------------------------


def test_the_whole_way_macro_and_micro_with_every_call_counted():
    offered = applicable(PARENT.source, TASK)
    at = next(n for n, s in enumerate(offered, start=1) if s == FUSE)
    macro, micro, probe = FakeModel(choice(at)), FakeModel("nonsense", ONE + TWO), Judged()
    operator = MtmcOperator(LlmPolicy(macro, fallback=BanditPolicy()), LlmCoder(micro), name="llm")
    assert isinstance(operator, Operator)
    proposal = operator.propose(brief(PARENT), probe)
    assert proposal.source.text == FUSED and proposal.strategy == FUSE and proposal.operator == "llm"
    assert len(proposal.calls) == 3 and proposal.probes == len(probe.seen) == 1
    (decision,) = proposal.decisions
    assert decision.policy == "llm" and decision.calls == () and decision.probabilities[decision.chosen] == 0.7
    assert [step.outcome for step in proposal.steps] == ["rolled back", "repaired", "kept"]
    assert proposal.steps[-1].action == FUSE.key and kept_strategies(proposal) == (FUSE,)


def test_a_strategy_of_the_models_own_reaches_the_coder():
    wish = {"name": "half-and-half", "family": "memory", "description": "Split the row in two.", "region": ""}
    new = len(applicable(PARENT.source, TASK)) + 1
    macro, micro = FakeModel(choice(new, proposal=wish)), FakeModel(ONE + TWO)
    proposal = MtmcOperator(LlmPolicy(macro), LlmCoder(micro)).propose(brief(PARENT), Judged())
    own = proposed("half-and-half", "memory", "Split the row in two.")
    assert proposal.strategy == own and proposal.decisions[0].offered[-1] == own
    assert "Split the row in two." in micro.asked[0][1].content


def test_failures_of_the_whole_way_carry_every_call():
    operator = MtmcOperator(UniformPolicy(), LlmCoder(FakeModel("nonsense"), limits=SessionLimits(repairs=1)))
    with pytest.raises(OperatorFailed, match="could not be carried out") as caught:
        operator.propose(brief(PARENT), no_probe)
    assert len(caught.value.calls) == 8 and len(caught.value.decisions) == 4 and len(caught.value.steps) == 12


def test_without_the_hierarchy_one_writer_does_as_it_sees_fit():
    shared = Prompts(hierarchy=False)
    macro, micro = FakeModel("never asked"), FakeModel(ONE + TWO)
    coder = LlmCoder(micro, shared)
    tried = (Tried(UNGUIDED, Status.WRONG, None),) * 99
    given = dataclasses.replace(brief(PARENT), tried=tried)
    proposal = MtmcOperator(LlmPolicy(macro, shared), coder).propose(given, Judged())
    assert not macro.asked and proposal.strategy == UNGUIDED and proposal.source.text == FUSED
    system, user = micro.asked[0]
    assert "You decide what to change" in system.content and "The strategy to carry out" not in user.content


def test_every_try_is_counted_those_before_the_answer_too():
    earlier = (reply("").call,) * 2
    answers = [dataclasses.replace(reply(text), earlier=earlier) for text in (choice(1), ONE + TWO)]
    operator = MtmcOperator(LlmPolicy(FakeModel(answers[0])), LlmCoder(FakeModel(answers[1])))
    assert len(operator.propose(brief(PARENT), Judged()).calls) == 6


def test_the_scripted_model_goes_the_whole_way():
    parent = relative(1, seed_of("softmax"))
    model = ScriptedModel()
    operator = MtmcOperator(LlmPolicy(model), LlmCoder(model))
    proposal = operator.propose(brief(parent), Judged())
    assert proposal.decisions[0].policy == "llm" and proposal.decisions[0].chosen == 0
    assert proposal.source != parent.source and "def softmax_kernel" in proposal.source.text


def test_answers_without_measure_are_quoted_with_one_and_a_mark_at_the_start_is_no_text():
    whole = f"\ufeff```python\n{FUSED}\n{'# pad' * 100_000}\n```"
    model = FakeModel("word " * 400_000, whole, f"\ufeff```python\n{FUSED}\n```")
    limits = SessionLimits(max_tokens=1000)
    coded = LlmCoder(model, limits=limits).carry_out(job(Judged()))
    assert coded.text.strip() == FUSED.strip()
    assert [step.detail[:40] for step in coded.steps[:2]] == [
        "format: the answer holds no edit: write ", "format: the source would be larger than ",
    ]  # fmt: skip
    first = sum(len(message.content) for message in model.asked[0])
    assert sum(len(message.content) for message in model.asked[2]) < first + 2 * (2 * 4 * 1000 + 3000)
