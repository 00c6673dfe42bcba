"""Lowered kernels compile for sm_90, with no GPU at hand."""

from __future__ import annotations

import importlib.util
import inspect

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from evo_kernel.tasks.lowering.lower import lower_function
from tests.tasks.test_lowering_references import TABLE

pytest.importorskip("triton")

SAMPLE = (
    "softmax_middle", "layernorm_bf16", "linear_gelu_half", "argmax", "cumsum_middle", "promotion", "activations",
    "scatters", "scatters_of_numbers", "rounding", "masked_fill", "views", "volumes", "gru",
    "depthwise_convolutions",
)  # fmt: skip

POINTERS = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.float64: "*fp64",
    torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16", torch.int8: "*i8", torch.bool: "*i1",
}  # fmt: skip


class Recording:
    """Stands in for a kernel: notes with which types it is launched."""

    def __init__(self, kernel, seen):
        self.kernel, self.seen = kernel, seen

    def __getitem__(self, grid):
        def launch(*args, num_warps, **constants):
            names = [name for name in inspect.signature(self.kernel.fn).parameters if name not in constants]
            types = [POINTERS[a.dtype] if isinstance(a, torch.Tensor) else scalar(a) for a in args]
            signature = tuple(zip(names, types, strict=True))
            self.seen.append((self.kernel, signature, tuple(constants.items()), num_warps))

        return launch


def scalar(value):
    return "fp32" if isinstance(value, float) else "i32"


def launches_of(name, folder):
    """Distinct (kernel, argument types, constants, warps) of one entry on its first shapes."""
    item = TABLE[name]
    generator = torch.Generator().manual_seed(0)
    cases = [item.draw(generator, shape) for shape in item.shapes]
    path = folder / f"{name}.py"
    path.write_text(lower_function(item.reference, cases, name=name))
    spec = importlib.util.spec_from_file_location(f"compiled_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seen = []
    for attribute, value in list(vars(module).items()):
        if attribute.endswith("_kernel"):
            setattr(module, attribute, Recording(value, seen))
    with FakeTensorMode() as mode:
        module.run(*(mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for v in cases[0]))
    return list(dict.fromkeys(seen))


def compile_for_sm_90(kernel, signature, constants, num_warps):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    full = dict(signature) | {name: "constexpr" for name, _ in constants}
    order = {name: full[name] for name in inspect.signature(kernel.fn).parameters}
    source = ASTSource(fn=kernel, signature=order, constexprs=dict(constants))
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": num_warps})


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLE)
def test_every_kernel_compiles(name, tmp_path):
    launches = launches_of(name, tmp_path)
    assert launches
    for launch in launches:
        assert compile_for_sm_90(*launch).asm["cubin"], launch[0]
