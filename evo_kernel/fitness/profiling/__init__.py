"""Profiles of a plan's launches: times, bytes, hardware counters, and a text table."""
