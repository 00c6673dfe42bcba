"""Measured times of many plans beside all that the time model reads of them, and the model's constants fitted to them.

samples.py     one plan's row, and the files they are kept in
collect.py     distinct plans of a task, recorded, measured and sampled
figures.py     how well modeled times rank what was measured
fit.py         the constants
h200.jsonl.xz  what `python -m benchmarks.calibrate collect` found on an H200
"""
