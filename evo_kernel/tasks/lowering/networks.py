"""Recurrent networks, traced as one operation a layer and direction (`evo_kernel::recurrence`), not a dozen a step.

PyTorch would expand `nn.GRU` into tens of thousands of operations, and `nn.LSTM` on a CPU into a call that no GPU
knows.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
"""Kind of a network → gates of a cell, by the names of torch's functions."""
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""Those whose matrix products have kernels."""


SCHEMA = (
    "(str kind, Tensor gates, Tensor hidden, Tensor cell, Tensor weight, Tensor bias, bool backwards)"
    " -> (Tensor, Tensor)"
)


@torch.library.custom_op("evo_kernel::recurrence", mutates_args=(), schema=SCHEMA)
def recurrence(
    kind: str,
    gates: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor,
    backwards: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One layer in one direction: hidden states of all steps [t, b, h] and the last cell state [b, h].

    `gates` [t, b, gates * h] is the inputs' share with its bias; `weight` [gates * h, h] and `bias` [gates * h] make
    the hidden state's. `cell` is what an LSTM starts from; other kinds return it as it is.
    """
    made = torch.empty((*gates.shape[:2], hidden.shape[1]), dtype=hidden.dtype, device=hidden.device)
    cell = cell.clone()
    for step in reversed(range(len(gates))) if backwards else range(len(gates)):
        hidden, cell = _step(kind, gates[step], F.linear(hidden, weight, bias), hidden, cell)
        made[step] = hidden
    return made, cell


def _step(kind: str, x: torch.Tensor, y: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor) -> tuple[Any, Any]:
    """Next hidden and cell state, from the gates' shares of the inputs (x) and of the hidden state (y)."""
    if kind == "lstm":
        i, f, g, o = (x + y).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        return o.sigmoid() * cell.tanh(), cell
    if kind == "gru":
        (r, z, n), (r_h, z_h, n_h) = x.chunk(3, -1), y.chunk(3, -1)
        n = (n + (r + r_h).sigmoid() * n_h).tanh()
        z = (z + z_h).sigmoid()
        return (1 - z) * n + z * hidden, cell
    return ((x + y).tanh() if kind == "rnn_tanh" else (x + y).relu()), cell


@recurrence.register_fake
def _(kind: str, gates: Any, hidden: Any, cell: Any, weight: Any, bias: Any, backwards: bool) -> Any:
    return hidden.new_empty((*gates.shape[:2], hidden.shape[1])), torch.empty_like(cell)


class Recurrent(TorchFunctionMode):
    """While it is active, recurrent networks are spelled by the layer."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if respelled(func, args, kwargs):
            return network(func.__name__, *args)
        return func(*args, **(kwargs or {}))


def respelled(func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None) -> bool:
    """Whether this is a call of a recurrent network that can be spelled by the layer.

    Left to PyTorch are packed sequences, projections, dropout, dtypes without a matrix product, and gradients.
    """
    if not isinstance(func, types.BuiltinFunctionType) or func.__name__ not in GATES or kwargs or len(args) != 9:
        return False
    x, state, params, biased, layers, dropout, train, twice, _ = args
    if isinstance(state, torch.Tensor) == (func.__name__ == "lstm") or not isinstance(params, (list, tuple)):
        return False
    tensors = [x, *(state if isinstance(state, (list, tuple)) else [state]), *params]
    return (
        len(params) == layers * (2 if twice else 1) * (4 if biased else 2)
        and not (dropout and train and layers > 1)
        and x.dtype in DTYPES
        and all(tensor.dtype == x.dtype for tensor in tensors)
        and not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
    )


def network(
    kind: str, x: torch.Tensor, state: Any, params: Sequence[torch.Tensor], biased: bool, layers: int,
    dropout: float, train: bool, twice: bool, batch_first: bool,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """What torch.lstm, torch.gru, torch.rnn_tanh and torch.rnn_relu return, by the layer. They take these arguments."""
    hidden, cell = state if kind == "lstm" else (state, state)
    torch._check(hidden.shape[1] == x.shape[0 if batch_first else 1])
    per, last, cells = (4 if biased else 2), [], []
    for layer in range(layers):
        outputs = []
        for backwards in (False, True)[: 2 if twice else 1]:
            w_x, w_h, *biases = params[per * len(last) : per * (len(last) + 1)]
            b_x, b_h = biases if biased else (None, torch.zeros_like(w_h[:, 0]))
            torch._check(w_h.shape[0] == GATES[kind] * hidden.shape[2])
            gates = F.linear(x, w_x, b_x)
            gates = gates.transpose(0, 1) if batch_first and layer == 0 else gates
            made, ended = recurrence(kind, gates, hidden[len(last)], cell[len(last)], w_h, b_h, backwards)
            outputs.append(made)
            last.append(made[0] if backwards else made[-1])
            cells.append(ended)
        x = torch.cat(outputs, -1) if twice else outputs[0]
    x = x.transpose(0, 1) if batch_first else x
    return (x, torch.stack(last), torch.stack(cells)) if kind == "lstm" else (x, torch.stack(last))
