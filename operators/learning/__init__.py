"""Learning to optimise: trees of stored transitions, and policies and coders trained on them.

Import from the modules; only what trains or scores a network needs torch. docs/guides/learning.md explains the whole.
"""
