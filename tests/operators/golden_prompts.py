"""The prompts that golden files pin: `python -m tests.operators.golden_prompts` writes them anew."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path

from evo_kernel.types import (
    Brief,
    CaseCard,
    CaseKind,
    Decision,
    Environment,
    Evaluation,
    Measurement,
    Purpose,
    ScoredCandidate,
    Source,
    Status,
    Strategy,
    TaskCard,
    Tried,
)
from evo_kernel.types.notes import Evidence
from operators.avo import memory as agents
from operators.avo.attempt import AvoSettings
from operators.avo.operator import opening
from operators.crossover import LlmCrossover
from operators.llm.base import Message
from operators.llm_policy import LlmPolicy
from operators.macro.catalogue import STOP, UNGUIDED, proposed
from operators.macro.features import MacroState
from operators.macro.policies import StrategyMemory
from operators.micro.llm_coder import LlmCoder, applicable
from operators.prompts.writer import Prompts
from operators.workbench.tool import WorkbenchDeps
from operators.workbench.toolset import Workbench, start_files, task_files
from operators.workbench.workspace import Workspace
from tests.operators.avo.forgetful import Forgetful
from tests.operators.support_model import FakeModel, Judged, block
from tests.operators.support_search import credit, kernel, plan, seed_of
from tests.operators.workbench.fakes import PARENT, FakeBench, FakeLineage, FakeNotebook
from tests.operators.workbench.fakes import kernel as faster

GOLDEN = Path(__file__).parent / "golden"
H200 = Environment("measured", "NVIDIA H200", "570.1", "2.11.0", "3.6.0", True, 1, "none")
CARD = TaskCard(
    "softmax",
    "import torch\n\n\ndef reference(x):\n    return torch.softmax(x, dim=-1)\n",
    "kernels",
    "ieee",
    False,
    (
        CaseCard("m=5 n=127", CaseKind.CHECK, {"m": 5, "n": 127}, (("float32", (5, 127), (127, 1)),)),
        CaseCard("m=4096 n=4096", CaseKind.SEARCH, {"m": 4096, "n": 4096}, (("float32", (4096, 4096), (4096, 1)),)),
        CaseCard("m=16384 n=1000", CaseKind.SEARCH, {"m": 16384, "n": 1000}, (("float32", (16384, 1000), (1000, 1)),)),
    ),
    "softmax over the rows of a float32 matrix",
)
ONLINE = Strategy("online-row", "algorithm", "kernel softmax_kernel")
HOIST = Strategy("hoist", "reordering", "kernel softmax_kernel, loop at line 17")


@dataclass(frozen=True)
class Note:
    source: str
    title: str
    text: str


class Library:
    """Two notes, whatever is asked."""

    def search(self, query: str, k: int = 4) -> list[Note]:
        notes = [
            Note(
                "notes/rows.md",
                "Row kernels",
                "A row that fits into registers is read once.\nLonger rows are walked over in blocks.",
            ),
            Note(
                "notes/hopper.md", "Memory of Hopper", "Reads in flight hide the latency: about 40 KB a multiprocessor."
            ),
        ]
        return notes[:k]


def measured(*times: tuple[str, float, float]) -> Evaluation:
    features = plan(kernel(name="softmax_kernel", grid=(4096, 1, 1), registers=40))
    measurements = tuple(
        Measurement(
            case, f"plan {case}", us, 0.1, 40, us - 0.1, us + 0.1, {"eager": 60.0, "compile": 48.0}, light, features
        )
        for case, us, light in times
    )
    return Evaluation(
        "s", "t", Purpose.SCORE, H200, Status.PASSED, score=1.21, measurements=measurements, knobs=(("BLOCK", 1024),)
    )


def sample() -> Brief:
    seed = seed_of("softmax")
    parent = ScoredCandidate(
        12, seed, 1, 0, measured(("m=4096 n=4096", 41.5, 0.55), ("m=16384 n=1000", 43.25, 0.52)), (HOIST,)
    )
    faster = dataclasses.replace(measured(("m=4096 n=4096", 30.0, 0.82)), score=1.7)
    better = ScoredCandidate(
        31, Source(seed.text.replace("BLOCK = 256", "BLOCK = 4096")), 2, 0, faster, (HOIST, ONLINE)
    )
    wrong = Evaluation("s", "t", Purpose.SCORE, H200, Status.WRONG, "the output is off by 40x what is allowed")
    failure = ScoredCandidate(33, Source(seed.text.replace("tl.exp(x - row_max)", "tl.exp(x)")), 2, 0, wrong, (HOIST,))
    tried = (Tried(ONLINE, Status.WRONG, None), Tried(STOP, None, None), Tried(HOIST, Status.PASSED, 0.0247))
    return Brief(40, CARD, parent, (better, failure, parent), tried, 0, (1, 40), H200)


def prompts(hierarchy: bool = True) -> Prompts:
    memory = StrategyMemory()
    memory.learn(credit(Decision("uniform", (HOIST,), (1.0,), 0), 0.025))
    return Prompts(
        hierarchy=hierarchy,
        knowledge=Library(),
        profile=lambda relative: "softmax_kernel  41.5 us  bound by memory (72 %)",
        memory=memory,
    )


def conversations() -> dict[str, tuple[Message, ...]]:
    """Golden file → the messages that it pins."""
    brief, shared = sample(), prompts()
    own = proposed("row-pairs", "tiling", "Let one program take two neighbouring rows and share their addresses.")
    offered = (*applicable(brief.parent.source, CARD), own, STOP)
    state = MacroState(CARD, brief.parent, brief.parent.source, brief.tried, 1, brief, True, ((ONLINE, "kept"),))
    coder = LlmCoder(FakeModel(""), shared)
    alone = LlmCoder(FakeModel(""), prompts(hierarchy=False))
    return {
        "prompt_coder_no_hierarchy.txt": alone.opening(brief, brief.parent.source, UNGUIDED).messages,
        "prompt_macro.txt": LlmPolicy(FakeModel(""), shared).messages(state, offered),
        "prompt_coder.txt": coder.opening(brief, brief.parent.source, ONLINE).messages,
        "prompt_coder_free.txt": coder.opening(brief, brief.parent.source, own).messages,
        "prompt_crossover.txt": LlmCrossover(FakeModel(""), shared)
        .opening(brief, brief.parent.source, brief.inspirations[0])
        .messages,
        "prompt_repair.txt": repair(brief, shared),
        "prompt_avo.txt": agent(brief),
    }


def agent(brief: Brief) -> tuple[Message, ...]:
    """What an agent's attempt opens with: two versions, one attempt before, a note, directions."""
    lineage, notebook = FakeLineage(PARENT, Source(faster(90.0))), FakeNotebook()
    notebook.add("rows of 1000 gain from 8 warps", "avo", 3, [Evidence("E3.1", 45, "passed", 1.2)])
    rooms, memory = WorkbenchDeps(FakeBench(), lineage, None, notebook), agents.AgentMemory(Forgetful())
    tried = (agents.AgentEvaluation("split the rows", "wrong", "calculation"),)
    memory.end(agents.Record(3, 1, "the limit of 120 answers", False, tried=tried))
    memory.reviewed(agents.Review(brief.attempt, "no commit in 6 attempts", ("Profile first.", "Read each row once.")))
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace(Path(folder), start_files(brief.parent.source), task_files(brief))
        return opening(AvoSettings().limits.turns, Workbench(workspace, rooms, brief, "avo"), rooms, memory)


def repair(brief: Brief, shared: Prompts) -> tuple[Message, ...]:
    """A whole conversation: a block that does not fit, one that is wrong, one that passes."""

    from operators.micro.coder import Job

    wrong = block("    row = tl.program_id(0)", "    row = tl.program_id(1)")
    right = block("    row = tl.program_id(1)", "    row = tl.program_id(0).to(tl.int64)")
    model = FakeModel(
        block("    row = tl.program_id(axis=0)", "    row = 0"),
        wrong,
        right + "CONTINUE",
        block("BLOCK = 256", "BLOCK = 512"),
    )
    judged = Judged(
        lambda text: (
            (Status.WRONG, "the output has 9 of 10 elements that were never written") if "(1)" in text else None
        )
    )
    LlmCoder(model, shared).carry_out(Job(brief.parent.source, ONLINE, brief, judged))
    return model.asked[-1][2:]


def text_of(messages: tuple[Message, ...]) -> str:
    return "\n".join(f"===== {m.role}{' (stable)' if m.stable else ''} =====\n{m.content}" for m in messages) + "\n"


if __name__ == "__main__":
    for name, messages in conversations().items():
        (GOLDEN / name).write_text(text_of(messages), encoding="utf-8")
