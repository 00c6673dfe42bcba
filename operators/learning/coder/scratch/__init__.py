"""A coder from nothing: a small transformer over a vocabulary of its own, trained and run with torch alone.

vocabulary.py   byte pairs learnt from the examples, and one token for each line number
names.py        what a source calls its own things, as numbered slots
network.py      the transformer, with a cache for sampling
prompts.py      an example as tokens
sampling.py     many completions at once
training.py     what both stages share: optimiser, checkpoints, progress
sft.py          supervised training
grpo.py         group-relative policy optimisation, with the judge's rewards
coder.py        a trained checkpoint as a coder, and as a model at the door
"""
