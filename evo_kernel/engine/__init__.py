"""The loop: ask → propose → record → judge → tell → learn, `width` attempts in flight.

Four kinds of failure have four fates: the kernel's is a Status in its Evaluation; the agent's (OperatorFailed) is
recorded with what it cost, and the search goes on; the machine's (InfraError) is retried, then told as an infra_error
that is never scored and leaves its candidate pending, or, where an operator was at work, fails its attempt, and ends
the run when it keeps happening; ours stops the run and raises, in an operator only when it keeps happening too. With
`width = 1` and a seed a run is deterministic.

loop.py runs the threads, the search and its confirmation; session.py holds what they share and takes in verdicts;
attempts.py makes one attempt; reevaluation.py spends on kernels that are known.
"""

from evo_kernel.engine.loop import Engine, RunSummary
from evo_kernel.engine.session import EngineSettings, Observer, Silence

__all__ = ["Engine", "EngineSettings", "Observer", "RunSummary", "Silence"]
