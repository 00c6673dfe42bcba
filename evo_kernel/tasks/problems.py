"""A benchmark's problem (`Model`, `get_inputs`, `get_init_inputs`) as the functions of a task.

A kernel gets the values of `get_inputs`, then every tensor that the module holds (parameters, buffers, attributes),
each once, in the module's order: it may not know a weight's value. What is no tensor becomes a constant of the trace.
Module constants of the file can be given other values (`sizes`): so check cases are made small.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes

from evo_kernel.errors import TaskError
from evo_kernel.syntax import parse_module
from evo_kernel.tasks.blank import keep_dynamo_out
from evo_kernel.tasks.call_template import free_name
from evo_kernel.tasks.scripts import (
    drawing_seed,
    importable_names,
    is_fake,
    own_numbers,
    refuse_too_large,
    with_parameters,
)
from evo_kernel.tasks.task import size_hint, spec_of

SEED = 42
"""KernelBench's: set before `get_init_inputs`, and again before the constructor."""

SMALLEST = 8
"""Numbers below this are strides, windows and groups more often than sizes."""

NEEDED = ("Model", "get_inputs", "get_init_inputs")
_DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass(frozen=True)
class Lifted:
    """A tensor of the module that became an input: where it hangs (tied weights: several places), and the tensor."""

    places: tuple[str, ...]
    tensor: torch.Tensor
    state: bool  # a plain attribute, which forward may overwrite


class Problem:
    """One problem file. `cases` are all sizes that it will be run at; the reference finds its module by shapes."""

    def __init__(
        self, source: str, path: str, cases: Sequence[Mapping[str, Any]] = ({},), *, cast: bool = True
    ) -> None:
        self.path, self.cast, self.cases = path, cast, tuple(dict(case) for case in cases)
        self.pretrained = "from_pretrained" in source  # its weights come from files, not from its constructor
        self.statements = _with_named_sizes(parse_module(source).body)
        self._modules: dict[str, dict[str, Any]] = {}
        self._variants: dict[Any, _Variant] = {}
        self._lock = threading.RLock()

    def module(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The file's names, executed with some constants set to other values. Its exceptions are the file's own."""
        key = repr(sorted(sizes.items()))
        if key not in self._modules:
            names = importable_names(self.path)
            with _disable_current_modes():
                for statement in self.statements:
                    exec(compile(ast.Module([statement], []), self.path, "exec"), names)
                    names.update((name, sizes[name]) for name in assigned(statement) if name in sizes)
            missing = [name for name in NEEDED if name not in names]
            if missing:
                lacks = f"{self.path} has no {', '.join(missing)}"
                raise TaskError(f"{lacks}; a problem defines {', '.join(NEEDED)}. Name another file.")
            self._modules[key] = names
        return self._modules[key]

    def inputs(self, case: Mapping[str, Any], generator: torch.Generator, device: torch.device) -> tuple[Any, ...]:
        """What `run` gets: the drawn values, then the module's tensors as its constructor makes them from its seed."""
        seed = drawing_seed(generator, device, without_data=SEED)
        if not is_fake():
            refuse_too_large(self.path, self.variant(case).bytes, device, "check it at its reduced sizes only")
        with own_numbers(device), torch.no_grad(), torch.device(device):
            torch.manual_seed(seed)
            drawn = self.drawn(case)
            model = self.model(case)
        return (*drawn, *(lifted.tensor for lifted in lifted_tensors(model)))

    def drawn(self, case: Mapping[str, Any]) -> tuple[Any, ...]:
        """The values of `get_inputs`, cast as the benchmark's harness does: every tensor to float32."""
        made = self.module(case)["get_inputs"]()
        values = made if isinstance(made, (list, tuple)) else [made]
        return tuple(
            value.to(torch.float32) if self.cast and isinstance(value, torch.Tensor) else value for value in values
        )

    def model(self, case: Mapping[str, Any]) -> nn.Module:
        """The module by the benchmark's seeds, in training mode, as its harness runs it."""
        names = self.module(case)
        torch.manual_seed(SEED)
        arguments = names["get_init_inputs"]()
        torch.manual_seed(SEED)
        return settle(names["Model"](*arguments))

    def variant(self, case: Mapping[str, Any]) -> _Variant:
        """Module and shapes at these sizes, without data where the constructor can do without."""
        keep_dynamo_out()
        with _disable_current_modes(), own_numbers("cpu"), torch.no_grad():
            try:
                with FakeTensorMode(allow_non_fake_inputs=True):
                    return _Variant(self, case)
            except TaskError:
                raise
            except Exception:  # noqa: BLE001  a constructor that reads values: only real tensors can tell
                return _Variant(self, case)

    def reference(self) -> Callable[..., Any]:
        """The problem's computation as a function of all inputs, with their names as its signature."""

        def reference(*values: Any) -> Any:
            with self._lock, torch.no_grad():
                return self._variant_of(values)(values)

        reference.compiled_baseline = self.compiled  # pyright: ignore[reportFunctionMemberAccess]
        return with_parameters(reference, self.variant(self.cases[0]).names)

    def compiled(self, *values: Any) -> Any:
        """The reference with its module compiled: how tensors get into the module is nothing that users compile."""
        with self._lock, torch.no_grad():
            return self._variant_of(values).compiled(values)

    def _variant_of(self, values: Sequence[Any]) -> _Variant:
        if not self._variants:
            made = [self.variant(case) for case in self.cases]
            self._variants = {variant.shapes: variant for variant in made}
            several = len({variant.held for variant in made}) > 1
            for variant in made:
                variant.fixed = several
        shapes = tuple(
            tuple(size_hint(size) for size in value.shape) for value in values if isinstance(value, torch.Tensor)
        )
        if shapes in self._variants:
            return self._variants[shapes]
        # Lowering tries a trace on shrunk inputs too: then any module that holds such tensors will do.
        for variant in self._variants.values():
            if shapes[len(shapes) - len(variant.held) :] == variant.held and len(shapes) == len(variant.shapes):
                return variant
        raise TaskError(f"{self.path}: no case has inputs of shapes {shapes}. Give inputs as `inputs` draws them.")


class _Variant:
    """The problem at one set of sizes: a module whose tensors are put in anew at every call."""

    def __init__(self, problem: Problem, case: Mapping[str, Any]) -> None:
        drawn = problem.drawn(case)
        self.model = problem.model(case)
        self.lifted = lifted_tensors(self.model)
        if place := tensor_in_container(self.model):
            raise TaskError(
                f"{problem.path}: its module keeps tensors in {place}, where no kernel is given them, and no harness "
                "moves them to a GPU. Make them parameters, buffers or attributes."
            )
        self.count = len(drawn)
        held = [lifted.tensor for lifted in self.lifted]
        tensors = [*(value for value in drawn if isinstance(value, torch.Tensor)), *held]
        self.shapes = tuple(tuple(tensor.shape) for tensor in tensors)
        self.held = self.shapes[len(tensors) - len(held) :]
        self.bytes = sum(tensor.nbytes for tensor in tensors)
        self.specs = tuple(map(spec_of, (*drawn, *held)))
        self.names = _names(self.model, self.count, self.lifted)
        self.fixed = False  # whether other cases have another module, so that a trace must not pass for both
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, values: Sequence[Any]) -> Any:
        return self._computed(self.model, values)

    def compiled(self, values: Sequence[Any]) -> Any:
        if self._compiled is None:
            self._compiled = torch.compile(self.model, dynamic=False)
        return self._computed(self._compiled, values)

    def _computed(self, run: Callable[..., Any], values: Sequence[Any]) -> Any:
        held = values[self.count :]
        if self.fixed:
            for tensor in held:
                _ = [int(size) for size in tensor.shape]  # a guard, where sizes are symbols
        for lifted, tensor in zip(self.lifted, held, strict=True):
            value = tensor.clone() if lifted.state else tensor
            for place in lifted.places:
                put(self.model, place, value)
        with left_as_it_was(self.model):
            result = run(*values[: self.count])
        parts = tuple(flat(result))
        return parts[0] if len(parts) == 1 else parts


def _with_named_sizes(statements: list[ast.stmt]) -> list[ast.stmt]:
    """The file's statements with the sizes that `get_inputs` spells out (224 x 224 images) as module constants."""
    found: dict[str, int] = {}

    class Named(ast.NodeTransformer):
        def visit_Constant(self, node: ast.Constant) -> ast.AST:
            if type(node.value) is not int or node.value < SMALLEST:
                return node
            found[f"size_{node.value}"] = node.value
            return ast.copy_location(ast.Name(f"size_{node.value}", ast.Load()), node)

    for statement in statements:
        if isinstance(statement, ast.FunctionDef) and statement.name == "get_inputs":
            statement.body = [Named().visit(part) for part in statement.body]
    made = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(value)) for name, value in found.items()]
    for statement in made:
        ast.fix_missing_locations(statement)
    return [*made, *statements]


def assigned(statement: ast.stmt) -> list[str]:
    """Names that a module-level statement assigns."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return []
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]


def settle(model: nn.Module) -> nn.Module:
    """The module without what cannot reach its output: running statistics in training mode, dropout of nothing.

    Batch norm in training normalises by the batch and writes statistics that nobody reads; a function of its inputs
    has no place to write them to.
    """
    for module in list(model.modules()):
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.training and module.track_running_stats:
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
        for name, child in list(module.named_children()):
            if isinstance(child, _DROPOUTS) and child.p == 0:
                setattr(module, name, nn.Identity())
    return model


def lifted_tensors(model: nn.Module) -> list[Lifted]:
    """Every tensor that the module holds, once, in its order."""
    found: dict[int, tuple[list[str], torch.Tensor, bool]] = {}
    for prefix, module in model.named_modules():
        registered = {**module._parameters, **module._buffers}
        plain = {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}
        for name, tensor in (registered | plain).items():
            if tensor is not None:
                place = f"{prefix}.{name}" if prefix else name
                found.setdefault(id(tensor), ([], tensor, name in plain))[0].append(place)
    return [Lifted(tuple(places), tensor.detach(), state) for places, tensor, state in found.values()]


def put(model: nn.Module, place: str, tensor: torch.Tensor) -> None:
    """Hang a tensor where a parameter, buffer or attribute was (recurrent modules keep their flat list in step)."""
    *path, name = place.split(".")
    owner = model.get_submodule(".".join(path))
    owner._parameters.pop(name, None)
    owner._buffers.pop(name, None)
    setattr(owner, name, tensor)


def tensor_in_container(model: nn.Module) -> str:
    """A list, tuple or dict of the module that holds a tensor which hangs nowhere else; empty where there is none."""
    hung = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
            if any(isinstance(one, torch.Tensor) and id(one) not in hung for one in held):
                return f"{prefix}.{name}" if prefix else name
    return ""


@contextlib.contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """A call that leaves the module's attributes as they were: else the next one may compute something else."""
    held: list[dict[str, Any]] = [
        names for one in model.modules() for names in (vars(one), one._parameters, one._buffers, one._modules)
    ]
    before = [(names, dict(names)) for names in held]
    try:
        yield
    finally:
        for attributes, earlier in before:
            for name in attributes.keys() - earlier.keys():
                del attributes[name]
            attributes.update(earlier)


def flat(result: Any) -> list[Any]:
    """What a nest of lists and tuples holds, in order."""
    return [leaf for part in result for leaf in flat(part)] if isinstance(result, (tuple, list)) else [result]


def _names(model: nn.Module, count: int, lifted: Sequence[Lifted]) -> list[str]:
    """One Python name an input: forward's own parameters, then the places of the module's tensors."""
    forward = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    forward = (forward + [f"x{index}" for index in range(len(forward), count)])[:count]
    names: list[str] = []
    for wanted in [*forward, *(item.places[0] for item in lifted)]:
        names.append(free_name(wanted, names))
    return names
