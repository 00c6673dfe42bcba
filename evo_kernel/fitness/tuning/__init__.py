"""Tuning: finds knobs, proposes settings, and races them."""
