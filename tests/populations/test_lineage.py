"""The graph: ancestry, the edits that made a champion, export."""

from __future__ import annotations

import json
import random

import networkx as nx
import pytest

from evo_kernel.errors import PopulationError
from evo_kernel.types import Proposal, Source
from populations import lineage
from populations.population import open_population
from populations.reading import PopulationReader
from tests.populations.samples import CARD, MODELED, STRATEGIES, TASK, search


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


def test_ancestry_agrees_with_networkx(grown):
    population, reader = grown
    brief = population.ask()
    parents = (("parent", brief.parent.candidate), ("donor", 7))
    child = population.record(brief, Proposal(Source("# child"), "crossover", STRATEGIES[0], parents)).candidate
    graph = reader.graph()
    assert lineage.ancestors(reader.connection, child) == sorted(nx.ancestors(graph, child))
    assert 7 in lineage.ancestors(reader.connection, child)
    assert graph.edges[7, child]["role"] == "donor"
    assert nx.is_directed_acyclic_graph(graph)
    only_parents = nx.DiGraph([edge for edge in graph.edges if graph.edges[edge]["role"] == "parent"])
    assert lineage.descendants(reader.connection, 1) == sorted(nx.descendants(only_parents, 1))


@pytest.mark.parametrize("ending", ["graphml", "json", "dot"])
def test_export(grown, tmp_path, ending):
    _, reader = grown
    to = tmp_path / f"lineage.{ending}"
    reader.export_graph(to)
    graph = reader.graph()
    if ending == "graphml":
        back = nx.read_graphml(to, node_type=int)
    elif ending == "json":
        back = nx.node_link_graph(json.loads(to.read_text()), edges="edges")
    else:
        text = to.read_text()
        assert text.count(" -> ") == graph.number_of_edges()
        assert text.count("label=") == graph.number_of_nodes()
        return
    assert (back.adj, back.nodes) == (graph.adj, graph.nodes)


def test_an_unknown_ending_says_which_are_known(grown, tmp_path):
    with pytest.raises(PopulationError, match="graphml"):
        grown[1].export_graph(tmp_path / "lineage.png")


def test_the_best_neighbourhood_is_small_and_holds_the_path(grown):
    population, reader = grown
    best = population.best().candidate
    path = {step.candidate for step in reader.critical_path(best)}
    chosen = lineage.best_neighbourhood(reader.connection, best, siblings=2)
    assert path <= chosen
    assert len(chosen) <= 3 * len(path)
    assert set(reader.graph(chosen)) == chosen


def test_nodes_without_a_verdict_are_listed_too(grown):
    population, reader = grown
    brief = population.ask()
    child = population.record(brief, Proposal(Source('# "quoted"'), "external")).candidate
    node = reader.nodes([child])[0]
    assert (node["status"], node["score"], node["operator"]) == (None, None, "external")
    assert lineage.to_dot(reader.graph([child])).startswith("digraph")
