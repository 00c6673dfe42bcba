"""A child process: execute the examples of the knowledge notes without a GPU and hold them against torch.

    python -P run_notes.py FOLDER     (FOLDER holds one KERNEL.py an example)

Prints a JSON object: kernel → largest error relative to the largest element, or the reason why there is none.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch

from evo_kernel.fitness.ir.jit import install

HALF = torch.float16


def shrink_rows(kernel):
    x, limit = torch.randn(3, 100).bfloat16(), torch.rand(3, 100).bfloat16()
    y = torch.empty_like(x)
    kernel[(3,)](x, limit, y, 100, 100, BLOCK=128)
    return y, x.float().sign() * (x.float().abs() - limit.float()).clamp(min=0)


def grouped_sums(kernel):
    x, y = torch.randn(150), torch.randn(70)
    z = torch.full((150, 70), float("nan"))
    kernel[(5 * 3,)](x, y, z, 150, 70, TILE=32, GROUP=4)
    return z, x[:, None] + y[None, :]


def saxpy_forever(kernel):
    x, y = torch.randn(1000), torch.randn(1000)
    expected = y + 0.5 * x
    kernel[(3,)](x, y, 0.5, 1000, BLOCK=64)
    return y, expected


def column_energy(kernel):
    x, y = torch.randn(37, 64), torch.empty(64)
    kernel[(2,)](x, y, 37, 64, ROWS=16, COLUMNS=32)
    return y, (x * x).sum(0)


def mirror_tiles(kernel):
    x = torch.randn(48, 80, dtype=HALF)
    y = torch.full((80, 48), float("nan"), dtype=HALF)
    kernel[(2, 3)](x, y, 48, 80, TILE=32)
    return y, x.T


def boltzmann_mean(kernel):
    x, y = 30 * torch.randn(4, 150), torch.empty(4)
    kernel[(4,)](x, y, 150, 150, BLOCK=64)
    return y, (x.double().softmax(1) * x.double()).sum(1)


def merged_variance(kernel):
    x, y = 1000 + torch.randn(4, 150), torch.empty(4)
    kernel[(4,)](x, y, 150, 150, BLOCK=64)
    return y, x.double().var(1, unbiased=False)


def row_midrange(kernel):
    x, y = (5 + torch.randn(4, 150)).bfloat16(), torch.empty(4)
    kernel[(4,)](x, y, 150, 150, BLOCK=64)
    return y, (x.float().amin(1) + x.float().amax(1)) / 2


def tile_contrast(kernel):
    a, b, c = torch.randn(2, 16, 32, dtype=HALF), torch.randn(32, 16, dtype=HALF), torch.randn(32, 16, dtype=HALF)
    y = torch.empty(2, 16, 16, dtype=HALF)
    kernel[(2,)](a, b, c, y, TM=16, TN=16, TK=32)
    return y, (a.double() @ b.double()) ** 2 - (a.double() @ c.double()) ** 2


def stacked_gram(kernel):
    x, y = torch.randn(2, 3, 32, 16, dtype=HALF), torch.empty(2, 32, 32, dtype=torch.bfloat16)
    kernel[(2,)](x, y, 3, TALL=32, WIDE=16)
    return y, (x.double() @ x.double().mT).sum(1)


CHECKS = [
    shrink_rows, grouped_sums, saxpy_forever, column_energy, mirror_tiles, boltzmann_mean, merged_variance, row_midrange,
    tile_contrast, stacked_gram,
]  # fmt: skip


def error(folder, check):
    name = check.__name__
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.manual_seed(0)
    found, expected = (tensor.double() for tensor in check(getattr(module, name)))
    return float(((found - expected).abs().max() / expected.abs().max()).nan_to_num(float("inf")))


def main(folder):
    torch.set_num_threads(1)
    install()
    answers = {}
    for check in CHECKS:
        try:
            answers[check.__name__] = error(folder, check)
        except Exception as reason:  # noqa: BLE001  whatever it raises is the answer
            answers[check.__name__] = f"{type(reason).__name__}: {reason}"
    print(json.dumps(answers))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
