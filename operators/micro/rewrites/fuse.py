"""`fuse-producer` and `fuse-consumer`: an elementwise kernel joins its neighbour, and the buffer between them goes.

The fused kernel is launched where the consumer was. The value that would have gone through memory is still rounded to
the buffer's dtype, so that a fusion changes where values live and never what they are.
"""

from __future__ import annotations

import ast

from evo_kernel.types import Strategy, TaskCard
from operators.micro.host_code import HostTensor, launches_for
from operators.micro.module import KernelModule
from operators.micro.rewrites.base import Rewrite, RewriteFailed, kernel_region, kernels_of
from operators.micro.rewrites.flat import map_of
from operators.micro.rewrites.fuse_rows import fused_rows
from operators.micro.rewrites.join import Join, Pair, pairs
from operators.micro.syntax import spell

DTYPES = {
    "float16": "tl.float16", "bfloat16": "tl.bfloat16", "float32": "tl.float32", "float64": "tl.float64",
    "int32": "tl.int32", "int64": "tl.int64", "int16": "tl.int16", "int8": "tl.int8", "uint8": "tl.uint8",
    "bool": "tl.int1",
}  # fmt: skip


class _Fusion(Rewrite):
    family = "fusion"

    def offers(self, module: KernelModule, task: TaskCard) -> list[Strategy]:
        dtypes = _dtypes(module, task)
        found = []
        for pair in pairs(module):
            dtype = dtypes.get(id(pair.producer.statement), {}).get(pair.out)
            if dtype in DTYPES and self.fused(module, pair, dtype) is not None:
                region = kernel_region(pair.producer.kernel, pair.consumer.kernel)
                found.append(Strategy(self.name, self.family, region, (("buffer", pair.buffer), ("dtype", dtype))))
        return found

    def apply(self, module: KernelModule, strategy: Strategy) -> str:
        wanted = (*kernels_of(strategy), str(dict(strategy.parameters).get("buffer")))
        for pair in pairs(module):
            if (pair.producer.kernel, pair.consumer.kernel, pair.buffer) == wanted:
                text = self.fused(module, pair, str(dict(strategy.parameters).get("dtype", "float32")))
                if text is not None:
                    return text
        raise RewriteFailed(f"{' and '.join(wanted[:2])} cannot be fused through {wanted[2]} in this source")

    def fused(self, module: KernelModule, pair: Pair, dtype: str) -> str | None:
        raise NotImplementedError


class FuseProducer(_Fusion):
    """The consumer computes the producer's values where it loaded them."""

    name = "fuse-producer"

    def fused(self, module: KernelModule, pair: Pair, dtype: str) -> str | None:
        flat = map_of(module.kernels[pair.producer.kernel])
        kernel = module.kernels[pair.consumer.kernel]
        loads = [a for a in kernel.accesses if a.base == pair.into]
        if any(a.kind != "load" for a in loads):
            return None
        if flat is None or flat.store.base != pair.out:
            return fused_rows(module, pair, DTYPES[dtype])
        join = Join(module, pair, keep=kernel, moved=flat.kernel)
        for access in loads:
            body = join.body(flat, [flat.store], access, {})
            if body is None:
                return None
            lines, value = body
            value = f"({value}).to({DTYPES[dtype]})"
            if access.mask is not None and access.other is not None:
                value = f"tl.where({spell(access.mask)}, {value}, {spell(access.other)})"
            join.replace(access, lines, value)
        return join.text()


class FuseConsumer(_Fusion):
    """The producer goes on with the consumer's computation where it stored."""

    name = "fuse-consumer"

    def fused(self, module: KernelModule, pair: Pair, dtype: str) -> str | None:
        flat = map_of(module.kernels[pair.consumer.kernel])
        kernel = module.kernels[pair.producer.kernel]
        stores = [a for a in kernel.accesses if a.base == pair.out]
        if flat is None or any(a.kind != "store" or not isinstance(a.statement, ast.Expr) for a in stores):
            return None
        loads = [a for a in flat.kernel.accesses if a.base == pair.into]
        join = Join(module, pair, keep=kernel, moved=flat.kernel)
        for access in stores:
            value = join.fresh("produced")
            body = join.body(flat, loads, access, {id(a.call): value for a in loads})
            target = join.address(flat)
            if body is None or target is None or access.value is None:
                return None
            tail = f", mask={spell(access.mask)}" if access.mask is not None else ""
            lines = [f"{value} = ({spell(access.value)}).to({DTYPES[dtype]})", *body[0]]
            join.statement(access, [*lines, f"tl.store({target}, {body[1]}{tail})"])
        return join.text()


def _dtypes(module: KernelModule, task: TaskCard) -> dict[int, dict[str, str]]:
    """Launch → parameter → dtype of its tensor, where every case agrees."""
    found: dict[int, dict[str, str]] = {}
    for one in launches_for(module, task):
        mine = found.setdefault(id(one.launch.statement), {})
        for name, value in one.values.items():
            dtype = value.dtype.removeprefix("torch.") if isinstance(value, HostTensor) else "?"
            mine[name] = dtype if mine.get(name, dtype) == dtype else "?"
    return found
