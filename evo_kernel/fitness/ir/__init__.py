"""Executor of Triton IR on the CPU: runs many programs of a launch at once and checks every memory access."""
