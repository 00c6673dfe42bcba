"""Agents that are not ours: the workbench in a folder, for any program that can run commands."""
