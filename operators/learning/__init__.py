"""Learning to optimise: trees of stored transitions, and policies and coders trained on them.

Import from the modules; only what trains or scores a network needs torch. docs/guides/learning.md explains the whole.
"""

from __future__ import annotations

from pathlib import Path

TREE = Path(__file__).with_name("data") / "transitions-h200.gz"
"""Made by `train collect`; its command is in its first line; docs/guides/learning.md says more."""
POLICY = TREE.with_name("policy-h200.pt")
"""Made by `train policy --seconds 600` on TREE; held-out tasks were not looked at."""
