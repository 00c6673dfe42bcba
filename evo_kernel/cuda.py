"""CUDA C++ kernels in a source: carried as text, launched from `run`.

    from evo_kernel.cuda import kernel

    scale = kernel(r'''
    extern "C" __global__ void scale(const float* x, float* y, float by, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) y[i] = x[i] * by;
    }
    ''', "scale")

    def run(x):
        y = torch.empty_like(x)
        scale[(triton.cdiv(x.numel(), 256),), (256,)](x, y, 2.0, x.numel())
        return y

`k[grid, block](*args)`, or `k[grid, block, shared_bytes](*args)` with dynamic shared memory. Tensors are passed as
pointers to their first element, numbers by the type that the entry function declares. The text is compiled by NVRTC;
docs/reference/plans.md says which options and headers there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_SCALARS = {
    "bool": "u1", "char": "i8", "signed char": "i8", "int8_t": "i8", "unsigned char": "u8", "uint8_t": "u8",
    "short": "i16", "int16_t": "i16", "unsigned short": "u16", "uint16_t": "u16", "int": "i32", "signed": "i32",
    "int32_t": "i32", "unsigned": "u32", "unsigned int": "u32", "uint32_t": "u32", "long": "i64", "long long": "i64",
    "int64_t": "i64", "unsigned long": "u64", "unsigned long long": "u64", "uint64_t": "u64", "size_t": "u64",
    "float": "fp32", "double": "fp64", "half": "fp16", "__half": "fp16", "nv_bfloat16": "bf16", "__nv_bfloat16": "bf16",
}  # fmt: skip
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_NOISE = re.compile(r"\b(const|volatile|__restrict__|__restrict|restrict|__grid_constant__|struct)\b")

Dims = tuple[int, ...] | int


@dataclass(frozen=True)
class CudaLaunch:
    """One launch as `run` asked for it."""

    kernel: CudaKernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    args: tuple[Any, ...]


recorder: Callable[[CudaLaunch], None] | None = None
"""Where launches go while a plan is recorded; None: to the GPU."""


@dataclass(frozen=True)
class CudaKernel:
    """An entry function of a CUDA C++ text. `parameters` are its (name, type), types as Triton spells them."""

    code: str
    name: str
    options: tuple[str, ...]
    parameters: tuple[tuple[str, str], ...]

    def __getitem__(self, config: Any) -> Callable[..., None]:
        if not isinstance(config, tuple) or len(config) not in (2, 3):
            raise TypeError(f"launch it as {self.name}[grid, block](...) or with a third entry, shared_bytes")
        grid, block, shared_bytes = (*config, 0)[:3]

        def launch(*args: Any) -> None:
            if len(args) != len(self.parameters):
                wanted = ", ".join(f"{kind} {name}" for name, kind in self.parameters)
                raise TypeError(f"{self.name} takes {len(self.parameters)} arguments ({wanted}), not {len(args)}")
            call = CudaLaunch(self, _dims(grid), _dims(block), int(shared_bytes), args)
            recorder(call) if recorder is not None else _launch(call)

        return launch

    def __call__(self, *args: Any) -> None:
        raise TypeError(f"a launch needs a grid and a block: {self.name}[grid, block](...)")


def kernel(code: str, name: str, options: Sequence[str] = ()) -> CudaKernel:
    """The entry function `name` (`__global__ void`) of `code`. Raises ValueError if its parameters cannot be read."""
    return CudaKernel(code, name, tuple(options), parameters(code, name))


def parameters(code: str, name: str) -> tuple[tuple[str, str], ...]:
    """(name, type) of each parameter of an entry function, from its text: pointers as "*fp32", numbers as "i32"."""
    found = re.search(rf"\b{re.escape(name)}\s*\(([^()]*)\)\s*\{{", _COMMENT.sub(" ", code))
    if not re.fullmatch(r"[A-Za-z_]\w*", name) or found is None:
        raise ValueError(f"the CUDA text does not define a function {name}(...) {{ }} with a plain parameter list")
    listed = [part.strip() for part in found.group(1).split(",") if part.strip() not in ("", "void")]
    return tuple(_parameter(part, name) for part in listed)


def _parameter(text: str, function: str) -> tuple[str, str]:
    clean = _NOISE.sub(" ", text)
    match = re.fullmatch(r"\s*([\w:\s]+?)\s*(\**)\s*(\w+)\s*", re.sub(r"\*\s+(?=\*)", "*", clean))
    if match is None:
        raise ValueError(f"cannot read the parameter `{text}` of {function}: declare it as a pointer or a number")
    kind, stars, name = " ".join(match.group(1).split()), match.group(2), match.group(3)
    plain = _SCALARS.get(" ".join(kind.replace("std::", "").replace(" int", "").split()) or kind, _SCALARS.get(kind))
    if stars:
        return name, "*" + (plain or "u8")
    if plain is None:
        raise ValueError(
            f"{function} takes `{text}`: pointers and numbers ({', '.join(sorted(_SCALARS))}) can be passed"
        )
    return name, plain


def _dims(value: Dims) -> tuple[int, int, int]:
    sizes = (value,) if isinstance(value, int) else tuple(value)
    if not 1 <= len(sizes) <= 3:
        raise TypeError(f"a grid or a block has one to three sizes, not {len(sizes)}")
    x, y, z = (int(size) for size in (*sizes, 1, 1)[:3])
    return x, y, z


def _launch(call: CudaLaunch) -> None:
    """Outside a recording: compile for the GPU at hand and launch on torch's current stream."""
    from evo_kernel.fitness.runners.cuda_driver import launch

    launch(call)
