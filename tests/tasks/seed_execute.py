"""A child process: execute seeds without a GPU, for as long as it is asked (tests/tasks/children.py).

Each line of its input is JSON, {"seed": path, "inputs": path, "outputs": path}. The file of inputs holds a list of
(knobs, input tuple) (torch.save); that of outputs becomes the list of their output tuples. Knobs are set by name, as the
tuner does, and stay until others are.
"""

import importlib.util

import torch

from evo_kernel.fitness.ir.jit import install
from tests.tasks.children import answer


def execute(seed, inputs, outputs):
    spec = importlib.util.spec_from_file_location("seed", seed)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    results = []
    for knobs, values in torch.load(inputs):
        for name, value in knobs.items():
            assert hasattr(module, name), f"{seed} has no {name}"
            setattr(module, name, value)
        results.append(module.run(*values))
    torch.save([(result,) if isinstance(result, torch.Tensor) else tuple(result) for result in results], outputs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    install()
    answer(execute)
