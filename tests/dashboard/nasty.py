"""A population whose every free text is an attack, and what must never come of it."""

from __future__ import annotations

import random
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from evo_kernel.types import Call, Environment, Proposal, Source, Step, Strategy
from operators.llm.transcript import pack
from populations.population import LineagePopulation, open_population
from tests.populations.samples import CARD, MODELED, TASK, failed, passed, search

MARK = "h0stile"
SCRIPT = f"</code></pre></script><script>{MARK}()</script><img src=x onerror={MARK}()>"
ATTRIBUTE = f'" \' onmouseover={MARK}() x="{{{{7*7}}}}{{% raw %}}'
TURNED = "\u202e\u2066\u200b\u0007\x1b[31m"
NASTY = SCRIPT + ATTRIBUTE + TURNED
SOURCE = f"# {NASTY}\n'''{NASTY}'''\n" + "x" * 2_000_000 + f"\n{SCRIPT}\ndef run(x): ...\n"


def hostile(path: Path, environment: Environment = MODELED, seed: int = 5, attempts: int = 30) -> int:
    """Writes the population; the candidate with the worst source, which is its best."""
    rng = random.Random(seed)
    card = replace(CARD, name=f"softmax{NASTY}", reference=SOURCE, description=NASTY)
    with open_population(path, task=card, task_identity=TASK, environment=environment, seed=seed) as population:
        search(population, attempts, rng)
        _one(population, rng, 0.6, turns=False)
        number = _one(population, rng, 0.5, turns=True)
        brief = population.ask()
        population.fail(brief, f"mtmc{NASTY}", NASTY, Proposal(Source(""), f"mtmc{NASTY}"))
        brief = population.ask()
        recorded = population.record(brief, Proposal(Source(SOURCE + "# again"), "mtmc"))
        verdict = failed(recorded.proposal.source, environment=environment)
        population.tell(recorded, replace(verdict, reason=NASTY))
        population.event(f"kind{NASTY}", {NASTY: NASTY})
        population.diary.add(NASTY, f"author{NASTY}", None, [])
    return number


def _one(population: LineagePopulation, rng: random.Random, log_us: float, turns: bool) -> int:
    """A fast one, whose operator, strategy, steps and conversation are hostile too."""
    brief = population.ask()
    said = {"messages": [{"role": f"user{NASTY}", "content": NASTY}, {"role": "system", "content": [{"text": NASTY}]}]}
    reply = {"message": {"role": "assistant", "content": NASTY, "tool_calls": [{"name": NASTY, "arguments": NASTY}]}}
    calls = (Call(f"model{NASTY}", 10, 5, 0, 0.5, 1.0, "", pack(said, reply)), Call("m", messages="[{" + NASTY))
    strategy = Strategy(f"name{NASTY}", "tiling", NASTY, ((NASTY, NASTY),))
    step = Step(NASTY, NASTY, NASTY)
    proposal = Proposal(Source(SOURCE + f"# {log_us}\n"), f"mtmc{NASTY}", strategy, steps=(step,), calls=calls)
    recorded = population.record(brief, proposal)
    verdict = replace(
        passed(proposal.source, rng, population.environment, log_us=log_us), knobs=()
    )  # it does not parse
    population.tell(recorded, verdict, True)
    if not turns:
        return recorded.candidate
    population.diary.append(brief.attempt, "opening", said)
    population.diary.append(brief.attempt, "answer", reply)
    population.diary.append(brief.attempt, NASTY, {"outcome": {"text": NASTY}, "tool": NASTY, "arguments": NASTY})
    population.diary.append(brief.attempt, "odd", {"message": "no dictionary", "messages": 3})
    return recorded.candidate


class Inspector(HTMLParser):
    """What of a page could run, load or lead elsewhere."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.problems: list[str] = []
        self.links: set[str] = set()
        self.text: list[str] = []
        self._script = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script = tag == "script"
        if tag in ("img", "iframe", "object", "embed", "style", "base", "template"):
            self.problems.append(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on") or name in ("style", "srcdoc", "formaction"):
                self.problems.append(f"{tag} {name}={value}")
            if name in ("href", "src", "action", "data-from"):
                self.links.add(value or "")
                if not (value or "").startswith(("/", "#", "?")) or (value or "").startswith("//"):
                    self.problems.append(f"{tag} {name}={value}")
            if tag == "script" and name == "src" and not (value or "").startswith("/static/"):
                self.problems.append(f"script from {value}")
        if tag == "script" and "src" not in dict(attrs):
            self.problems.append("a script in the page")

    def handle_data(self, data: str) -> None:
        if self._script and data.strip():
            self.problems.append(f"script: {data[:80]}")
        self.text.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._script = False
