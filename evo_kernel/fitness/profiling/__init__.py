"""Profiles of a plan's launches: times, bytes, and a text table."""
