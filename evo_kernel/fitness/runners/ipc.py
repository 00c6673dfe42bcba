"""Encodes requests to the GPU process: one JSON line, then the machine code that it refers to, as raw bytes.

Both ends are trusted; the plans are not, and are validated on arrival.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from pydantic import ValidationError

from evo_kernel.errors import PlanError
from evo_kernel.fitness.plan.launch_plan import Binary, CompiledPlan, Plan, validated

MAX_BLOB_BYTES = 1 << 28


def pack(fields: dict[str, Any], plans: Sequence[CompiledPlan] = ()) -> bytes:
    """Encode a request. `fields` must be JSON; plans are identified by position."""
    blobs: dict[str, bytes] = {}
    packed = []
    for plan in plans:
        binaries = []
        for binary in plan.binaries:
            digest = hashlib.sha256(binary.cubin).hexdigest()
            blobs[digest] = binary.cubin
            binaries.append(binary.model_dump(mode="json", exclude={"cubin"}) | {"cubin": digest})
        packed.append({"plan": plan.plan.model_dump_json(), "binaries": binaries})
    sizes = {digest: len(data) for digest, data in blobs.items()}
    header = json.dumps({**fields, "plans": packed, "blobs": sizes}).encode() + b"\n"
    return b"".join((header, *blobs.values()))


def unpack(file: BinaryIO) -> Iterator[dict[str, Any]]:
    """Decode requests until the file ends; `plans` are not parsed yet, `blobs` are bytes by digest."""
    while line := file.readline():
        request = json.loads(line)
        blobs = {}
        for digest, size in request["blobs"].items():
            if not 0 <= size <= MAX_BLOB_BYTES:
                raise ValueError(f"machine code of {size} bytes")
            blobs[digest] = file.read(size)
            if len(blobs[digest]) != size:
                return
        request["blobs"] = blobs
        yield request


def plan_of(request: dict[str, Any], position: int) -> CompiledPlan:
    """Parse and validate one plan of a request. Raises PlanError."""
    packed = request["plans"][position]
    plan = validated(Plan, packed["plan"])
    try:
        binaries = tuple(
            Binary.model_validate({**data, "cubin": request["blobs"][data["cubin"]]}) for data in packed["binaries"]
        )
        return CompiledPlan(plan=plan, binaries=binaries)
    except (ValidationError, KeyError) as error:
        raise PlanError(f"not a valid plan: {str(error).splitlines()[0]}") from error
