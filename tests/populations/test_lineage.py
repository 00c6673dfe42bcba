"""The graph, the edits that made a champion, export."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import networkx as nx
import pytest

from evo_kernel.errors import PopulationError
from evo_kernel.types import Proposal, Source
from populations.population import open_population
from populations.reading import PopulationReader
from tests.populations.samples import CARD, MODELED, STRATEGIES, TASK, passed, search


@pytest.fixture
def grown(tmp_path):
    """A population of some eighty candidates, and a reader of it."""
    path = tmp_path / "p.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1) as population:
        search(population, 90, random.Random(1))
        with PopulationReader(path) as reader:
            yield population, reader


def test_the_critical_path_tells_which_edits_made_the_best(grown):
    population, reader = grown
    best = population.best()
    path = reader.critical_path(best.candidate)
    assert path[0].operator == "seed"
    assert path[-1].candidate == best.candidate
    assert tuple(step.strategy for step in path[1:]) == best.strategies
    root = population.relative(path[0].candidate).evaluation
    assert sum(step.log_gain for step in path[1:]) == pytest.approx(root.log_us - best.evaluation.log_us)
    with pytest.raises(PopulationError, match="no candidate 9999"):
        reader.critical_path(9999)


def test_tuning_of_the_first_kernel_is_a_step_of_the_path(tmp_path):
    """As it came 80 µs, tuned 50 µs, its child 40 µs; 100 µs are the denominator."""
    rng, path = random.Random(2), tmp_path / "p.db"
    with open_population(path, task=CARD, task_identity=TASK, environment=MODELED, seed=1) as population:
        seed = population.plant(Source("BLOCK = 64\ndef run(x): ..."), "compiled")
        for us, knobs in ((80.0, ()), (50.0, (("BLOCK", 1024),))):
            population.tell(seed, replace(passed(seed.proposal.source, rng, log_us=math.log(us)), knobs=knobs))
        child = Source("BLOCK = 1024\ndef run(x): return x")
        recorded = population.record(population.ask(), Proposal(child, "mtmc", STRATEGIES[0]))
        population.tell(recorded, passed(child, rng, log_us=math.log(40.0)))
        with PopulationReader(path) as reader:
            steps = reader.critical_path(recorded.candidate)
            texts, numbers = reader.path_texts(steps), reader.path_candidates(recorded.candidate)
    told = [(step.candidate, step.action, step.tuning) for step in steps]
    assert told == [(1, "compiled", False), (1, "tuning of its knobs", True), (2, STRATEGIES[0].key, False)]
    assert [step.score for step in steps] == pytest.approx([100 / 80, 2.0, 2.5])
    assert [math.exp(step.log_gain) for step in steps[1:]] == pytest.approx([80 / 50, 50 / 40])
    assert texts == ["BLOCK = 64\ndef run(x): ...", "BLOCK = 1024\ndef run(x): ...", child.text]
    assert numbers == [1, 2]


def test_the_graph_answers_what_is_asked_of_a_lineage(grown):
    population, reader = grown
    brief = population.ask()
    parents = (("parent", brief.parent.candidate), ("donor", 7))
    child = population.record(brief, Proposal(Source("# child"), "crossover", STRATEGIES[0], parents)).candidate
    graph = reader.graph()
    assert nx.is_directed_acyclic_graph(graph)
    assert graph.edges[7, child]["role"] == "donor"
    main = [step.candidate for step in reader.critical_path(child)]
    seventh = [step.candidate for step in reader.critical_path(7)]
    assert nx.ancestors(graph, child) == {*main[:-1], *seventh}
    assert nx.descendants(graph, 1) == set(range(2, child + 1))
    assert all(nx.has_path(graph, one, child) for one in main)
    assert nx.immediate_dominators(graph, 1)[child] == max(set(main[:-1]) & set(seventh))


def test_export(grown, tmp_path):
    population, reader = grown
    population.record(population.ask(), Proposal(Source("# \n"), "of \x1b others"))
    to = tmp_path / "lineage.graphml"
    reader.export_graph(to)
    back, graph = nx.read_graphml(to, node_type=int), reader.graph()
    assert (back.adj, back.nodes) == (graph.adj, graph.nodes)


def test_an_unknown_ending_says_which_are_known(grown, tmp_path):
    with pytest.raises(PopulationError, match="graphml"):
        grown[1].export_graph(tmp_path / "lineage.png")


def test_nodes_without_a_verdict_are_listed_too(grown):
    population, reader = grown
    brief = population.ask()
    child = population.record(brief, Proposal(Source('# "quoted"'), "external")).candidate
    node = reader.nodes()[child - 1]
    assert (node["status"], node["score"], node["operator"]) == (None, None, "external")
