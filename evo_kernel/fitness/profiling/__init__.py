"""Profiles of a plan on demand: bytes, hardware counters, one text table."""
