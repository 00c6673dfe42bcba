"""The words of the house as frozen values, and the protocols at its seams. Standard library only.

Every value here is immutable and safe to hand between threads. Times are microseconds (`_us`) for kernels and
seconds (`_s`) for everything else; sizes are bytes. Import from here, whichever file a word is in:

    tasks         a task and its cases, as agents see them
    kernels       a source, a setting of its knobs, and what its plan is made of
    evaluations   the judge's verdict: status, checks, measurements, and the environment that they hold in
    comparisons   a candidate and a rival side by side: what a confirmation goes by
    attempts      from a brief to a proposal and its credit, and who decided what on the way
    progress      what a run is doing now
    promotion     what a kernel must show to be committed by an agent, and to become champion
    notes         what agents are shown of a population, and what they leave in it
    seams         what rooms are to each other: Operator, Judge, Population, TurnStore
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
from evo_kernel.types.evaluations import CheckResult, Environment, Evaluation, Measurement, PlanVerdict, Purpose, Status
from evo_kernel.types.kernels import KernelFeatures, Knobs, PlanFeatures, Source, content_hash
from evo_kernel.types.progress import PipelineState
from evo_kernel.types.protocols import Judge, Operator, Population, Probe, Resumes
from evo_kernel.types.tasks import CaseCard, CaseKind, TaskCard

__all__ = [
    "CLAIM_WORTH",
    "NOTICEABLE",
    "SAME",
    "Brief",
    "Call",
    "CaseCard",
    "CaseKind",
    "CheckResult",
    "Credit",
    "Decision",
    "Environment",
    "Evaluation",
    "Gain",
    "Judge",
    "KernelFeatures",
    "Knobs",
    "Measurement",
    "Operator",
    "PairedComparison",
    "PipelineState",
    "PlanFeatures",
    "PlanVerdict",
    "Population",
    "Probe",
    "Proposal",
    "Purpose",
    "Recorded",
    "Resumes",
    "Rival",
    "ScoredCandidate",
    "Source",
    "Status",
    "Step",
    "Strategy",
    "TaskCard",
    "Tried",
    "content_hash",
]
