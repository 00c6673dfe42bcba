"""Replay equals live, whatever happened: sessions, environments, settings, re-measurements, confirmations."""

from __future__ import annotations

import random
import tempfile
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evo_kernel.types import Purpose, Source, Status
from populations.archive import PopulationSettings
from populations.connect import connect_reader
from populations.population import open_population
from populations.reading import PopulationReader
from populations.search_state import Replay
from tests.populations.samples import CARD, MEASURED, MODELED, TASK, failed, passed, propose

ACTS = st.lists(
    st.sampled_from(
        ["pass", "pass", "pass", "wrong", "infra", "fail", "open", "late", "again", "confirm", "refute", "plant"]
    ),
    max_size=40,
)
SESSIONS = st.lists(
    st.tuples(ACTS, st.sampled_from([MODELED, MEASURED]), st.integers(1, 3), st.integers(1, 12)), min_size=1, max_size=3
)


def play(population, acts, rng):
    """Perform acts by name; returns the credits they earned, in order."""
    earned, waiting = [], list(population.pending())
    environment = population.environment

    def tell(recorded, verdict, witnessed=True):
        earned.extend(population.tell(recorded, verdict, witnessed))

    for act in acts:
        if act == "plant" or not population.counters().candidates:
            planted = population.plant(Source(f"# seed {rng.randrange(3)}"))
            tell(planted, passed(planted.proposal.source, rng, environment))
            continue
        if act == "late":
            if waiting:
                one = waiting.pop()
                tell(one, passed(one.proposal.source, rng, environment))
            continue
        if act in ("again", "confirm", "refute"):
            best = population.best()
            if best is not None:
                one = population.recorded(best.candidate)
                verdict = passed(best.source, rng, environment)
                if act == "refute":
                    verdict = failed(best.source, Status.WRONG, environment)
                purpose = Purpose.SCORE if act == "again" else Purpose.CONFIRM
                tell(one, replace(verdict, purpose=purpose))
            continue
        brief = population.ask()
        proposal = propose(brief, rng, text=f"# {rng.randrange(40)}")  # some sources come twice
        if act == "fail":
            population.fail(brief, "mtmc", "nothing applied", proposal)
        elif act != "open":
            recorded = population.record(brief, proposal)
            source = proposal.source
            if act == "pass":
                tell(recorded, passed(source, rng, environment), rng.random() < 0.7)
            elif act == "wrong":
                tell(recorded, failed(source, Status.WRONG, environment))
            else:
                tell(recorded, failed(source, Status.INFRA_ERROR, environment))
                waiting.append(recorded)
    return earned


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SESSIONS, st.integers(0, 10**6))
def test_replay_equals_live(sessions, seed):
    rng = random.Random(seed)
    earned = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.db"

        def open_it(environment, islands, every):
            chosen = PopulationSettings(islands=islands, open_islands_after=6, migrate_every=every, contenders=2)
            return open_population(
                path, task=CARD, task_identity=TASK, environment=environment, seed=seed, settings=chosen
            )

        followed = None
        for acts, environment, islands, every in sessions:
            with open_it(environment, islands, every) as population:
                followed = followed or Replay(connect_reader(path))
                for part in (acts[::2], acts[1::2]):  # whoever follows the file meanwhile has the same state
                    earned.extend(play(population, part, rng))
                    followed.advance()
                    assert followed.state.digest() == population.digest()
                with PopulationReader(path) as reader:
                    if reader.environment == environment:
                        for shown, live in (
                            (reader.best(), population.best()),
                            (reader.champion(), population.champion()),
                        ):
                            assert (shown and shown.candidate) == (live and live.candidate)
                digest, counters = population.digest(), population.counters()
                best = population.best()
                assert list(population.credits()) == earned
            with open_it(environment, islands, every) as population:
                assert population.digest() == digest
                again = population.counters()
                assert replace(again, wall_s=0.0, dollars=0.0) == replace(counters, wall_s=0.0, dollars=0.0)
                assert population.best() == best
                assert list(population.credits()) == earned


def test_the_digest_tells_states_apart(tmp_path):
    rng = random.Random(1)
    with open_population(tmp_path / "p.db", task=CARD, task_identity=TASK, environment=MODELED, seed=1) as population:
        digests = set()
        for act in ["plant", "pass", "wrong", "confirm", "refute", "pass"]:
            play(population, [act], rng)
            digests.add(population.digest())
    assert len(digests) == 6
