"""Launch plans: what a kernel's `run` does on the GPU for one case and one knob setting, as validated data.

An untrusted recorder writes plans and trusted runners read them. Therefore every field has a type and a bound, and
every index and byte range is checked before anything is allocated or launched. Plans are transferred as JSON; nothing
in them is unpickled or evaluated on the trusted side.

    Plan            buffers, kernels (as code), nodes in order, outputs: what the recorder writes
    Binary          one kernel compiled for one target, with its resources: what the compiler writes
    CompiledPlan    both together, with the hash by which verdicts are cached
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from evo_kernel.errors import PlanError
from evo_kernel.fitness.compile.ir_text import (
    POINTER_DIVISIBILITY,
    EntryFunction,
    entry_of,
    with_plain_symbols,
    without_locations,
)
from evo_kernel.tasks.layout import dense_strides, shares_memory
from evo_kernel.types import content_hash

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8, "bool": 1,
}  # fmt: skip
MAX_BYTES = 1 << 38
MAX_GRID = (2**31 - 1, 65535, 65535)  # CUDA programming guide, table of technical specifications, compute 9.0
MAX_NODES = 4096
MAX_CODE = 4 << 20  # characters of one kernel
MAX_CODES = 32 << 20  # of all kernels of a plan together
MAX_PARAMETERS = 512
MAX_INPUTS = 1024  # of a plan: a network takes each of its weights
MAX_TABLE_BYTES = 64 << 10  # all constant tables of a plan together
MAX_BLOCK = (1024, 1024, 64)  # and MAX_THREADS together; the same table
MAX_THREADS = 1024
MAX_SHARED = 232448  # of one block, compute 9.0
MAX_REGISTERS = 1 << 16  # of one block; the table
MAX_FILE = 128 << 20
MAX_DEPTH = 8  # of an argument that is a list of lists

Index = Annotated[int, Field(ge=0, lt=1 << 16)]
Size = Annotated[int, Field(ge=0, le=MAX_BYTES)]
Stride = Annotated[int, Field(ge=0, le=MAX_BYTES)]  # torch has no negative strides
Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
Shape = Annotated[tuple[Size, ...], Field(max_length=16)]
Dtype = Literal[
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
    "int64", "int32", "int16", "int8", "uint8", "uint16", "uint32", "uint64", "bool",
]  # fmt: skip
_Model = TypeVar("_Model", bound="_Data")
Kind = Annotated[
    str, Field(pattern=r"^(\*{1,2}\w+|tensordesc<[^<>\n]*(<[^<>\n]*>)?[^<>\n]*>|[a-z]+\d+)$", max_length=400)
]


def _shallow(value: Any) -> Any:
    """The value itself. Raises ValueError if lists are nested too deeply to be hashed."""
    level = [value]
    for _ in range(MAX_DEPTH + 2):
        level = [
            i for v in level if isinstance(v, (list, tuple, dict)) for i in (v.values() if isinstance(v, dict) else v)
        ]
        if not level:
            return value
    raise ValueError(f"nested deeper than {MAX_DEPTH}")


class _Data(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants"
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, without what properties have cached: a copy has a key of its own."""
        copied = super().model_copy(update=update, deep=deep)
        for name in vars(copied).keys() - type(self).model_fields.keys():
            del vars(copied)[name]
        return copied


class View(_Data):
    """A tensor in a buffer. `offset` and `strides` count elements of `dtype`."""

    buffer: Index
    dtype: Dtype
    shape: Shape
    strides: Annotated[tuple[Stride, ...], Field(max_length=16)]
    offset: Size = 0

    @property
    def item_bytes(self) -> int:
        return ITEM_BYTES[self.dtype]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def has_strides(self, strides: Sequence[int]) -> bool:
        """Whether these strides address the same elements: those of axes with one position are never used."""
        pairs = zip(self.shape, self.strides, strides, strict=True)
        return not self.elements or all(own == other for size, own, other in pairs if size > 1)

    def span(self) -> tuple[int, int]:
        """Half-open byte range of the buffer that the view covers."""
        if self.elements == 0:
            return self.offset * self.item_bytes, self.offset * self.item_bytes
        high = self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return self.offset * self.item_bytes, (high + 1) * self.item_bytes


_MOST_SUMS = 4096


def overlap(first: View, second: View) -> bool:
    """Whether two views have a byte in common; so they have, for all we know, where strides are not nested.

    An address is a sum of steps. With the steps of `second` counted from their ends, equal addresses are a way to make
    one number of all steps, the largest first.
    """
    if first.buffer != second.buffer or not first.elements or not second.elements:
        return False
    most: Counter[int] = Counter({1: first.item_bytes + second.item_bytes - 2})
    for view in (first, second):
        for size, stride in zip(view.shape, view.strides, strict=True):
            most[stride * view.item_bytes] += size - 1
    sums, rest = {second.span()[1] - 1 - first.span()[0]}, sum(step * count for step, count in most.items())
    for step, count in sorted(most.items(), reverse=True):
        if not step:
            continue
        rest -= step * count
        ways = [(left, range(max(0, -((rest - left) // step)), min(count, left // step) + 1)) for left in sums]
        if sum(len(times) for _, times in ways) > _MOST_SUMS:
            return True
        sums = {left - step * number for left, times in ways for number in times}
    return 0 in sums


class Buffer(_Data):
    """One allocation. The runner fills inputs, and poisons scratch before each run of the plan."""

    kind: Literal["input", "scratch"]
    bytes: Size


class Pointer(_Data):
    """A kernel argument that points `offset` bytes into a buffer."""

    kind: Literal["pointer"] = "pointer"
    buffer: Index
    offset: Size = 0


class Scalar(_Data):
    """A kernel argument by value; `type` in Triton's notation (i32, i64, fp32, u1, ...)."""

    kind: Literal["scalar"] = "scalar"
    type: Annotated[str, Field(pattern=r"^(u1|i1|[iu](8|16|32|64)|fp16|bf16|fp32|fp64|f32|f64)$")]
    value: bool | Annotated[int, Field(ge=-(2**63), lt=2**64)] | float

    @model_validator(mode="after")
    def _value_is_of_its_type(self) -> Scalar:
        if self.type[0] in "iu":
            bits, signed = int(self.type[1:]), self.type[0] == "i" and self.type != "i1"
            low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if signed else (0, 1 << bits)
            if isinstance(self.value, float) or not low <= self.value < high:
                raise ValueError(f"{self.value} is not a value of type {self.type}")
        return self


class Descriptor(_Data):
    """A host-side tensor descriptor (TMA). Shape, strides and block in elements."""

    kind: Literal["descriptor"] = "descriptor"
    buffer: Index
    offset: Size = 0
    dtype: Dtype
    shape: Shape
    strides: Shape
    block: Shape
    padding: Literal["zero", "nan"] = "zero"
    round_tf32: bool = False  # loads round float32 elements to TF32


Arg = Annotated[Pointer | Scalar | Descriptor, Field(discriminator="kind")]


_without_locations = lru_cache(maxsize=16)(without_locations)  # the plans of one source share their kernels


class Kernel(_Data):
    """One specialisation of a kernel, as input for the compiler. It holds no Python.

    `code`: Triton IR (TTIR, or TTGIR of a Gluon kernel) of one module with one public function `name`; or one
    translation unit of CUDA C++ with the entry function `name`. `signature`: the parameters that a launch passes, with
    types in Triton's notation: `*fp32`, `i32`, `tensordesc<fp16[64, 64]>`. `options`: of Triton's compiler after this
    stage; for CUDA C++: `num_warps` of a block, `shared_bytes` (dynamic) and `flags`, separated by spaces.
    """

    name: Name
    language: Literal["triton", "gluon", "cuda"] = "triton"
    code: Annotated[str, Field(max_length=MAX_CODE)]
    signature: Annotated[tuple[tuple[Name, Kind], ...], Field(max_length=MAX_PARAMETERS)]
    options: Annotated[tuple[tuple[Name, bool | int | float | str], ...], Field(max_length=64)] = ()

    @cached_property
    def key(self) -> str:
        """Hash of everything that determines the compiled code, except compiler and target. Ignores source lines."""
        code = self.code if self.language == "cuda" else _without_locations(self.code)
        return content_hash([self.name, self.language, code, self.signature, self.options])

    @property
    def num_warps(self) -> int:
        return int(dict(self.options).get("num_warps", 4))


class Launch(_Data):
    """One kernel launch. `args` are in the order of the kernel's signature.

    `grid` counts programs; with clusters, each program is `num_ctas` blocks along the first axis. `block`: CUDA C++
    only.
    """

    kind: Literal["launch"] = "launch"
    kernel: Index
    grid: tuple[int, int, int]
    args: Annotated[tuple[Arg, ...], Field(max_length=MAX_PARAMETERS)]
    block: tuple[int, int, int] | None = None

    @model_validator(mode="after")
    def _grid_fits(self) -> Launch:
        if any(not 1 <= size <= limit for size, limit in zip(self.grid, MAX_GRID, strict=True)):
            raise ValueError(f"grid {self.grid} is outside 1..{MAX_GRID}")
        if self.block is None:
            return self
        if any(not 1 <= size <= limit for size, limit in zip(self.block, MAX_BLOCK, strict=True)):
            raise ValueError(f"block {self.block} is outside 1..{MAX_BLOCK}")
        if math.prod(self.block) > MAX_THREADS:
            raise ValueError(f"block {self.block} has {math.prod(self.block)} threads; at most {MAX_THREADS} fit")
        return self


class Fill(_Data):
    """Set every element of a view to a value (torch.zeros, fill_, ...)."""

    kind: Literal["fill"] = "fill"
    view: View
    value: bool | int | float


class Copy(_Data):
    """Copy a view into another of the same dtype and shape (clone, contiguous, copy_)."""

    kind: Literal["copy"] = "copy"
    source: View
    target: View

    @model_validator(mode="after")
    def _alike(self) -> Copy:
        if (self.source.dtype, self.source.shape) != (self.target.dtype, self.target.shape):
            raise ValueError("a copy joins two views of different dtype or shape")
        if self.source != self.target and overlap(self.source, self.target):
            raise ValueError("a copy reads what it writes: a GPU copies elements in no order")
        return self


class Relocation(_Data):
    """Element `at` of a table, in row-major order, holds the address of byte `offset` of the buffer `target`."""

    at: Annotated[int, Field(ge=0, lt=MAX_TABLE_BYTES // 8)]
    target: Index
    offset: Size = 0


class Constant(_Data):
    """A small table of values known to host code (torch.tensor([...])): `data` is its elements in row-major order.

    Who runs the plan writes the addresses (`data_ptr()`), as only it knows where buffers lie; `data` has zeros there.
    """

    kind: Literal["constant"] = "constant"
    view: View
    data: Annotated[str, Field(pattern=r"^[A-Za-z0-9+/]*={0,2}$", max_length=MAX_TABLE_BYTES * 4 // 3 + 4)]  # base64
    relocations: Annotated[tuple[Relocation, ...], Field(max_length=MAX_TABLE_BYTES // 8)] = ()

    @model_serializer(mode="wrap")
    def _as_before(self, whole: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Tables without addresses keep the hashes that plans had before there were any."""
        data = whole(self)
        return data if self.relocations else {name: value for name, value in data.items() if name != "relocations"}

    @property
    def content(self) -> bytes:
        return base64.b64decode(self.data, validate=True)

    @model_validator(mode="after")
    def _as_many_bytes(self) -> Constant:
        if len(self.content) != self.view.elements * self.view.item_bytes:
            raise ValueError(
                f"a table of {len(self.content)} bytes for {self.view.elements} elements of {self.view.dtype}"
            )
        if self.relocations and self.view.dtype not in ("int64", "uint64"):
            raise ValueError(f"a table of {self.view.dtype} holds addresses, which have 64 bits")
        places, content = [one.at for one in self.relocations], self.content
        if places != sorted(set(places)) or places[-1:] >= [self.view.elements]:
            raise ValueError("a table's addresses are out of order, or lie outside it")
        if any(content[8 * at : 8 * at + 8] != bytes(8) for at in places):
            raise ValueError("a table holds a number where an address belongs")
        return self


class Aten(_Data):
    """A torch operation that the runner replays. Allowed only with ALLOW = "mixed".

    `args` and `kwargs` are JSON values in which {"view": i} means `views[i]` and {"dtype": ...} a dtype.
    """

    kind: Literal["aten"] = "aten"
    op: Annotated[str, Field(pattern=r"^aten\.[A-Za-z0-9_]+\.[A-Za-z0-9_]+$", max_length=200)]
    views: Annotated[tuple[View, ...], Field(max_length=512)]
    args: Any
    kwargs: Any
    outputs: Annotated[tuple[View | None, ...], Field(max_length=64)]

    @field_validator("op")
    @classmethod
    def _op_computes(cls, op: str) -> str:
        from evo_kernel.fitness.plan.torch_operations import fault_of  # imports torch, which most plans do not need

        if fault := fault_of(op):
            raise ValueError(fault)
        return op

    @field_validator("args", "kwargs")
    @classmethod
    def _nothing_is_deep(cls, value: Any) -> Any:
        return _shallow(value)


Node = Annotated[Launch | Fill | Copy | Constant | Aten, Field(discriminator="kind")]


class Plan(_Data):
    """What `run` does for one case and one knob setting."""

    version: Literal[2] = 2
    case: Annotated[str, Field(max_length=400)]
    target: Annotated[int, Field(ge=70, le=150)]  # compute capability × 10
    knobs: tuple[tuple[Annotated[str, Field(max_length=300)], int], ...] = ()
    inputs: Annotated[tuple[View | None, ...], Field(max_length=MAX_INPUTS)]  # None: not a tensor
    buffers: Annotated[tuple[Buffer, ...], Field(max_length=4096)]
    kernels: Annotated[tuple[Kernel, ...], Field(max_length=512)]
    nodes: Annotated[tuple[Node, ...], Field(max_length=MAX_NODES)]
    outputs: Annotated[tuple[View, ...], Field(max_length=64)]

    @model_validator(mode="before")
    @classmethod
    def _is_of_this_version(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("version", 2) != 2:
            raise ValueError(
                f"a plan of version {str(data['version'])[:20]}, and this evo-kernel reads version 2: "
                "record its source again (evo-kernel verify)"
            )
        return data

    @model_validator(mode="after")
    def _everything_is_inside(self) -> Plan:
        if sum(len(kernel.code) for kernel in self.kernels) > MAX_CODES:
            raise ValueError(f"the code of its kernels has more than {MAX_CODES} characters")
        if sum(buffer.bytes for buffer in self.buffers) > MAX_BYTES:
            raise ValueError(f"buffers sum to more than {MAX_BYTES} bytes")
        of_nodes = (view for node in self.nodes for view in _views_of(node))
        for view in (*(v for v in self.inputs if v), *self.outputs, *of_nodes):
            self._check_view(view)
        given = [(v.buffer, v.span()) for v in self.inputs if v]
        for number, buffer in enumerate(self.buffers):
            if (buffer.kind == "input") != ([at for at, _ in given].count(number) == 1):
                raise ValueError(f"buffer {number} is of kind {buffer.kind} but does not belong to exactly one input")
        if any(span != (0, self.buffers[at].bytes) and self.buffers[at].bytes for at, span in given):
            raise ValueError("the buffer of an input is larger than the input")
        for node in self.nodes:
            if isinstance(node, Launch):
                self._check_launch(node)
        if sum(len(node.data) * 3 // 4 for node in self.nodes if isinstance(node, Constant)) > MAX_TABLE_BYTES:
            raise ValueError(f"constant tables sum to more than {MAX_TABLE_BYTES} bytes: pass them as an input")
        self._check_relocations()
        return self

    def _check_relocations(self) -> None:
        """Addresses point into buffers. Only kernels see them: no torch operation, no copy, no output."""
        closed = {number for number, buffer in enumerate(self.buffers) if buffer.kind == "input"}
        closed |= {view.buffer for view in self.outputs}
        for node in self.nodes:
            whole = isinstance(node, (Fill, Constant)) and node.view.item_bytes == 8
            closed |= set() if whole else {view.buffer for view in _views_of(node)}
            for one in node.relocations if isinstance(node, Constant) else ():
                if one.target >= len(self.buffers) or one.offset > self.buffers[one.target].bytes:
                    raise ValueError(f"an address in a table points outside buffer {one.target}")
        if wrong := self.addressed.keys() & closed:
            raise ValueError(f"buffer {min(wrong)} holds addresses, but not only kernels take it")

    @cached_property
    def addressed(self) -> dict[int, frozenset[int]]:
        """By buffer with a table of addresses, the buffers that these point into."""
        found: dict[int, set[int]] = {}
        for node in self.nodes:
            if isinstance(node, Constant) and node.relocations:
                found.setdefault(node.view.buffer, set()).update(one.target for one in node.relocations)
        return {buffer: frozenset(targets) for buffer, targets in found.items()}

    def reached(self, launch: Launch) -> set[int]:
        """Buffers that a launch takes as arguments, or by tables of addresses."""
        return closure({arg.buffer for arg in launch.args if not isinstance(arg, Scalar)}, self.addressed)

    def _check_view(self, view: View) -> None:
        if view.buffer >= len(self.buffers):
            raise ValueError(f"view names buffer {view.buffer} of {len(self.buffers)}")
        if len(view.shape) != len(view.strides):
            raise ValueError("a view has different numbers of sizes and strides")
        low, high = view.span()
        if low < 0 or high > self.buffers[view.buffer].bytes:
            raise ValueError(f"a view spans bytes {low}..{high} of buffer {view.buffer}, outside it")

    def _check_launch(self, launch: Launch) -> None:
        if launch.kernel >= len(self.kernels):
            raise ValueError(f"launch names kernel {launch.kernel} of {len(self.kernels)}")
        kernel = self.kernels[launch.kernel]
        if (kernel.language == "cuda") != (launch.block is not None):
            raise ValueError("a launch must give its block if, and only if, the kernel is CUDA C++")
        if launch.block is not None and -(-math.prod(launch.block) // 32) != kernel.num_warps:
            raise ValueError(f"block {launch.block} does not have the kernel's {kernel.num_warps} warps")
        if len(kernel.signature) != len(launch.args):
            raise ValueError(
                f"launch passes {len(launch.args)} arguments where the kernel takes {len(kernel.signature)}"
            )
        for (_, kind), arg in zip(kernel.signature, launch.args, strict=True):
            expected = {"*": "pointer", "t": "descriptor"}.get(kind[:1], "scalar")
            if arg.kind != expected or (isinstance(arg, Scalar) and arg.type != kind):
                passed = f"{arg.kind} of type {arg.type}" if isinstance(arg, Scalar) else arg.kind
                raise ValueError(f"a {passed} is passed where the kernel takes {kind}")
            if isinstance(arg, Scalar):
                continue
            if arg.buffer >= len(self.buffers) or arg.offset > self.buffers[arg.buffer].bytes:
                raise ValueError(f"an argument points outside buffer {arg.buffer}")
            if isinstance(arg, Descriptor):
                self._check_view(_descriptor_view(arg))

    def misfit(self, specs: Sequence[tuple[str, tuple[int, ...], tuple[int, ...]] | None]) -> str:
        """How the plan's inputs differ from a case's (dtype, shape, strides; None: no tensor); empty if they agree."""
        if len(self.inputs) != len(specs):
            return f"the plan takes {len(self.inputs)} inputs where the case has {len(specs)}"
        for number, (view, spec) in enumerate(zip(self.inputs, specs, strict=True)):
            actual = (view.dtype, view.shape, view.strides) if view else None
            if actual != spec:
                return f"input {number} of the plan is {actual} where the case has {spec}"
        return ""

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Launch))

    @property
    def aten_nodes(self) -> tuple[Aten, ...]:
        return tuple(node for node in self.nodes if isinstance(node, Aten))

    @property
    def copied_outputs(self) -> tuple[int, ...]:
        """Numbers of outputs whose buffer a copy wrote after the last kernel that takes it; but what kernels computed
        may be copied to another layout, see `laid_out`."""
        copied: set[int] = set()
        given = {number for number, buffer in enumerate(self.buffers) if buffer.kind == "input"}
        for node in self.nodes:
            if isinstance(node, Launch):
                copied -= self.reached(node)
            elif isinstance(node, Copy):
                source, target = node.source, node.target
                moves = source.buffer not in copied | given and not source.has_strides(target.strides)
                copied = copied - {target.buffer} if moves else copied | {target.buffer}
        return tuple(number for number, view in enumerate(self.outputs) if view.buffer in copied)

    def laid_out(self, orders: Callable[[], Sequence[Sequence[int] | None]]) -> Plan:
        """The plan, with a copy of each output whose elements lie neither row by row nor as the reference's: who reads
        it would pay.

        `orders`: by output, the axes of the reference's from the outermost in memory to the innermost; None: any layout
        will do. Asked where an output does not lie row by row.
        """
        open_ones = [
            number
            for number, view in enumerate(self.outputs)
            if not view.has_strides(dense_strides(view.shape, range(len(view.shape))))
            and number not in self.borrowed_outputs
            and not any(overlap(view, other) for other in self.outputs[number + 1 :])
        ]
        by_output = dict(enumerate(orders())) if open_ones else {}
        buffers, nodes, outputs = list(self.buffers), list(self.nodes), list(self.outputs)
        for number in open_ones:
            view, order = outputs[number], by_output.get(number)
            if order is None or len(order) != len(view.shape):
                continue
            strides = dense_strides(view.shape, order)
            if not view.has_strides(strides):
                outputs[number] = View(buffer=len(buffers), dtype=view.dtype, shape=view.shape, strides=strides)
                buffers.append(Buffer(kind="scratch", bytes=view.elements * view.item_bytes))
                nodes.append(Copy(source=view, target=outputs[number]))
        return self.model_copy(update={"buffers": tuple(buffers), "nodes": tuple(nodes), "outputs": tuple(outputs)})

    @property
    def borrowed_outputs(self) -> tuple[int, ...]:
        """Numbers of outputs in an input's buffer, or whose elements share memory with each other or another output."""
        return tuple(
            number
            for number, view in enumerate(self.outputs)
            if view.elements
            and (
                self.buffers[view.buffer].kind == "input"
                or shares_memory(view.shape, view.strides)
                or any(overlap(view, other) for other in self.outputs[:number])
            )
        )

    def buffer_name(self, number: int) -> str:
        """What a buffer is, for messages: "input 1", "output 0" or "workspace 3"."""
        views = [("input", self.inputs), ("output", self.outputs)]
        named = ((kind, i) for kind, some in views for i, view in enumerate(some) if view and view.buffer == number)
        kind, i = next(named, ("workspace", number))
        return f"{kind} {i}"

    @property
    def scratch_bytes(self) -> int:
        """Bytes of buffers that are neither inputs nor outputs."""
        outputs = {view.buffer for view in self.outputs}
        return sum(b.bytes for i, b in enumerate(self.buffers) if b.kind == "scratch" and i not in outputs)


def closure(buffers: set[int], addressed: Mapping[int, Set[int]]) -> set[int]:
    """Buffers, those that addresses in them point into, and so on."""
    reached, pending = set(buffers), list(buffers)
    while pending:
        new = set(addressed.get(pending.pop(), ())) - reached
        reached |= new
        pending += new
    return reached


def _views_of(node: Node) -> Iterator[View]:
    if isinstance(node, (Fill, Constant)):
        yield node.view
    elif isinstance(node, Copy):
        yield from (node.source, node.target)
    elif isinstance(node, Aten):
        yield from node.views
        yield from (view for view in node.outputs if view)


def _descriptor_view(arg: Descriptor) -> View:
    item = ITEM_BYTES[arg.dtype]
    if arg.offset % item:
        raise ValueError("a descriptor's base is not aligned to its dtype")
    return View(buffer=arg.buffer, dtype=arg.dtype, shape=arg.shape, strides=arg.strides, offset=arg.offset // item)


class TensorMeta(BaseModel):
    """Tensor map settings of one of a compiled kernel's descriptor parameters (Triton's `tensordesc_meta`)."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # later versions of Triton add fields

    swizzle: Annotated[int, Field(ge=0, le=6)]  # CUtensorMapSwizzle
    elem_size: Literal[1, 2, 4, 8]
    elem_type: Annotated[int, Field(ge=0, le=15)]  # as the device numbers them, see runners/parameters.py
    block_size: Annotated[tuple[Annotated[int, Field(ge=1, le=256)], ...], Field(min_length=1, max_length=5)]
    fp4_padded: bool = False
    is_im2col: bool = False


class Binary(_Data):
    """A kernel compiled for one target."""

    key: str  # Kernel.key
    ir: Annotated[str, Field(max_length=MAX_CODE)]  # the compiled IR, printed again; empty for CUDA C++
    symbol: Annotated[str, Field(max_length=1000)]
    cubin: bytes
    code_hash: str  # of the code sections only, without names and debug information
    num_warps: Annotated[int, Field(ge=1, le=64)]
    num_ctas: Annotated[int, Field(ge=1, le=16)] = 1
    shared_bytes: Annotated[int, Field(ge=0, le=MAX_SHARED)] = 0  # dynamic, requested by a launch
    static_shared_bytes: Annotated[int, Field(ge=0, le=MAX_SHARED)] = 0  # reserved by the code
    registers: int = 0
    spill_bytes: int = 0
    global_scratch_bytes: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    global_scratch_align: Annotated[int, Field(ge=1, le=4096)] = 1
    profile_scratch_bytes: Annotated[int, Field(ge=0, le=1 << 24)] = 0
    profile_scratch_align: Annotated[int, Field(ge=1, le=4096)] = 1
    parameter_bytes: tuple[int, ...] = ()  # size of each parameter of the entry function, from its metadata
    cooperative: bool = False
    dependent: bool = False
    tensordesc_meta: Annotated[tuple[TensorMeta, ...], Field(max_length=64)] = ()
    instructions: dict[str, int] = {}  # static counts by class, see compile/instructions.py
    loops: Annotated[tuple[dict[str, int], ...], Field(max_length=4096)] = ()  # see compile/instructions.py
    compiler: Annotated[str, Field(max_length=200)] = ""  # name and version; replay compares it

    @cached_property
    def entry(self) -> EntryFunction:
        """The IR's public function. Raises ValueError."""
        return entry_of(self.ir)

    @property
    def threads(self) -> int:
        return 32 * self.num_warps

    @property
    def stages(self) -> int:
        """Pipeline stages of the loop whose copies are issued earliest, from its code; 1 without such a loop."""
        return 1 + max((loop.get("ahead", 0) for loop in self.loops), default=0)

    @property
    def early(self) -> int:
        """Rounds by which the copies that are issued earliest are, also in loops that wait for other loads."""
        return max((loop.get("early", loop.get("ahead", 0)) for loop in self.loops), default=0)

    @property
    def block_shared_bytes(self) -> int:
        """Shared memory of one block, static and dynamic."""
        return self.shared_bytes + self.static_shared_bytes


class CompiledPlan(_Data):
    """A plan with its binaries, in the order of `plan.kernels`."""

    plan: Plan
    binaries: tuple[Binary, ...]

    @model_validator(mode="after")
    def _one_binary_a_kernel(self) -> CompiledPlan:
        if [b.key for b in self.binaries] != [k.key for k in self.plan.kernels]:
            raise ValueError("the binaries are not those of the plan's kernels")
        for kernel, binary in zip(self.plan.kernels, self.binaries, strict=True):
            if (kernel.language == "cuda") != (not binary.ir):
                raise ValueError(f"the binary of kernel {kernel.name} must hold IR unless it is CUDA C++")
            if binary.ir and binary.entry.name != kernel.name:
                raise ValueError(f"the binary of kernel {kernel.name} is of a function {binary.entry.name[:200]}")
        for launch in self.plan.launches:
            if self.binaries[launch.kernel].ir:
                _check_arguments(self.plan.kernels[launch.kernel], self.binaries[launch.kernel].entry, launch)
        return self

    @cached_property
    def hash(self) -> str:
        """The same code and IR launched the same way are the same kernel, whatever its names are; in CUDA C++, the
        same text."""
        shape = self.plan.model_dump(mode="json", include={"target", "inputs", "buffers", "nodes", "outputs"})
        code = [
            (b.code_hash, with_plain_symbols(b.ir) if b.ir else b.key, b.num_warps, b.num_ctas, b.shared_bytes,
             b.cooperative, b.dependent)
            for b in self.binaries
        ]  # fmt: skip
        return hashlib.sha256(json.dumps([shape, code], sort_keys=True).encode()).hexdigest()[:32]


_IR_SCALARS = {"fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp64": "f64"}


def _check_arguments(kernel: Kernel, entry: EntryFunction, launch: Launch) -> None:
    """Raise ValueError if a launch's arguments do not fit the IR's parameters or their claimed divisibility."""
    passed = [
        value for (_, kind), arg in zip(kernel.signature, launch.args, strict=True) for value in _passed(kind, arg)
    ]
    if len(passed) != len(entry.parameters):
        raise ValueError(
            f"kernel {kernel.name} is passed {len(passed)} values and its IR takes {len(entry.parameters)}"
        )
    for number, ((kind, value), parameter) in enumerate(zip(passed, entry.parameters, strict=True)):
        fits = parameter.type == kind or (kind.endswith("<") and parameter.type.startswith(kind))
        if not fits:
            raise ValueError(f"parameter {number} of kernel {kernel.name} is {parameter.type[:80]}, not {kind}")
        if parameter.divisibility == 1:
            continue
        pointer = kind.startswith("!tt.ptr")
        if (
            value is None
            or value % parameter.divisibility
            or (pointer and parameter.divisibility > POINTER_DIVISIBILITY)
        ):
            raise ValueError(
                f"the IR of kernel {kernel.name} claims that parameter {number} is a multiple of "
                f"{parameter.divisibility}, but {'an address' if pointer else value} is passed that need not be"
            )


def _passed(kind: str, arg: Arg) -> Iterator[tuple[str, int | None]]:
    """(IR type, value or byte offset) of each IR parameter of an argument.

    A type that ends in "<" is a prefix; the value is None if it is not an integer.
    """
    if isinstance(arg, Pointer):
        yield "!tt.ptr<", arg.offset
    elif isinstance(arg, Scalar):
        whole = None if isinstance(arg.value, float) or kind in _IR_SCALARS else int(arg.value)
        yield _IR_SCALARS.get(kind, "i" + kind.lstrip("iu")), whole
    else:
        yield "!tt.tensordesc<", None
        yield from (("i32", size) for size in arg.shape)
        yield from (("i64", stride) for stride in arg.strides)


def load_plan_file(path: Path) -> CompiledPlan:
    """Read what `save_plan_file` wrote."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlanError(f"cannot read {path}: {error.strerror}") from error
    return validated(CompiledPlan, data)


def save_plan_file(plan: CompiledPlan, path: Path) -> None:
    path.write_text(plan.model_dump_json())


def validated(model: type[_Model], data: bytes | str) -> _Model:
    """Parse and validate a plan or a compiled plan. Raises PlanError with the first three faults."""
    what = "plan file" if model is CompiledPlan else "launch plan"
    if len(data) > MAX_FILE:
        raise PlanError(f"not a valid {what}: {len(data)} bytes; the limit for its nodes and code is {MAX_FILE}")
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:3])
        raise PlanError(f"not a valid {what}: {faults}") from error
