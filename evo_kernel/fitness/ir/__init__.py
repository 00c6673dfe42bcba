"""Executes Triton IR on the CPU: all programs of a launch at once, with every memory access checked."""
