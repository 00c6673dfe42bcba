"""A child process: compiles the examples of guides for sm_90, or executes them without a GPU.

    python guides_child.py compile|execute FOLDER

FOLDER holds one .py file an example; its first line is `# inputs: DTYPE SHAPE, ...`. Prints one JSON object, example ->
reason ("" when all is well). Executed with small inputs of awkward sizes against a reference written here, in fp32
where the example contracts.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"

import torch
import triton

from evo_kernel.fitness.ir.jit import install
from evo_kernel.fitness.ir.reductions import tf32
from tests.operators.grid_child import described, load

F32, F16 = torch.float32, torch.float16


def shapes(text):
    for item in text.split("\n")[0].removeprefix("# inputs:").split(","):
        dtype, shape = item.split()
        yield getattr(torch, dtype), tuple(int(extent) for extent in shape.split("x"))


def compiled(path):
    from torch._subclasses.fake_tensor import FakeTensorMode
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    built = []

    def launch(kernel, *args, grid, warmup, num_warps=4, num_stages=3, **named):
        source = ASTSource(kernel, *described(kernel, args, named))
        options = {"num_warps": num_warps, "num_stages": num_stages}
        built.append(triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options))

    setattr(triton.runtime.jit.JITFunction, "run", launch)
    with FakeTensorMode():
        load(path, path.stem).run(*(torch.empty(shape, dtype=dtype) for dtype, shape in shapes(path.read_text())))
    return "" if built else "it launches nothing"


def _entropy(x):
    return torch.distributions.Categorical(logits=x).entropy()


def _stretch(x):
    least = x.amin(1, keepdim=True)
    return (x - least) / (x.amax(1, keepdim=True) - least)


def _smooth(place, value):
    weight = torch.exp(-((place[:, None] - place[None, :]) ** 2) / (2 * 0.25**2))
    return weight @ value / weight.sum(1)


def _gain(x, centre, gain):
    gained = (x - centre).abs() * gain
    return gained / (1 + gained)


CHECKS = {  # shapes, dtype, reference in float64
    "fuse-consumer": ([(37, 53), (53,), (53,)], F32, _gain),
    "fuse-producer": ([(9, 700), (9, 700)], F32, lambda x, w: (x * (w * w + 0.5)).sum(1) / (w * w + 0.5).sum(1)),
    "one-pass-row": ([(7, 133)], F32, _stretch),
    "online-row": ([(3, 4999)], F32, _entropy),
    "split-k": ([(4097, 70), (4097, 33)], F32, lambda a, b: a.T @ b),
    "swizzle": ([(1200, 32), (300, 32)], F32, lambda p, q: torch.cdist(p, q) ** 2),
    "persistent": ([(3, 5001), (3, 3)], F32, lambda x, m: m @ x),
    "launch-options": ([(37, 3000)], F32, lambda x: x / x.norm(dim=1, keepdim=True)),
    "tensor-descriptor": ([(50, 200), (50, 200)], F16, lambda a, b: a * 0.3 + b * 0.7),
    "software-pipeline": ([(40, 300), (9, 5)], F32, lambda table, pick: table[pick.long()].sum(1)),
    "drop-masks": ([(4097,)], F16, lambda x: x / (1 + x.abs())),
    "tile-2d": ([(45, 45)], F32, lambda x: (x - x.T) / 2),
    "exp2": ([(150,), (150,)], F32, _smooth),
    "input-precision": ([(70, 90), (65, 90)], F32, lambda s, m: s @ m.T),
    "causal-skip": ([(300, 32), (300, 32), (300, 32)], F32, lambda a, b, c: torch.tril(a @ b.T) @ c),
    "hoist": ([(7, 1500), (7,)], F32, lambda x, g: x.abs().sum(1) * g / (1 + g * g)),
    "cache-hints": ([(9, 700), (700,), (700,)], F32, lambda x, t, w: (w * (x - t) ** 2).sum(1)),
    "multi-pass-row": ([(5, 5001)], F32, lambda x: (x - x.mean(1, keepdim=True)).abs().mean(1)),
    "accumulate-type": ([(5, 5001)], F16, lambda x: (x * x).sum(1)),
    "rows-per-program": ([(37, 45), (45,)], F32, lambda x, w: x - ((x * w).sum(1) / w.sum())[:, None]),
}


# causal-skip multiplies a product's result again, which was not cut beforehand
TF32 = {"causal-skip", "split-k", "swizzle"}  # tensor cores truncate operands to it, unless `tl.dot` is told otherwise


def executed(path):
    if path.stem not in CHECKS:
        return "no reference: add one to CHECKS"
    wanted, dtype, reference = CHECKS[path.stem]
    generator = torch.Generator().manual_seed(7)
    inputs = [torch.rand(shape, generator=generator).to(dtype) for shape in wanted]
    if path.stem == "software-pipeline":
        inputs[1] = torch.randint(0, 40, wanted[1], generator=generator)
    if path.stem in TF32:
        inputs = [tf32(value) for value in inputs]
    want = reference(*[value.double() for value in inputs])
    got = load(path, path.stem).run(*inputs).double()
    error = ((got - want).abs().max() / want.abs().max()).item()
    limit = (
        2e-3 if dtype is F16 else 1e-3 if path.stem == "causal-skip" else 1e-4
    )  # it truncates a product's result too
    return "" if error <= limit else f"off by {error:.3g} of the largest value"


def main(how, folder):
    torch.set_num_threads(1)
    if how == "execute":
        install()
    torch.cuda.get_device_properties = lambda device: type(
        "P", (), {"multi_processor_count": 132 if how == "compile" else 2}
    )
    found = {}
    for path in sorted(Path(folder).glob("*.py")):
        try:
            found[path.stem] = (compiled if how == "compile" else executed)(path)
        except Exception as error:  # noqa: BLE001 whatever an example does is the answer
            found[path.stem] = f"{type(error).__name__}: {str(error)[-800:]}"
    print("ANSWER" + json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
