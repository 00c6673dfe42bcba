"""Coding agents that are not ours: they work with the workbench over the Model Context Protocol."""
