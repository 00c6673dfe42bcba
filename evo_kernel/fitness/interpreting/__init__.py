"""Executing plans in Triton's interpreter: the confined child and what it shares with the runner."""

TOO_LATE = 75
"""Exit code of a child whose round took longer than its deadline."""
