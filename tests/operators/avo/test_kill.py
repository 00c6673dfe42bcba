"""A process that is killed in the middle of conversations: they go on from their last stored turns, and all is paid."""

from __future__ import annotations

from tests.support.agent_kills import kill_often
from tests.support.agent_run import search

KILLS = 5  # benchmarks/agent_kill.py does it fifty times


def test_conversations_survive_kills(tmp_path):
    found = kill_often(tmp_path, KILLS)
    assert not found.faults
    assert found.kills == KILLS and found.in_conversation >= KILLS - 1 and found.resumed >= KILLS - 1
    assert found.counted[0] > 20 and found.counted[1] > 20


def test_an_agent_commits_through_the_real_gate(tmp_path):
    counters = search(tmp_path / "agents.db", tmp_path / "log.txt", 0.0, 60)
    assert counters.best_score > 1.0 and counters.candidates > 2 and counters.failures
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert counters.charged == sum(line != "call" for line in lines), "each evaluation is counted once"
    assert counters.calls == lines.count("call")
