"""First kernels by torch.compile's back end: what Inductor generates for a reference, cleaned into a module of ours.

inductor.py   reference's graph → the text that Inductor generates for an H200; nothing is compiled, no GPU is needed
stand_in.py   what Inductor asks of the GPU while it writes, answered
reading.py    that text, read: its kernels without what they say for nothing, and the steps of its host code
kernels.py    its kernels in Triton's own words, with knobs, a grid, and functions that they call
settings.py   where the search for their knobs starts, by Inductor's heuristics
module.py     its host code in PyTorch's own words; `compiled_function`: as few branches as serve all cases
child.py      the process that does this for a task: the reference is the user's code, and Inductor is large
"""
