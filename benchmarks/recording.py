"""Recording one more variant in a warm recorder, compile included: median over knob settings never seen before.

One case of each task (its first search case). The target: softmax 0.3 s, matmul 1 s, attention 1.5 s a specialisation.
"""

from __future__ import annotations

import statistics
import time

from evo_kernel.fitness.compiling.compiler import Compiler
from evo_kernel.fitness.record.cases import record_case
from evo_kernel.fitness.record.recorder import Recorder
from evo_kernel.tasks.loading import load
from evo_kernel.types import CaseKind

SETTINGS = {
    "softmax": [(("BLOCK", size), ("NUM_WARPS", warps)) for size in (128, 512, 1024, 2048) for warps in (1, 2, 8)],
    "matmul": [(("BLOCK_M", m), ("BLOCK_N", n)) for m in (16, 64, 128) for n in (16, 64, 128)],
    "attention": [(("BLOCK_M", m), ("BLOCK_N", n)) for m in (16, 64, 128) for n in (16, 64)],
}


def main() -> None:
    compiler = Compiler(90, 120.0)
    recorder = Recorder(compiler, 90, 60.0)
    recorder.start()
    compiler.start()
    print(f"{'task':<12}{'variants':>10}{'median s':>10}{'again s':>10}")
    try:
        for name, settings in SETTINGS.items():
            task = load(name)
            assert task.seed is not None
            case = record_case(task, task.cases_of(CaseKind.SEARCH)[0])
            recorder.record(task.seed, [case], [()])
            fresh, again = [], []
            for times in (fresh, again):
                for setting in settings:
                    began = time.perf_counter()
                    recorder.record(task.seed, [case], [setting])
                    times.append(time.perf_counter() - began)
            print(f"{name:<12}{len(settings):>10}{statistics.median(fresh):>10.3f}{statistics.median(again):>10.3f}")
    finally:
        recorder.close()
        compiler.close()


if __name__ == "__main__":
    main()
