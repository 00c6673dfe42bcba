"""Timing: estimates from samples, pairs, baselines, ceilings, confirmation."""
