"""Knob settings of a source: found, proposed, raced."""
