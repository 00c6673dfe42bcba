"""Examples that tests share: what the rewriter makes of two small seeds."""

import numpy as np

from evo_kernel.tasks.loading import load
from operators.learning.coder.walks import walks

FIRSTS = [(load(name).card(), load(name).seed) for name in ("swiglu", "rotary")]
EXAMPLES = list(walks(FIRSTS, 24, np.random.default_rng(3), strategies=("cache-hints", "drop-masks")))
