"""The values that travel between packages, all frozen, and the protocols that packages implement for each other.

Standard library only. Values are safe to hand between threads. Times are in microseconds (`_us`) for kernels and in
seconds (`_s`) for everything else; sizes are in bytes. Import these names from here:
"""

from evo_kernel.types.attempts import (
    Brief,
    Call,
    Credit,
    Decision,
    Proposal,
    Recorded,
    ScoredCandidate,
    Step,
    Strategy,
    Tried,
)
from evo_kernel.types.comparisons import CLAIM_WORTH, NOTICEABLE, SAME, Gain, PairedComparison, Rival
from evo_kernel.types.evaluations import (
    CheckResult,
    Compared,
    Environment,
    Evaluation,
    Measurement,
    PlanVerdict,
    Purpose,
    Status,
    escaped,
)
from evo_kernel.types.kernels import KernelFeatures, Knobs, PlanFeatures, Source, content_hash
from evo_kernel.types.notes import PipelineState
from evo_kernel.types.protocols import Judge, Operator, Population, Probe, Resumes
from evo_kernel.types.tasks import CaseCard, CaseKind, TaskCard
