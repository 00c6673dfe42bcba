"""Straight-line programs over slices of the inputs that compute a region of an output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from evo_kernel.fitness.correctness.slicing import contractions, gathers, regions, views  # noqa: F401  their rules
from evo_kernel.fitness.correctness.slicing.regions import Region
from evo_kernel.fitness.correctness.slicing.rules import SliceStep, step_for
from evo_kernel.fitness.correctness.slicing.tracing import NotSliceable, TraceValue
from evo_kernel.tasks.task import Input

_INSTRUCTIONS = 50_000
"""Longer programs are abandoned: planning them would take too long."""


@dataclass(frozen=True)
class _Instruction:
    compute: Callable[..., torch.Tensor]
    needs: tuple[int, ...]  # numbers of instructions
    elements: int  # of the result
    flops: float = 0.0
    read: tuple[int, Region] | None = None  # if it only reads a region of an input: which


@dataclass(frozen=True)
class Program:
    """Instructions in order; the last one gives the output's region. `reads`: the required region of each input."""

    reads: Mapping[int, Region]
    dtype: torch.dtype
    flops: float
    elements: float  # of all intermediate results
    _instructions: Sequence[_Instruction]
    _frees: Sequence[Sequence[int]]  # after each instruction, values that are no longer needed

    def __len__(self) -> int:
        return len(self._instructions)

    def run(self, pieces: Mapping[int, torch.Tensor]) -> torch.Tensor:
        """The region of the output, from the input regions named in `reads`, which are not modified."""
        results: dict[int, torch.Tensor] = {}
        for number, instruction in enumerate(self._instructions):
            given = [results[needed] for needed in instruction.needs]
            if instruction.read is not None:
                given = [pieces[instruction.read[0]]]
            results[number] = instruction.compute(*given)
            del given
            for gone in self._frees[number]:
                del results[gone]
        return results[len(self._instructions) - 1]


class Slicer:
    """Plans programs for regions of a graph's values. `inputs`: the reference's; integer ones are read."""

    def __init__(self, inputs: Sequence[Input]) -> None:
        self._inputs = inputs
        self._known: dict[tuple[object, ...], torch.Tensor] = {}

    def known(self, value: TraceValue, region: Region | None = None) -> torch.Tensor:
        """A region of a value that depends on integer inputs only, or all of it."""
        if value.node.is_floating:
            raise NotSliceable("it needs floating-point values")
        region = regions.everything(value.shape) if region is None else region
        key = (value, regions.key_of(region))
        if key not in self._known:
            program = self.program(value, region)
            self._known[key] = program.run(
                {number: regions.take(self._tensor(number), wanted) for number, wanted in program.reads.items()}
            )
        return self._known[key]

    def _tensor(self, number: int) -> torch.Tensor:
        given = self._inputs[number]
        assert isinstance(given, torch.Tensor)
        return given

    def program(self, value: TraceValue, region: Region) -> Program:
        """The program for a region; each part of each value is computed once. Raises NotSliceable."""
        instructions: list[_Instruction] = []
        numbers: dict[tuple[object, ...], int] = {}
        stack: list[tuple[TraceValue, Region, SliceStep | None]] = [(value, region, None)]
        while stack:
            needed, part, step = stack.pop()
            key = (needed, regions.key_of(part))
            if key in numbers:
                continue
            size = regions.count(part)
            if needed.node.input is not None:
                instructions.append(_Instruction(lambda piece: piece, (), size, read=(needed.node.input, part)))
            elif step is not None:
                needs = tuple(numbers[source, regions.key_of(source_part)] for source, source_part in step.needs)
                instructions.append(_Instruction(step.compute, needs, size, step.flops))
            else:
                step = self._step(needed, part)
                stack += [(needed, part, step), *((*need, None) for need in reversed(step.needs))]
                continue
            numbers[key] = len(instructions) - 1
            if len(instructions) > _INSTRUCTIONS:
                raise NotSliceable("it has too many operations")
        return _finished(instructions, value.dtype)

    def _step(self, value: TraceValue, region: Region) -> SliceStep:
        constant = value.node.constant
        if constant is not None:
            return SliceStep([], lambda: regions.take(constant, region))
        try:
            return step_for(value, region, self.known)
        except NotSliceable:
            raise
        except Exception as error:  # a rule does not support this reference; the whole reference is used instead
            raise NotSliceable(f"no slice of {value.node.name}: {type(error).__name__}: {error}") from error


def _finished(instructions: Sequence[_Instruction], dtype: torch.dtype) -> Program:
    """Merge reads, so that every input is read once, as the smallest region that contains everything needed."""
    read_regions: dict[int, list[Region]] = {}
    for instruction in instructions:
        if instruction.read is not None:
            read_regions.setdefault(instruction.read[0], []).append(instruction.read[1])
    reads = {number: regions.united(parts) for number, parts in read_regions.items()}
    last: dict[int, int] = {}
    for number, instruction in enumerate(instructions):
        last |= dict.fromkeys(instruction.needs, number)
    frees: list[list[int]] = [[] for _ in instructions]
    for needed, number in last.items():
        frees[number].append(needed)
    return Program(
        reads=reads,
        dtype=dtype,
        flops=sum(instruction.flops for instruction in instructions),
        elements=sum(instruction.elements for instruction in instructions),
        _instructions=[_reading(instruction, reads) for instruction in instructions],
        _frees=frees,
    )


def _reading(instruction: _Instruction, reads: Mapping[int, Region]) -> _Instruction:
    if instruction.read is None:
        return instruction
    number, part = instruction.read
    inside = tuple(regions.places_in(whole, wanted) for whole, wanted in zip(reads[number], part, strict=True))
    return replace(instruction, compute=lambda piece: regions.take(piece, inside))
