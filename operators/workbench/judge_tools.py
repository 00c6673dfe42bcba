"""Tools over the judge: evaluate, probe, profile, submit, which count against the attempt's budget, and compile."""

from __future__ import annotations

import contextlib
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from evo_kernel.errors import InfraError, UserError
from evo_kernel.types import Brief, CaseKind, Evaluation, Knobs, Purpose, Source, Status
from evo_kernel.types.notes import Evidence
from evo_kernel.types.promotion import GateVerdict
from operators.macro.catalogue import FAMILIES, OTHER, STOP
from operators.prompts.evidence import facts_of, told
from operators.workbench.tool import (
    Submission,
    ToolFailed,
    ToolResult,
    WorkbenchJudge,
    WorkbenchLineage,
    WorkTool,
    schema,
)
from operators.workbench.workspace import PATH, Workspace

KERNEL = "kernel.py"
"""The file that is judged unless another is named."""
REMEMBERED = 32  # evaluations whose whole text is kept
CITABLE = 4000  # evaluations that notes of this attempt may cite
WOULD_PASS = "would pass, unless it is slower or wrong on the hidden shapes that submit adds"
IDEA = {"type": "string", "minLength": 3, "maxLength": 200, "description": "what this tries, in a few words"}
_CASE = {"type": "string", "maxLength": 100, "description": "whose shapes to take; the first search case if left out"}
_KNOBS = {
    "type": "object", "maxProperties": 32, "additionalProperties": {"type": "integer"},
    "description": "knobs to set before, such as {\"BLOCK\": 128}; as they stand in the file if left out",
}  # fmt: skip
Aside = Callable[[], contextlib.AbstractContextManager[None]]
_NAME = re.compile(r"^[a-z0-9][a-z0-9-]{1,60}$")


@dataclass(frozen=True)
class Allowed:
    """Calls that an attempt may make. `evaluations` include those that submit needs for an unknown source."""

    evaluations: int = 40
    probes: int = 200
    profiles: int = 40
    submits: int = 12

    def __post_init__(self) -> None:
        if min(self.evaluations, self.submits) < 1 or min(self.probes, self.profiles) < 0:
            raise ValueError(f"an attempt needs at least one evaluation and one submit, and no negative limit: {self}")


@dataclass
class Used:
    """Calls made so far, and what is known by them. Not thread-safe: the workbench's lock guards it."""

    counts: dict[str, int] = field(default_factory=dict)
    citable: OrderedDict[str, Evidence] = field(default_factory=OrderedDict)
    latest: OrderedDict[tuple[str, str], tuple[str, Evaluation]] = field(default_factory=OrderedDict)
    refused: dict[str, str] = field(default_factory=dict)  # sha256 that the gate refused -> why
    named: OrderedDict[str, str] = field(default_factory=OrderedDict)  # sha256 that was evaluated -> its evaluation
    tuned: OrderedDict[str, Knobs] = field(default_factory=OrderedDict)  # sha256 -> the knobs that it was scored with

    def remember(self, facts: Mapping[str, Any]) -> None:
        """An evaluation's facts, new or of an earlier session."""
        if "evaluation" in facts:
            name = facts["evaluation"]
            self.citable[name] = Evidence(name, facts["samples"], facts["status"], facts["score"])
            if facts["purpose"] == "score":
                self.named[facts["source"]] = name
            if facts.get("knobs"):
                self.tuned[facts["source"]] = tuple((knob, value) for knob, value in facts["knobs"])
            for kept in (self.citable, self.named, self.tuned):
                if len(kept) > CITABLE:
                    kept.popitem(last=False)
        if "refused" in facts:
            self.refused[facts["source"]] = facts["refused"]

    def keep(self, purpose: str, name: str, evaluation: Evaluation) -> None:
        self.latest[(purpose, evaluation.source)] = (name, evaluation)
        if len(self.latest) > REMEMBERED:
            self.latest.popitem(last=False)


class Judging:
    """The judge as the tools of one attempt see it. `aside`: within it nobody is held up."""

    def __init__(
        self,
        workspace: Workspace,
        bench: WorkbenchJudge,
        lineage: WorkbenchLineage,
        brief: Brief,
        allowed: Allowed,
        aside: Aside,
    ) -> None:
        self._workspace, self._bench, self._lineage, self._allowed = workspace, bench, lineage, allowed
        self._attempt, self._parent, self._aside = brief.attempt, brief.parent.source, aside
        self._cases = tuple(case.name for case in brief.task.cases if case.kind is not CaseKind.CONFIRM)
        self.used = Used()

    def tools(self) -> Iterator[WorkTool]:
        path = PATH | {"description": f"the module with `run`; {KERNEL} if left out"}
        yield WorkTool(
            "evaluate", "Check a kernel on every case, tune its knobs and time it: status, time by case, resources, "
            f"and what the commit gate would say. At most {self._allowed.evaluations} an attempt; the same text again "
            "is free.",
            schema(("idea",), idea=IDEA, path=path), self._evaluate, slow=True,
        )  # fmt: skip
        yield WorkTool(
            "probe", "Compile a kernel and check it on small cases only: cheap, untimed; with what compile tells. "
            f"At most {self._allowed.probes} an attempt.",
            schema(path=path), self._probe, slow=True,
        )  # fmt: skip
        yield WorkTool(
            "compile", "What a kernel's machine code needs and does, in seconds and without running it: registers, "
            "spills, shared memory, blocks an SM, tensor-core and copy instructions, instructions of each loop by its "
            "line, and the assembler's warnings (wgmma serialised, setmaxnreg ignored). As often as you like.",
            schema(
                path=path, case=_CASE, knobs=_KNOBS, sass=PATH | {"description": "file to write the machine code to"},
                ptx=PATH | {"description": "file to write the PTX to"},
            ), self._compile, slow=True,
        )  # fmt: skip
        yield WorkTool(
            "profile", "What each launch of a kernel does with the GPU: what bounds it, rates, occupancy, registers, "
            "instruction mix. Of a text that was evaluated before, with the knobs that were tuned for it; else as they "
            f"stand in the file. At most {self._allowed.profiles} an attempt.",
            schema(path=path, case=_CASE | {"description": "one case; all if left out"}), self._profile, slow=True,
        )  # fmt: skip
        yield WorkTool(
            "submit", "Hand a kernel to the commit gate. It is measured again; if it is correct, its gain is sure and "
            "no case became slower than allowed, it is committed and this attempt ends. Otherwise you are told why, "
            f"and go on. At most {self._allowed.submits} an attempt.",
            schema(
                ("idea", "strategy"), idea=IDEA, path=path,
                strategy={"type": "string", "maxLength": 60, "description": "a short name such as split-k"},
                family={"type": "string", "enum": list(FAMILIES)},
                merged_from={"type": "array", "maxItems": 4, "items": {"type": "integer", "minimum": 1},
                             "description": "numbers of versions whose ideas are in it too"},
            ), self._submit, slow=True,
        )  # fmt: skip

    def left(self) -> str:
        """What may still be asked for, in a line."""
        names = {"evaluations": "evaluate", "probes": "probe", "profiles": "profile", "submits": "submit"}
        parts = [
            f"{max(getattr(self._allowed, name) - self.used.counts.get(tool, 0), 0)} {name}"
            for name, tool in names.items()
        ]
        return "left: " + ", ".join(parts)

    # ---- the tools ------------------------------------------------------------------------------------------------

    def _evaluate(self, arguments: Mapping[str, Any]) -> ToolResult:
        source = self._source(arguments)
        return self._known("score", source) or self._evaluated(source, arguments["idea"])[1]

    def _probe(self, arguments: Mapping[str, Any]) -> ToolResult:
        source = self._source(arguments)
        if known := self._known("probe", source):
            return known
        with self._counted("probe", self._allowed.probes) as name:
            evaluation = self._bench.probe(source)
        self.used.keep("probe", name, evaluation)
        compiled = ""
        if evaluation.status is not Status.BUILD_ERROR:
            with contextlib.suppress(UserError), self._aside():
                compiled = self._bench.compiled(source, None).text + "\n"
        return ToolResult(
            f"{told(evaluation, name)}\n{compiled}{self.left()}",
            facts_of(evaluation, name, ""), _plain(evaluation.charged), evaluation.gpu_s,
        )  # fmt: skip

    def _compile(self, arguments: Mapping[str, Any]) -> ToolResult:
        source, case = self._source(arguments), self._case(arguments)
        try:
            with self._aside():
                found = self._bench.compiled(source, case, tuple(arguments.get("knobs", {}).items()))
        except UserError as error:
            raise ToolFailed(str(error)) from None
        for name in ("sass", "ptx"):
            if name in arguments:
                self._workspace.write(arguments[name], getattr(found, name))
        return ToolResult(found.text)

    def _case(self, arguments: Mapping[str, Any]) -> str | None:
        case = arguments.get("case")
        if case is not None and case not in self._cases:
            raise ToolFailed(f"there is no case {case!r}; there are {', '.join(self._cases)}")
        return case

    def _profile(self, arguments: Mapping[str, Any]) -> ToolResult:
        source, case = self._source(arguments), self._case(arguments)
        knobs = self.used.tuned.get(source.sha256, ())
        try:
            with self._counted("profile", self._allowed.profiles):
                text = self._bench.profile(source, case, knobs)
        except UserError as error:
            raise ToolFailed(f"no profile: {error}") from None
        tuned = f"that were tuned for it: {', '.join(f'{name}={value}' for name, value in knobs)}"
        return ToolResult(f"With the knobs {tuned if knobs else 'as they stand in the file'}.\n{text}\n{self.left()}")

    def _submit(self, arguments: Mapping[str, Any]) -> ToolResult:
        strategy = re.sub(r"[\s_]+", "-", arguments["strategy"].strip().lower())
        if not _NAME.match(strategy) or strategy in (STOP.name, OTHER):
            raise ToolFailed("`strategy` must be a short name of small letters, digits and hyphens, such as split-k")
        parents = self._parents(arguments)
        source = self._source(arguments)
        if source.sha256 == self._parent.sha256:
            raise ToolFailed("this is the version that you started from; change it first")
        if source.sha256 in self.used.refused:
            raise ToolFailed(f"this very text was refused already: {self.used.refused[source.sha256]}")
        self._may("submit", self._allowed.submits)
        known = self.used.latest.get(("score", source.sha256))
        if known is None:
            evaluation, first = self._evaluated(source, arguments["idea"])
        else:
            evaluation, first = known[1], ToolResult(told(known[1], known[0]))
        charged = _plain(first.charged)
        try:
            if evaluation.status is Status.INFRA_ERROR:
                raise InfraError(evaluation.reason)
            verdict = GateVerdict(False, f"It is not correct: {evaluation.status}.")
            if evaluation.passed:
                with self._aside():
                    verdict = self._bench.gate(source, evaluation)
        except InfraError as error:  # what the evaluation cost is charged all the same
            text = f"Failed: the machine failed, not your kernel ({error}). Submit again later."
            return ToolResult(text, first.facts, charged, first.gpu_s)
        self.used.counts["submit"] = self.used.counts.get("submit", 0) + 1
        for purpose, count in verdict.charged.items():
            charged[str(purpose)] = charged.get(str(purpose), 0) + count
        facts = {**facts_of(evaluation, first.facts.get("evaluation", known[0] if known else ""), arguments["idea"])}
        facts |= {"strategy": strategy, "gain": verdict.gain.ratio if verdict.gain else None}
        spent = first.gpu_s + verdict.gpu_s
        if not verdict.passed:
            self.used.refused[source.sha256] = verdict.reason
            facts["refused"] = verdict.reason
            return ToolResult(f"Not committed. {verdict.reason}\n{first.text}\n{self.left()}", facts, charged, spent)
        family = arguments.get("family", "algorithm")
        submission = Submission(source.text, source.language, arguments["idea"], strategy, family, parents)
        return ToolResult(f"Committed. {verdict.reason}", facts, charged, spent, submission)

    # ---- within ---------------------------------------------------------------------------------------------------

    def _evaluated(self, source: Source, idea: str) -> tuple[Evaluation, ToolResult]:
        # What an earlier session evaluated keeps its name; the judge knows what is left of it.
        known = self.used.named.get(source.sha256)
        with self._counted("evaluate", self._allowed.evaluations, known) as name:
            evaluation = self._bench.evaluate(source)
        said, facts = told(evaluation, name), facts_of(evaluation, name, idea)
        if evaluation.status is not Status.INFRA_ERROR:  # the machine's failure says nothing about the text
            self.used.keep("score", name, evaluation)
        if evaluation.passed:
            verdict = self._bench.against_best(source, evaluation)
            said += f"\ngate: {WOULD_PASS if verdict.passed else 'would refuse'}. {verdict.reason}"
            facts["gain"] = verdict.gain.ratio if verdict.gain else None
        return evaluation, ToolResult(f"{said}\n{self.left()}", facts, _plain(evaluation.charged), evaluation.gpu_s)

    def _known(self, purpose: str, source: Source) -> ToolResult | None:
        """What was told of this very text before."""
        name, evaluation = self.used.latest.get((purpose, source.sha256), ("", None))
        return ToolResult(f"this very text is known:\n{told(evaluation, name)}") if evaluation is not None else None

    def _source(self, arguments: Mapping[str, Any]) -> Source:
        path = arguments.get("path", KERNEL)
        text = self._workspace.read(path)
        if "def run(" not in text:
            raise ToolFailed(f"{path} has no `def run(...)`; write a whole kernel module there, or name another path")
        return Source(text, self._parent.language)

    def _parents(self, arguments: Mapping[str, Any]) -> tuple[int, ...]:
        numbers = tuple(dict.fromkeys(arguments.get("merged_from", ())))
        for number in numbers:
            try:
                self._lineage.version(number)
            except UserError as error:
                raise ToolFailed(f"merged_from: {error}") from None
        return numbers

    def _may(self, tool: str, limit: int) -> None:
        if self.used.counts.get(tool, 0) >= limit:
            raise ToolFailed(f"the attempt's {limit} calls of {tool} are used up; {self.left()}")

    @contextlib.contextmanager
    def _counted(self, tool: str, limit: int, known: str | None = None) -> Iterator[str]:
        """The judge's turn, with the name of what it makes; what `known` names is not counted again. Not counted
        either: what the machine failed at, and what was turned down. Raises ToolFailed when none is left."""
        before = self.used.counts.get(tool, 0)
        if known is None:
            self._may(tool, limit)
            self.used.counts[tool] = before + 1
        try:
            with self._aside():
                yield known or f"{'P' if tool == 'probe' else 'E'}{self._attempt}.{before + 1}"
        except (InfraError, UserError):
            self.used.counts[tool] = before  # the only one of its kind under way
            raise


def _plain(charged: Mapping[Purpose, int] | Mapping[str, int]) -> dict[str, int]:
    return {str(purpose): count for purpose, count in charged.items()}
