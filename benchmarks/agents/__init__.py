"""Agents held against measured kernels: what a language model chooses, and what it writes."""
