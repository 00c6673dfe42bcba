"""Importers: from a benchmark's checkout that the user names to the texts of ordinary task files.

checkout.py               what importers share: reading, naming a problem, what its kernels may call
kernelbench.py            KernelBench, with shrink_sizes.py: sizes of its check cases
kernelbench_harness.py    KernelBench's own verdict on a solution
tritonbench.py            TritonBench, with tritonbench_solution.py: what a solution is written around
stdout_metric.py          TritonBench's own verdict on a solution
flashinfer.py             FlashInfer-Bench
survey.py                 what becomes of a problem here

What the texts themselves import stays where they look for it, in evo_kernel/tasks: problems.py, calls.py,
interpreted.py and definitions.py. A text decides its task's identity, so these names are for ever.
"""
