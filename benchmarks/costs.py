"""What a compiled program reads, writes and multiplies, kernel by kernel, from its text (HLO).

A kernel is an instruction that a device runs by itself; most are fusions of many operations. What
is inside of one stays on the chip: memory sees its operands and its results. So bytes and FLOPs can
be counted without the device, and a device's bandwidth and peak then bound the time from below.
"""

import math
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.collectives import KINDS as COLLECTIVES
from benchmarks.hlo import Instruction, branches_of, parse, size_in_memory, turns_of
from benchmarks.kinds import NAME, TARGET, kind

# What no kernel is run for.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "replica-id", "copy-done", "opt-barrier", "async-done", "async-update"),
}
SLICES = ("dynamic-slice", "slice", "gather")
UPDATES = ("dynamic-update-slice", "scatter")

Computations = dict[str, list[Instruction]]


class Kernel(NamedTuple):
    """An instruction and what one run of it costs a device."""

    instruction: Instruction
    kind: str  # of work, as in a profile's summary
    runs: int  # in one run of the program
    bytes: int  # read and written
    flops: int  # of matrix products and of attention

    @property
    def op_name(self) -> str:
        return self.instruction.attribute(NAME)


def kernels(text: str, unknown_turns: Sequence[int] = ()) -> list[Kernel]:
    """The kernels of a program in the order of its text, those of loops with all their runs.

    unknown_turns: of each loop whose number of turns the text does not say, as those of a search,
    in order; 1 for those that are left. Of a conditional the branch with the most bytes counts.
    Collectives are left to collectives.py.
    """
    computations, entry = parse(text)
    return list(_kernels(computations, entry, 1, iter(unknown_turns)))


def unknown_loops(text: str) -> int:
    """How many loops there are whose number of turns the text does not say."""
    computations, _ = parse(text)
    loops = [x for found in computations.values() for x in found if x.opcode == "while"]
    return sum(turns_of(x, computations) is None for x in loops)


def _kernels(
    computations: Computations, name: str, runs: int, unknown_turns: Iterator[int]
) -> Iterator[Kernel]:
    types = {x.name: x.type for x in computations[name]}
    for x in computations[name]:
        if x.opcode in FREE or x.opcode.removesuffix("-start").removesuffix("-done") in COLLECTIVES:
            continue
        if x.opcode == "while":
            turns = turns_of(x, computations)
            runs_of_body = runs * (next(unknown_turns, 1) if turns is None else turns)
            yield from _kernels(computations, x.attribute("body"), runs_of_body, unknown_turns)
        elif x.opcode == "conditional":
            branches = [
                list(_kernels(computations, branch, runs, unknown_turns))
                for branch in branches_of(x)
            ]
            yield from max(branches, key=lambda found: sum(k.runs * k.bytes for k in found))
        elif x.opcode in ("call", "async-start"):
            yield from _kernels(computations, x.body, runs, unknown_turns)
        else:
            moved = _bytes(x, types, computations)
            yield Kernel(x, kind(x, computations), runs, moved, _flops(x, types, computations))


def _bytes(x: Instruction, types: dict[str, str], computations: Computations) -> int:
    """What one run reads and writes; an operand that it reads twice counts once."""
    if x.opcode == "copy-start":  # its result has the operand in it, too
        return size_in_memory(types[x.operands[0]]) + _first(x.type)
    if x.opcode == "custom-call":
        read = sum(size_in_memory(types[name]) for name in dict.fromkeys(x.operands))
        return read + size_in_memory(re.sub(r"\b[su]8\[\d+\]", "", x.type))  # without its workspace
    if x.opcode != "fusion":
        inside, operands = [x], {name: name for name in x.operands}
    else:
        inside = computations[x.body]
        parameters = {
            int(p.line.partition(" parameter(")[2].partition(")")[0]): p.name
            for p in inside
            if p.opcode == "parameter"
        }
        operands = {parameters[i]: name for i, name in enumerate(x.operands)}
    users: dict[str, list[Instruction]] = {}
    for part in inside:
        for name in part.operands:
            users.setdefault(name, []).append(part)
    read: dict[str, int] = {}
    for inner, outer in operands.items():
        size = min(_read(inner, users, types | _types(inside)), size_in_memory(types[outer]))
        read[outer] = max(size, read.get(outer, 0))
    return sum(read.values()) + _written(x, inside)


def _types(instructions: list[Instruction]) -> dict[str, str]:
    return {x.name: x.type for x in instructions}


def _read(name: str, users: dict[str, list[Instruction]], types: dict[str, str]) -> float:
    """How much of an operand is read: where it is only sliced, the slices."""
    size = 0
    for user in users.get(name, []):
        first = user.operands[0] == name
        if user.opcode == "bitcast":
            size += _read(user.name, users, types)
        elif user.opcode in SLICES and first:
            size += size_in_memory(user.type)
        elif user.opcode in UPDATES and first and user.operands.count(name) == 1:
            # In place; a scatter adds to what is there.
            size += size_in_memory(types[user.operands[-1]]) if user.opcode == "scatter" else 0
        else:
            return math.inf
    return size


def _written(x: Instruction, inside: list[Instruction]) -> int:
    """The result, of which an update in place writes its part."""
    by_name = {part.name: part for part in inside}
    root = next((p for p in inside if p.line.lstrip().startswith("ROOT ")), inside[-1])
    if x.opcode in UPDATES:  # by itself, it does not know the types of its operands
        return size_in_memory(x.type)
    parts = [by_name[name] for name in root.operands] if root.opcode == "tuple" else [root]
    size = 0
    for part in parts:
        while part.opcode == "bitcast" and part.operands[0] in by_name:
            part = by_name[part.operands[0]]
        if part.opcode in UPDATES:
            update = part.operands[1 if part.opcode == "dynamic-update-slice" else -1]
            size += size_in_memory(by_name[update].type)
        else:
            size += size_in_memory(part.type)
    return min(size, size_in_memory(x.type)) if x.opcode == "fusion" else size_in_memory(x.type)


def _first(tuple_type: str) -> int:
    return size_in_memory(re.match(r"\(?([^()]*?\[[\d,]*\](?:\{[^}]*\})?)", tuple_type)[1])


def _flops(x: Instruction, types: dict[str, str], computations: Computations) -> int:
    """Those of its matrix products, two for each multiplication."""
    if x.body:
        inside = computations[x.body]
        return sum(_flops(part, _types(inside), computations) for part in inside)
    if x.opcode == "dot":
        return _flops_of_product(x, types, r"lhs_contracting_dims=\{([\d,]*)\}")
    if x.opcode == "custom-call":
        return _flops_of_call(x, types)
    return 0


def _flops_of_call(x: Instruction, types: dict[str, str]) -> int:
    """Those of a library's kernel: of attention, two products forward and five backward."""
    target = x.attribute(TARGET)
    if "cublas" in target:
        return _flops_of_product(x, types, r'"lhs_contracting_dimensions":\[([\d,"]*)\]')
    if "cudnn$conv" in target:
        return _flops_of_convolution(x, types, target)
    if "fmha" in target:
        key = _dimensions(types[x.operands[1]])
        length = _dimensions(x.type)[2]  # of queries: the result begins with [B, H, T, K]
        multiplied = math.prod(key) * length  # of keys as long: T = S; heads may be fewer there
        return (10 if "Backward" in target else 4) * multiplied
    return 0


def _flops_of_product(x: Instruction, types: dict[str, str], contracting: str) -> int:
    """contracting: a pattern that finds the dimensions of the first operand that are summed."""
    left = _dimensions(types[x.operands[0]])
    summed = re.search(contracting, x.line)[1].replace('"', "")
    sums = math.prod(left[int(i)] for i in summed.split(",") if i)
    return 2 * math.prod(_dimensions(x.type)) * sums


def _flops_of_convolution(x: Instruction, types: dict[str, str], target: str) -> int:
    """Of cuDNN's, whose labels are those of the forward pass in either direction.

    Each element of the output takes one product for each place of the kernel and each of its input
    channels; those with padding count, too.
    """
    first, second = (types[name] for name in x.operands[:2])
    kernel, output = second, x.type
    if "BackwardInput" in target:
        output = first
    elif "BackwardFilter" in target:
        kernel, output = x.type, second
    labels = re.search(r"dim_labels=\w+_(\w+)->", x.line)[1]
    sizes = dict(zip(labels, _dimensions(kernel), strict=True))
    return 2 * math.prod(_dimensions(output)) * math.prod(sizes.values()) // sizes["o"]


def _dimensions(array_type: str) -> list[int]:
    return [int(n) for n in re.search(r"\[([\d,]*)\]", array_type)[1].split(",") if n]
