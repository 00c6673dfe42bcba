"""The steps of a recurrent layer (`evo_kernel::recurrence`): one kernel, launched once a step for all directions."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from evo_kernel.tasks.lowering.decompositions import GATES
from evo_kernel.tasks.lowering.extremes import LARGER
from evo_kernel.tasks.lowering.layout import LoweredValue, Operand, align
from evo_kernel.tasks.lowering.module import LoweredKernel, LoweredModule
from evo_kernel.tasks.lowering.pointwise import TANH
from evo_kernel.tasks.lowering.registry import AtenNode, lowers
from evo_kernel.tasks.lowering.views import materialise

OUTSIDE = "mask=mask, other=0.0).to(tl.float32)"


@lowers(torch.ops.evo_kernel.recurrence)
def steps(module: LoweredModule, node: AtenNode) -> tuple[LoweredValue, LoweredValue]:
    """A loop in `run`: each step is one launch, for its programs need every element of the hidden state before it."""
    kind = str(node.raw(0))
    gates, hidden, cell, weight = (materialise(module, node.value(place)) for place in (1, 2, 3, 4))
    bias = None if node.value(5).fill == 0 else materialise(module, node.value(5))
    made, memory, twice = module.empty(node.name, node.result[0]), kind == "lstm", gates.shape[1] == 2
    ended = module.empty(module.fresh(f"{node.name}_cell"), node.result[1]) if memory else cell
    state, kept = module.fresh(f"{kind}_state"), module.fresh(f"{kind}_cell")
    kernel = LoweredKernel(f"{kind}_{'both_ways_' if twice else ''}step", module)
    pointers = [("x", f"{gates.name}[step]"), ("h", state), ("w", weight.name)]
    pointers += [("bias", bias.name)] if bias else []
    pointers += [("cell", kept), ("ended", ended.name)] if memory else []
    for param, name in (*pointers, ("out", f"{made.name}[step]")):
        kernel.pointer(param, name)
    _product(kernel, GATES[kind], (gates, weight), state)
    _shares(kernel, GATES[kind], gates, bias)
    _cell(kernel, kind, _at(kernel, "cell", kept, "cols") if memory else _at(kernel, "h", state, "cols"))
    kernel.body.append("    tl.store(out_ptr + rows[:, None] * h + cols[None, :], result, mask=mask)")
    if twice:
        operands = [(one, value.name, place) for one, value, place in
                    (("x", gates, 1), ("w", weight, 0), ("bias", bias, 0)) if value is not None]  # fmt: skip
        _advance(kernel, [*operands, ("h", state, 0), *([("cell", kept, 0)] if memory else [])], memory)

    module.line(f"{state} = {hidden.name}")
    if memory:
        module.line(f"{kept} = {cell.name}")
    module.line(f"for step in range({module.size(gates.shape[0])}):")
    b, h = (module.size(size) for size in hidden.shape[1:])
    grid = f"triton.cdiv({b}, {{BLOCK_B}}), triton.cdiv({h}, {{BLOCK_H}})"
    module.launch(kernel, f"({grid}, 2)" if twice else f"({grid})", depth=1)
    module.line(f"    {state} = {made.name}[step]")
    if memory:
        module.line(f"    {kept} = {ended.name}")
    return made, ended


def _advance(kernel: LoweredKernel, operands: Sequence[tuple[str, str, int]], memory: bool) -> None:
    """Let every pointer begin at the program's direction. `operands`: parameter, tensor, and its dimension for that."""
    steps = [(param, kernel.scalar(f"{param}_stride_d", f"{name}.stride({dim})")) for param, name, dim in operands]
    steps += [(param, "b * h") for param in ("out", *(["ended"] if memory else []))]
    begin = [f"    {param}_ptr = {param}_ptr + way * {step}" for param, step in steps]
    kernel.body = [f"    way = {kernel.module.program(2)}", *begin, *kernel.body]


def _at(kernel: LoweredKernel, param: str, name: str, columns: str) -> str:
    """Address of a state's tile; its first value is the caller's, with strides of its own."""
    b, h = (kernel.scalar(f"{param}_stride_{dim}", f"{name}.stride({place})") for place, dim in enumerate("bh", 1))
    return f"{param}_ptr + rows[:, None] * {b} + {columns}[None, :] * {h}"


def _of(gate: int, columns: str) -> str:
    """Rows of the weight, or columns of the gates, that one gate takes."""
    return columns if gate == 0 else f"({'h' if gate == 1 else f'{gate} * h'} + {columns})"


def _term(kernel: LoweredKernel, index: str, param: str, operand: Operand, dim: int) -> str:
    """A term of an address; of a size of 1 too, for an address must be a block where its mask is one."""
    return f" + {kernel.term(index, param, operand, dim) or f'{index} * 0'}"


def _product(kernel: LoweredKernel, count: int, values: tuple[LoweredValue, LoweredValue], state: str) -> None:
    """The hidden state's share y0, y1, ... of every gate, for one tile."""
    gates, weight = values
    module, b, h = kernel.module, gates.shape[2], weight.shape[2]
    kernel.size("b", b)
    kernel.size("h", h)
    kernel.knobs["BLOCK_B"], kernel.knobs["BLOCK_H"] = module.block(b, most=16), module.block(h, most=16)
    kernel.knobs["BLOCK_K"] = module.block(h, most=64)
    precision = module.input_precision(gates.dtype)
    w = align("w", weight, weight.shape)
    inner = "mask=(inner[:, None] < h) & (cols[None, :] < h), other=0.0)"
    column = _term(kernel, "inner[:, None]", "w_stride_h", w, 2)
    at = _at(kernel, "h", state, "inner")
    kernel.body += [
        f"    rows = {module.program(0)} * BLOCK_B + tl.arange(0, BLOCK_B)",
        f"    cols = {module.program(1)} * BLOCK_H + tl.arange(0, BLOCK_H)",
        *(f"    y{gate} = tl.zeros([BLOCK_B, BLOCK_H], tl.float32)" for gate in range(count)),
        "    for start in range(0, h, BLOCK_K):",
        "        inner = start + tl.arange(0, BLOCK_K)",
        f"        state = tl.load({at}, mask=(rows[:, None] < b) & (inner[None, :] < h), other=0.0)",
    ]
    for gate in range(count):
        row = _term(kernel, _of(gate, "cols[None, :]"), "w_stride_g", w, 1)
        kernel.body.append(f"        w = tl.load(w_ptr{row}{column}, {inner}")
        kernel.body.append(f"        y{gate} = tl.dot(state, w, y{gate}{precision})")
    kernel.body.append("    mask = (rows[:, None] < b) & (cols[None, :] < h)")


def _shares(kernel: LoweredKernel, count: int, gates: LoweredValue, bias: LoweredValue | None) -> None:
    """The hidden state's share with its bias, and the inputs' share x0, x1, ... of every gate."""
    x = align("x", gates, gates.shape)
    row = _term(kernel, "rows[:, None]", "x_stride_b", x, 2)
    for gate in range(count):
        if bias:
            at = "bias_ptr" + _term(kernel, _of(gate, "cols"), "bias_stride", align("bias", bias, bias.shape), 1)
            kernel.body.append(f"    bias = tl.load({at}, mask=cols < h, other=0.0).to(tl.float32)")
            kernel.body.append(f"    y{gate} = y{gate} + bias[None, :]")
        column = _term(kernel, _of(gate, "cols[None, :]"), "x_stride_g", x, 3)
        kernel.body.append(f"    x{gate} = tl.load(x_ptr{row}{column}, {OUTSIDE}")


def _cell(kernel: LoweredKernel, kind: str, before: str) -> None:
    """Lines from the gates' shares to `result`. `before` is where the cell (LSTM) or hidden state (GRU) lies."""
    load = f"tl.load({before}, {OUTSIDE}"
    if kind == "rnn_relu":
        kernel.body.append(f"    result = {LARGER.of('x0 + y0', '0.0', torch.float32)}")
    elif kind == "rnn_tanh":
        kernel.body += ["    total = x0 + y0", *_tanh("result", "total")]
    elif kind == "gru":
        kernel.body += [
            "    update = tl.sigmoid(x1 + y1)",
            "    candidate = x2 + tl.sigmoid(x0 + y0) * y2",
            *_tanh("candidate", "candidate"),
            f"    state = {load}",
            "    result = (1.0 - update) * candidate + update * state",
        ]
    else:
        kernel.body += [
            "    candidate = x2 + y2",
            *_tanh("candidate", "candidate"),
            f"    memory = {load}",
            "    memory = tl.sigmoid(x1 + y1) * memory + tl.sigmoid(x0 + y0) * candidate",
            "    tl.store(ended_ptr + rows[:, None] * h + cols[None, :], memory, mask=mask)",
            *_tanh("result", "memory"),
            "    result = tl.sigmoid(x3 + y3) * result",
        ]


def _tanh(name: str, argument: str) -> list[str]:
    *lines, last = (line.format(argument) for line in TANH)
    return [*(f"    {line}" for line in lines), f"    {name} = {last}"]
