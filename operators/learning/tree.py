"""The tree of transitions: kernels that were judged, and what each action of theirs led to.

    tree = Tree.load(path)
    for root in tree.roots("train"):
        for key, edge in tree.edges(root.id).items(): ...

A *problem* is a built-in task with all its search cases, or narrowed to one of them (`softmax@m4096-n1024`). A state is
one source of one problem with its tuned knobs written in; the same text reached twice is one state, so strictly the
tree is a graph without a direction of time: gains along any path add up to the difference of `log_us` of its ends.

The file is gzipped JSON lines: a header with the version, environments, problems, texts (once each, by hash),
strategies (once each), states and edges. The same tree gives the same bytes.

A tree is split by whole families: kernels of one family are so alike (layernorm and rmsnorm, attention and its causal
form) that a policy which saw one has all but seen the other. Held out are the losses and the elementwise tasks. What
the rewriter offers on them also occurs in training, so that a policy *can* know it, on kernels that are not like them;
their kernels compile fast, so that live comparisons are cheap; and what pays differs (rows of 128,256 logits that no
register file holds, tasks that are bound by memory alone), so that always doing the same does not.

Verdicts are compact JSON: all that a policy, a prompt or a witness reads. Numbers keep six digits. Not kept:
temperatures, clocks and the like, checks (what fails says why in `reason`), and verdicts of the plans that tuning
passed by.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from evo_kernel.errors import UserError
from evo_kernel.types import (
    Environment,
    Evaluation,
    KernelFeatures,
    Measurement,
    PlanFeatures,
    Purpose,
    ScoredCandidate,
    Source,
    Status,
    Strategy,
    TaskCard,
)
from evo_kernel.types.inflating import GZIP, inflated
from operators.macro.features import MacroState

Row = dict[str, Any]
DIGITS = 6


def short(value: Any) -> Any:
    """The same with DIGITS significant digits of each float, mappings and sequences as JSON has them."""
    if isinstance(value, Mapping):
        return {str(name): short(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [short(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return value


def evaluation_data(found: Evaluation) -> Row:
    """Without its environment: `found.environment.key` says which it was."""
    return {
        "source": found.source, "task": found.task, "environment": found.environment.key,
        "status": str(found.status), "reason": found.reason[:500], "score": found.score, "knobs": found.knobs,
        "measurements": [
            {
                "case": one.case, "plan": one.plan[:16], "us": [one.median_us, one.iqr_us, one.low_us, one.high_us],
                "n": one.n, "baselines": one.baselines_us, "light": one.light_share,
                "features": None if one.features is None else asdict(one.features),
            } for one in found.measurements
        ],
    }  # fmt: skip


def evaluation_of(data: Mapping[str, Any], environments: Mapping[str, Environment]) -> Evaluation:
    """Raises KeyError, TypeError or ValueError where the data is not what `evaluation_data` makes."""
    return Evaluation(
        data["source"], data["task"], Purpose.SCORE, environments[data["environment"]], Status(data["status"]),
        data["reason"], data["score"], tuple((str(name), int(value)) for name, value in data["knobs"]),
        measurements=tuple(_measurement_of(one) for one in data["measurements"]),
    )  # fmt: skip


def strategy_data(strategy: Strategy) -> list[Any]:
    return [strategy.name, strategy.family, strategy.region, [list(pair) for pair in strategy.parameters]]


def strategy_of(data: Sequence[Any]) -> Strategy:
    name, family, region, parameters = data
    return Strategy(name, family, region, tuple((key, value) for key, value in parameters))


def _measurement_of(data: Mapping[str, Any]) -> Measurement:
    median_us, iqr_us, low_us, high_us = data["us"]
    features = data["features"]
    if features is not None:
        kernels = tuple(KernelFeatures(**{**one, "grid": tuple(one["grid"])}) for one in features["kernels"])
        features = PlanFeatures(**{**features, "kernels": kernels})
    return Measurement(
        data["case"], data["plan"], median_us, iqr_us, data["n"], low_us, high_us, data["baselines"], data["light"],
        features,
    )  # fmt: skip


FORMAT, VERSION = "evo-kernel transitions", 1
HORIZON = 8  # steps of an episode at most, as in MTMC's search

Split = Literal["train", "held-out"]


@dataclass(frozen=True)
class TreeProblem:
    """What the kernels of some states compute. `name`: task, or task@case where it is narrowed to one search case."""

    name: str
    task: str
    family: str
    split: Split
    card: TaskCard = field(repr=False)


@dataclass(frozen=True)
class TreeState:
    """A judged, correct kernel. `task` is the problem's name; `depth`: actions from the root on the way it was found.

    `log_us`: mean over search cases of the natural logarithm of µs.
    """

    id: str
    task: str
    family: str
    split: Split
    text: str = field(repr=False)
    evidence: Evaluation = field(repr=False)
    log_us: float
    depth: int
    offers: tuple[Strategy, ...] = field(repr=False)
    path: tuple[Strategy, ...] = field(default=(), repr=False)  # from the root, as it was found first


@dataclass(frozen=True)
class Edge:
    """What came of one action of one state. `log_gain`: parent's log_us - child's, both tuned; 0.0 without a child.

    `status`: None where the coder could not carry the strategy out; `child`: None unless it passed.
    """

    parent: str
    strategy: str  # key
    status: Status | None
    witnessed: bool
    child: str | None
    log_gain: float


@dataclass(frozen=True)
class Tree:
    """States by id, and edges by parent and strategy key.

    What the judge did to make it: `plans`, distinct launch plans executed, each on one case; `settings`, of the knobs
    of distinct sources, executed; `candidates`, distinct sources. `command`: what it was made with.
    """

    problems: Mapping[str, TreeProblem]
    states: Mapping[str, TreeState]
    transitions: Mapping[str, Mapping[str, Edge]] = field(repr=False)
    environments: Mapping[str, Environment] = field(default_factory=dict, repr=False)
    plans: int = 0
    command: str = ""
    settings: int = 0
    candidates: int = 0
    _best: dict[tuple[str, int], float] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def load(path: str | Path) -> Tree:
        """Raises UserError where the file is missing, torn, of another format or of a newer version."""
        path = Path(path)
        try:
            lines = inflated(path.read_bytes(), GZIP).decode().splitlines()
            rows = [json.loads(line) for line in lines]
            head = rows[0]
            if head["format"] != FORMAT:
                raise ValueError(f"its format is {head['format']!r}")
            if head["version"] > VERSION:
                raise UserError(f"{path} has version {head['version']}; this evo-kernel reads {VERSION}: update it.")
            return _tree_of(head, rows[1:])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise UserError(
                f"{path} is no tree of transitions ({type(error).__name__}: {error}). Make one with "
                "`evo-kernel train collect`."
            ) from None
        except OSError as error:
            raise UserError(f"{path}: the tree cannot be read: {error.strerror or error}.") from None

    def save(self, path: str | Path) -> int:
        """Writes it; returns its size in bytes."""
        text = "".join(json.dumps(short(row), separators=(",", ":")) + "\n" for row in _rows(self))
        data = gzip.compress(text.encode(), 9, mtime=0)
        Path(path).write_bytes(data)
        return len(data)

    def roots(self, split: Split | None = None) -> tuple[TreeState, ...]:
        """The first kernels (roots), one a problem, sorted by problem."""
        found = [one for one in self.states.values() if one.depth == 0 and split in (None, one.split)]
        return tuple(sorted(found, key=lambda one: one.task))

    def edges(self, state_id: str) -> Mapping[str, Edge]:
        """What was tried on a state, by strategy key; empty where nothing was."""
        return self.transitions.get(state_id, {})

    def offered(self, state_id: str) -> tuple[Strategy, ...]:
        """The offers of a state whose outcome is known, in the coder's order."""
        known = self.edges(state_id)
        return tuple(one for one in self.states[state_id].offers if one.key in known)

    def best_gain(self, state_id: str, steps: int = HORIZON) -> float:
        """The largest log gain over this state that at most so many known steps reach; 0.0 is staying."""
        if steps <= 0:
            return 0.0
        key = (state_id, steps)
        if key not in self._best:
            here = self.states[state_id].log_us
            found = 0.0
            for edge in self.edges(state_id).values():
                if edge.child is not None and edge.child != state_id:
                    gain = here - self.states[edge.child].log_us
                    found = max(found, gain + self.best_gain(edge.child, steps - 1))
            self._best[key] = found
        return self._best[key]

    def macro_state(self, state_id: str, taken: Sequence[Strategy] | None = None) -> MacroState:
        """What a policy decides on. `taken`: strategies from the root; None: those by which it was found first."""
        state = self.states[state_id]
        path = state.path if taken is None else tuple(taken)
        source = Source(state.text)
        relative = ScoredCandidate(0, source, len(path), 0, state.evidence, path)
        return MacroState(self.problems[state.task].card, relative, source)

    def only(self, wanted: Callable[[TreeProblem], bool]) -> Tree:
        """The part of some problems."""
        problems = {name: one for name, one in self.problems.items() if wanted(one)}
        states = {name: one for name, one in self.states.items() if one.task in problems}
        transitions = {name: edges for name, edges in self.transitions.items() if name in states}
        return replace(self, problems=problems, states=states, transitions=transitions, _best={})


def state_id(problem: str, text: str) -> str:
    return hashlib.sha256(f"{problem}\0{text}".encode()).hexdigest()[:16]


# -- the file --------------------------------------------------------------------------------------------------------


def _rows(tree: Tree) -> Iterable[Row]:
    counts = {name: getattr(tree, name) for name in ("plans", "settings", "candidates", "command")}
    yield {"format": FORMAT, "version": VERSION, **counts}
    for key, environment in sorted(tree.environments.items()):
        yield {"kind": "environment", "key": key, "environment": asdict(environment)}
    for name, problem in sorted(tree.problems.items()):
        yield {
            "kind": "problem", "name": name, "task": problem.task, "family": problem.family, "split": problem.split,
            "card": asdict(problem.card),
        }  # fmt: skip
    states = sorted(tree.states.values(), key=lambda one: (one.task, one.depth, one.id))
    texts = {text: number for number, text in enumerate(dict.fromkeys(one.text for one in states))}
    yield from ({"kind": "text", "text": text} for text in texts)
    every = dict.fromkeys(s for one in states for s in (*one.offers, *one.path))
    strategies = {one: number for number, one in enumerate(every)}
    yield from ({"kind": "strategy", "strategy": strategy_data(one)} for one in strategies)
    for one in states:
        yield {
            "kind": "state", "id": one.id, "task": one.task, "text": texts[one.text],
            "log_us": one.log_us, "depth": one.depth, "offers": [strategies[s] for s in one.offers],
            "path": [strategies[s] for s in one.path], "evidence": evaluation_data(one.evidence),
        }  # fmt: skip
    for one in states:
        for key, edge in sorted(tree.edges(one.id).items()):
            yield {
                "kind": "edge", "parent": edge.parent, "key": key, "child": edge.child, "gain": edge.log_gain,
                "status": None if edge.status is None else str(edge.status), "witnessed": edge.witnessed,
            }  # fmt: skip


def _tree_of(head: Mapping[str, Any], rows: Iterable[Row]) -> Tree:
    environments: dict[str, Environment] = {}
    problems: dict[str, TreeProblem] = {}
    states: dict[str, TreeState] = {}
    transitions: dict[str, dict[str, Edge]] = {}
    texts: list[str] = []
    strategies: list[Strategy] = []
    for row in rows:
        match row["kind"]:
            case "environment":
                environments[row["key"]] = Environment(**row["environment"])
            case "problem":
                told = (row["name"], row["task"], row["family"], row["split"])
                problems[row["name"]] = TreeProblem(*told, TaskCard.from_data(row["card"]))
            case "text":
                texts.append(row["text"])
            case "strategy":
                strategies.append(strategy_of(row["strategy"]))
            case "state":
                problem = problems[row["task"]]
                states[row["id"]] = TreeState(
                    row["id"], problem.name, problem.family, problem.split, texts[row["text"]],
                    evaluation_of(row["evidence"], environments), row["log_us"], row["depth"],
                    tuple(strategies[at] for at in row["offers"]), tuple(strategies[at] for at in row["path"]),
                )  # fmt: skip
            case "edge":
                status = None if row["status"] is None else Status(row["status"])
                edge = Edge(row["parent"], row["key"], status, row["witnessed"], row["child"], row["gain"])
                transitions.setdefault(edge.parent, {})[edge.strategy] = edge
            case kind:
                raise ValueError(f"it has a row of kind {kind!r}")
    counts = int(head["settings"]), int(head["candidates"])
    return Tree(problems, states, transitions, environments, int(head["plans"]), str(head["command"]), *counts)


FAMILIES: Mapping[str, tuple[str, ...]] = {
    "row": (
        "softmax", "layernorm", "rmsnorm", "add_rmsnorm", "layernorm_backward", "rmsnorm_backward", "qk_norm",
        "router_softmax",
    ),
    "loss": ("cross_entropy", "cross_entropy_backward"),
    "elementwise": ("swiglu", "rotary"),
    "contraction": ("matmul", "linear_gelu", "fp8_matmul", "int4_matmul", "grouped_matmul"),
    "attention": (
        "attention", "attention_causal", "attention_full", "attention_backward", "gqa", "decode_attention",
        "shared_prompt", "shared_prompt_backward",
    ),
    "convolution": ("conv2d", "conv2d_bf16", "conv2d_channels_last", "conv2d_tf32"),
}  # fmt: skip
HELD_OUT = ("loss", "elementwise")
INVENTED = "invented"  # tasks of no use but as lessons (learning/coder/walks.py); nobody can load them again


def family_of(task: str) -> str:
    """The family of a built-in task; a task of one's own is a family by itself."""
    if task.startswith(f"{INVENTED}_"):
        return INVENTED
    return next((family for family, tasks in FAMILIES.items() if task in tasks), task)


def split_of(family: str, held_out: tuple[str, ...] = HELD_OUT) -> Split:
    return "held-out" if family in held_out else "train"
