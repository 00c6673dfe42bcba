"""A coder from nothing: a small transformer over a vocabulary of its own, trained and run with torch alone.

vocabulary.py   byte pairs learnt from the examples, one token for each line number, numbered slots for names
network.py      the transformer, and many completions at once
training.py     examples as tokens, optimiser, checkpoints, supervised training
grpo.py         group-relative policy optimisation, with the judge's rewards
coder.py        a trained checkpoint as a coder, and as a model at the door
"""
