"""Runs in a clean process with TRITON_INTERPRET=1: small kernels against torch, one check a function.

Prints `name ok`, or `name: what is wrong`, a line each.
"""

from __future__ import annotations

import sys
import tempfile
import time
import traceback
from pathlib import Path

import torch

from evo_kernel.fitness.interpreting.interpret import KernelFault, NotInterpretable, execute, view_of
from evo_kernel.fitness.plan import (
    Aten,
    Buffer,
    Descriptor,
    Fill,
    Kernel,
    Launch,
    Plan,
    Pointer,
    Scalar,
    View,
)  # fmt: skip
from tests.fitness import handmade

HEADER = handmade.HEADER
SPELLED = {
    torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.int32: "i32", torch.int64: "i64",
    torch.float8_e5m2: "fp8e5", torch.float8_e4m3fn: "fp8e4nv",
}  # fmt: skip


def run(plan, *inputs, seed=0):
    """Outputs of a plan on these inputs."""
    buffers = [torch.full((b.bytes,), 0xFF, dtype=torch.uint8) for b in plan.buffers]
    for view, value in zip(plan.inputs, inputs, strict=True):
        view_of(buffers[view.buffer], view).copy_(value)
    with tempfile.TemporaryDirectory() as folder:
        execute(plan, buffers, Path(folder), seed)
    return [view_of(buffers[v.buffer], v).clone() for v in plan.outputs]


def elementwise(body, inputs, output, size=64, shape=None, programs=1, text=None, buffers=None):
    """A kernel with one pointer an input, then the output's; `body` sets y from x0, x1, ... of `size` elements."""
    names = [f"x{i}_ptr" for i in range(len(inputs))] + ["y_ptr"]
    loads = "".join(f"    x{i} = tl.load(x{i}_ptr + at)\n" for i in range(len(inputs)))
    text = text or (
        HEADER + "from triton.language.extra import libdevice\n\n\n@triton.jit\ndef combine(a, b, c, d):\n"
        "    return tl.maximum(a, c), b * c + d\n\n\n@triton.jit\ndef double(x):\n    return x + x\n\n\n"
        "@triton.jit\ndef times(a, b):\n    return a * b\n\n\n"
        f"@triton.jit\ndef k({', '.join(names)}, SIZE: tl.constexpr):\n"
        f"    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)\n{loads}    {body}\n    tl.store(y_ptr + at, y)\n"
    )
    tensors = [*inputs, output]
    kernel = Kernel(
        name="k", text=text, constants=(((len(names),), size),),
        signature=(*((n, "*" + SPELLED[t.dtype]) for n, t in zip(names, tensors, strict=True)), ("SIZE", "constexpr")),
    )  # fmt: skip
    views = [
        View(buffer=i, dtype=str(t.dtype).removeprefix("torch."), shape=tuple(t.shape), strides=tuple(t.stride()))
        for i, t in enumerate(tensors)
    ]
    plan = Plan(
        case="c", target=90, inputs=tuple(views[:-1]), kernels=(kernel,), outputs=(views[-1],),
        buffers=tuple(
            Buffer(kind="input" if i < len(inputs) else "scratch", bytes=t.nbytes) for i, t in enumerate(tensors)
        ),
        nodes=(Launch(kernel=0, grid=(programs, 1, 1), args=tuple(Pointer(buffer=i) for i in range(len(tensors)))),),
    )  # fmt: skip
    return run(plan, *inputs)[0]


def draw(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same(got, wanted, rtol=0.0, atol=0.0):
    torch.testing.assert_close(got.double(), wanted.double(), rtol=rtol, atol=atol, equal_nan=True)


def check_softmax():
    for rows, columns, block in ((5, 127, None), (3, 1031, 256), (1, 1, None), (64, 129, 64)):
        x = draw(rows, columns)
        (y,) = run(handmade.softmax_plan(rows, columns, block), x)
        same(y, torch.softmax(x, -1), rtol=1e-5, atol=1e-8)


def check_matmul():
    for dtype, name in ((torch.float32, "float32"), (torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
        a, b = draw(70, 50, dtype=dtype), draw(50, 90, dtype=dtype, seed=1)
        (c,) = run(handmade.matmul_plan(70, 90, 50, (32, 32, 16), name, group=2), a, b)
        wanted = a.double() @ b.double()
        same(c, wanted, rtol=2e-3 if dtype == torch.float32 else 1e-2, atol=2e-2 if dtype != torch.float32 else 1e-2)
        if dtype != torch.float32:
            same(c, wanted.to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-4)


def check_tf32_is_seen():
    a, b = draw(64, 64), draw(64, 64, seed=1)
    (loose,) = run(handmade.matmul_plan(64, 64, 64, (32, 32, 32), "float32"), a, b)
    text = handmade.MATMUL.replace("tl.dot(a, b)", 'tl.dot(a, b, input_precision="ieee")')
    (exact,) = run(handmade.matmul_plan(64, 64, 64, (32, 32, 32), "float32", text=text), a, b)
    wanted = a.double() @ b.double()
    assert (exact - wanted).norm() < 1e-6 * wanted.norm()
    text = handmade.MATMUL.replace("tl.dot(a, b)", 'tl.dot(a, b, input_precision="tf32x3")')
    (split,) = run(handmade.matmul_plan(64, 64, 64, (32, 32, 32), "float32", text=text), a, b)
    assert not torch.equal(split, exact) and (split - wanted).norm() < 1e-6 * wanted.norm()
    assert 1e-4 * wanted.norm() < (loose - wanted).norm() < 2e-3 * wanted.norm()


def check_bfloat16_arithmetic():
    x, y = draw(64, dtype=torch.bfloat16), draw(64, dtype=torch.bfloat16, seed=1)
    for body, wanted in (
        ("y = x0 + x1", x + y), ("y = x0 * x1", x * y), ("y = x0 - x1", x - y), ("y = -x0", -x),
        ("y = tl.where(x0 > x1, x0, x1)", torch.maximum(x, y)), ("y = tl.maximum(x0, x1)", torch.maximum(x, y)),
        ("y = tl.minimum(x0, x1)", torch.minimum(x, y)), ("y = tl.abs(x0)", x.abs()),
        ("y = tl.exp(x0.to(tl.float32)).to(tl.bfloat16)", x.float().exp().bfloat16()),
        ("y = double(x0)", x + x), ("y = (x0 * 2.5).to(tl.bfloat16)", x * 2.5),
        ("y = (x0 > 0).to(tl.bfloat16)", (x > 0).bfloat16()),
        ("y = x0.to(tl.float32).to(tl.bfloat16)", x), ("y = x0.to(tl.float16).to(tl.bfloat16)", x.half().bfloat16()),
        ("y = tl.fma(x0, x1, x0)", (x.double() * y.double() + x.double()).bfloat16()),
        ("y = (at * 3).to(tl.bfloat16)", (torch.arange(64) * 3).bfloat16()),
        ("y = tl.zeros((SIZE,), tl.bfloat16) + 1.7", torch.full((64,), 1.7).bfloat16()),
        ("y = (x0 / x1)", (x.float() / y.float()).bfloat16()),
    ):  # fmt: skip
        try:
            same(elementwise(body, [x, y], torch.empty_like(x)), wanted)
        except AssertionError as error:
            raise AssertionError(f"{body}: {error}") from error


def check_bfloat16_reductions():
    x = draw(64, dtype=torch.bfloat16)
    out = torch.empty(64)
    for body, wanted in (
        ("y = tl.max(x0, axis=0) + tl.zeros((SIZE,), tl.float32)", x.max().float()),
        ("y = tl.min(x0, axis=0) + tl.zeros((SIZE,), tl.float32)", x.min().float()),
        ("y = tl.argmax(x0, axis=0) + tl.zeros((SIZE,), tl.float32)", x.float().argmax()),
    ):
        same(elementwise(body, [x], out), wanted.expand(64))
    total = elementwise("y = tl.sum(x0, axis=0) + tl.zeros((SIZE,), tl.float32)", [x], out)
    same(total, x.double().sum().expand(64), rtol=0.02, atol=0.02)
    running = elementwise("y = tl.cumsum(x0.to(tl.float32), axis=0)", [x], out)
    same(running, x.float().cumsum(0), rtol=1e-5, atol=1e-5)


def check_float8():
    for dtype, name in ((torch.float8_e5m2, "float8e5"), (torch.float8_e4m3fn, "float8e4nv")):
        x = draw(64) * 3
        same(elementwise(f"y = x0.to(tl.{name})", [x], torch.empty(64, dtype=dtype)).float(), x.to(dtype).float())
        narrow = x.to(dtype)
        same(elementwise("y = x0.to(tl.float32)", [narrow], torch.empty(64)), narrow.float())


def check_rounding():
    x = torch.cat([draw(61), torch.tensor([1.00390625, 1.01171875, 3.3895e38])])  # ties, and an overflow
    same(elementwise("y = x0.to(tl.bfloat16)", [x], torch.empty(64, dtype=torch.bfloat16)), x.bfloat16())
    same(elementwise("y = x0.to(tl.float16)", [x], torch.empty(64, dtype=torch.float16)), x.half())


def check_custom_reductions():
    x = draw(64) * 0.1 + 1
    same(elementwise("y = tl.reduce(x0, 0, times) + tl.zeros((SIZE,), tl.float32)", [x], torch.empty(64)),
         x.prod().expand(64), rtol=1e-5)  # fmt: skip
    rows = "tl.reduce(tl.reshape(x0, (8, 8)), 1, times, keep_dims=True)"
    wide = elementwise(f"y = tl.sum({rows}) + tl.zeros((SIZE,), tl.float32)", [x], torch.empty(64))
    same(wide, x.reshape(8, 8).prod(1).sum().expand(64), rtol=1e-5)
    same(elementwise("y = tl.associative_scan(x0, 0, times)", [x], torch.empty(64)), x.cumprod(0), rtol=1e-5)
    same(elementwise("y = tl.associative_scan(x0, 0, times, reverse=True)", [x], torch.empty(64)),
         x.flip(0).cumprod(0).flip(0), rtol=1e-5)  # fmt: skip


def check_device_functions():
    x = draw(64)
    for name, wanted in (("tanh", x.tanh()), ("erf", x.erf()), ("fast_expf", x.exp()), ("rint", x.round()),
                         ("log1p", x.log1p()), ("rsqrt", x.rsqrt())):  # fmt: skip
        same(elementwise(f"y = libdevice.{name}(x0)", [x], torch.empty(64)), wanted, rtol=1e-6, atol=1e-7)
    same(elementwise("y = libdevice.pow(tl.abs(x0), x0)", [x], torch.empty(64)), x.abs().pow(x), rtol=1e-6)
    same(elementwise("y = tl.erf(x0)", [x], torch.empty(64)), x.erf(), rtol=1e-6)
    same(elementwise("y = tl.sigmoid(x0)", [x], torch.empty(64)), x.sigmoid(), rtol=1e-6)


def check_atomics():
    text = HEADER + (
        "@triton.jit\ndef k(x0_ptr, y_ptr, SIZE: tl.constexpr):\n"
        "    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)\n    x = tl.load(x0_ptr + at)\n"
        "    tl.atomic_add(y_ptr + at * 0, x)\n"
    )
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.ones(64, dtype=dtype)
        made = elementwise("", [x], torch.zeros(1, dtype=dtype), size=16, programs=4, text=text)
        assert made.isnan().all()  # the output starts as poison
    plan = handmade_sum(text)
    same(run(plan, torch.arange(64).float())[0], torch.tensor([2016.0]))


def handmade_sum(text):
    """A fill, then atomics on what was filled."""
    kernel = Kernel(name="k", text=text, constants=(((2,), 16),),
                    signature=(("x0_ptr", "*fp32"), ("y_ptr", "*fp32"), ("SIZE", "constexpr")))  # fmt: skip
    x = View(buffer=0, dtype="float32", shape=(64,), strides=(1,))
    y = View(buffer=1, dtype="float32", shape=(1,), strides=(1,))
    return Plan(
        case="c", target=90, inputs=(x,), buffers=(Buffer(kind="input", bytes=256), Buffer(kind="scratch", bytes=4)),
        kernels=(kernel,), outputs=(y,),
        nodes=(Fill(view=y, value=0.0), Launch(kernel=0, grid=(4, 1, 1), args=(Pointer(buffer=0), Pointer(buffer=1)))),
    )  # fmt: skip


def check_descriptors():
    text = HEADER + (
        "@triton.jit\ndef k(x_desc, y_ptr, n, SIZE: tl.constexpr):\n    x = x_desc.load([0, 8])\n"
        "    inner = tl.make_tensor_descriptor(y_ptr, shape=[SIZE, n], strides=[n, 1], block_shape=[SIZE, SIZE])\n"
        "    inner.store([0, 0], x * 2)\n"
    )
    kernel = Kernel(name="k", text=text, constants=(((3,), 16),), signature=(
        ("x_desc", "tensordesc<fp32[16,16]>"), ("y_ptr", "*fp32"), ("n", "i32"), ("SIZE", "constexpr")))  # fmt: skip
    x = View(buffer=0, dtype="float32", shape=(16, 20), strides=(20, 1))
    y = View(buffer=1, dtype="float32", shape=(16, 16), strides=(16, 1))
    descriptor = Descriptor(buffer=0, dtype="float32", shape=(16, 20), strides=(20, 1), block=(16, 16))
    plan = Plan(
        case="c", target=90, inputs=(x,), kernels=(kernel,), outputs=(y,),
        buffers=(Buffer(kind="input", bytes=1280), Buffer(kind="scratch", bytes=1024)),
        nodes=(Launch(kernel=0, grid=(1, 1, 1), args=(descriptor, Pointer(buffer=1), Scalar(type="i32", value=16))),),
    )  # fmt: skip
    values = draw(16, 20)
    same(run(plan, values)[0], torch.nn.functional.pad(values[:, 8:] * 2, (0, 4)))


def check_aten():
    x = View(buffer=0, dtype="float32", shape=(4, 6), strides=(6, 1))
    y = View(buffer=1, dtype="bfloat16", shape=(4,), strides=(1,))
    node = Aten(op="aten.sum.dim_IntList", views=(x,), args=[{"view": 0}, [1]], kwargs={"dtype": {"dtype": "bfloat16"}},
                outputs=(y,))  # fmt: skip
    plan = Plan(case="c", target=90, inputs=(x,), kernels=(), nodes=(node,), outputs=(y,),
                buffers=(Buffer(kind="input", bytes=96), Buffer(kind="scratch", bytes=8)))  # fmt: skip
    values = draw(4, 6)
    same(run(plan, values)[0], values.sum(1, dtype=torch.bfloat16))


def fault_of(*args, **named):
    try:
        elementwise(*args, **named)
    except (KernelFault, NotInterpretable) as fault:
        return type(fault).__name__, str(fault)
    raise AssertionError("no fault was found")


def check_faults():
    x, y = draw(64), torch.empty(64)
    kind, text = fault_of("y = tl.load(x0_ptr + at + 3)", [x], y)
    assert kind == "KernelFault" and "a load reaches 4 bytes past the end of input 0 (3 of 64" in text, text
    kind, text = fault_of("y = x0; tl.store(y_ptr + at - 1, x0)", [x], y)
    assert "a store reaches 4 bytes before output 0 (1 of 64" in text, text
    kind, text = fault_of("y = tl.load((x0_ptr + at).to(tl.int64).to(tl.pointer_type(tl.float32)) + 2**40)", [x], y)
    assert "points nowhere" in text or "outside" in text, text
    kind, text = fault_of("y = x0 + undefined", [x], y)
    assert "NameError" in text and "program (0, 0, 0) fails at `y = x0 + undefined`" in text, text
    kind, text = fault_of('y = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [x0], tl.float32, True, 1)', [x], y)
    assert kind == "NotInterpretable" and "inline assembly" in text, (kind, text)
    masked = elementwise("y = tl.load(x0_ptr + at + 3, mask=at < 61, other=0.0)", [x], y)
    same(masked, torch.nn.functional.pad(x[3:], (0, 3)))


def check_loop_indices_are_tensors():
    x = draw(64)
    for loop in ("range(1, 4)", "tl.range(1, 4, num_stages=2)", "tl.range(1, 5, step=2)", "tl.range(1, SIZE // 16)"):
        made = elementwise(f"y = x0\n    for i in {loop}:\n        y += x0 * i.to(tl.int64)", [x], torch.empty(64))
        count = 1 + (1 + 3 if "step" in loop else 1 + 2 + 3)
        same(made, x * count, rtol=1e-6, atol=1e-6)


def check_programs_run_in_a_drawn_order():
    text = HEADER + (
        "@triton.jit\ndef k(x0_ptr, y_ptr, SIZE: tl.constexpr):\n    at = tl.program_id(0)\n"
        "    before = tl.load(y_ptr + at - 1, mask=at > 0, other=0.0)\n    tl.store(y_ptr + at, before + 1.0)\n"
    )
    made = elementwise("", [draw(64)], torch.empty(64), programs=64, text=text)
    assert made.isnan().any(), "a kernel that needs launch order passed"


def main():
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            start = time.perf_counter()
            try:
                check()
                print(f"{name} ok {time.perf_counter() - start:.2f}")
            except Exception:  # noqa: BLE001 - the parent asserts on what is printed
                print(f"{name}: {traceback.format_exc()}"[-3000:])


if __name__ == "__main__":
    sys.exit(main())
