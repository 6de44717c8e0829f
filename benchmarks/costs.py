"""What a compiled program reads, writes and multiplies, kernel by kernel, from its text (HLO).

A kernel is an instruction that a device runs by itself; most are fusions of many operations. What
is inside of one stays on the chip: memory sees its operands and its results. So bytes and FLOPs can
be counted without the device, and a device's bandwidth and peak then bound the time from below.

A kernel lasts at least as long as its bytes take at the memory's speed, and its FLOPs at the
peak; then KERNEL_SECONDS more, to start it. Nobody reaches a data sheet's figures, so a share of
them counts. These are assumptions, not measurements. What lies outside of them: a small array may
still be in the cache when the next kernel reads it (the bound is then too high), arithmetic besides
products takes its time, and so do the gaps of an untuned program (it is too low).
"""

import collections
import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.hlo import COLLECTIVES, Computation, Instruction, parse, size_in_memory
from benchmarks.kinds import TARGET, kind
from transformer.system.hardware import Specification

# What no kernel is run for.
FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all"),
    *("partition-id", "replica-id", "copy-done", "opt-barrier", "async-done", "async-update"),
}
SLICES = ("dynamic-slice", "slice", "gather")
UPDATES = ("dynamic-update-slice", "scatter")
MEMORY_SHARE = 4.0 / 4.8  # of the bandwidth: 4.0 TB/s of an H200
PEAK_SHARE = 700 / 989  # of the peak: 700 TFLOP/s of an H100 or H200
KERNEL_SECONDS = 2e-6


class Kernel(NamedTuple):
    """An instruction and what one run of it costs a device."""

    instruction: Instruction
    kind: str  # of work, as in a profile's summary
    runs: int  # in one run of the program
    bytes: int  # read and written
    flops: int  # of matrix products and of attention

    def seconds(self, device: Specification) -> float:
        """The bound of one run."""
        memory = self.bytes / (MEMORY_SHARE * device.bandwidth)
        return max(memory, self.flops / (PEAK_SHARE * device.bfloat16)) + KERNEL_SECONDS


def kernels(text: str, unknown_turns: Sequence[int] = ()) -> list[Kernel]:
    """The kernels of a program in the order of its text, those of loops with all their runs.

    unknown_turns: of each loop whose number of turns the text does not say, as those of a search,
    in order; 1 for those that are left. Of a conditional the branch with the most bytes counts.
    Collectives are left to collectives.py.
    """
    return list(_kernels(parse(text), 1, iter(unknown_turns)))


def unknown_loops(text: str) -> int:
    """How many loops there are whose number of turns the text does not say."""
    found = parse(text).program.values()
    return sum(turns is None for each in found for x in each.values() for _, turns in x.runs)


def _kernels(computation: Computation, runs: int, unknown_turns: Iterator[int]) -> Iterator[Kernel]:
    for x in computation.values():
        if x.opcode in FREE or x.kind in COLLECTIVES:
            continue
        if inner := x.runs:
            branches = []
            for body, turns in inner:
                turns = next(unknown_turns, 1) if turns is None else turns
                branches.append(list(_kernels(body, runs * turns, unknown_turns)))
            yield from max(branches, key=lambda found: sum(k.runs * k.bytes for k in found))
        else:
            yield Kernel(x, kind(x), runs, _bytes(x), _flops(x))


def _bytes(x: Instruction) -> int:
    """What one run reads and writes; an operand that it reads twice counts once."""
    if x.opcode == "copy-start":  # its result has the operand in it, too
        first = re.match(r"\(?([^()]*?\[[\d,]*\](?:\{[^}]*\})?)", x.type)[1]
        return size_in_memory(x.type_of(0)) + size_in_memory(first)
    types = {name: x.home[name].type for name in x.operands}
    if x.opcode == "custom-call":  # without its workspace
        types["its result"] = re.sub(r"\b[su]8\[\d+\]", "", x.type)
        segments = _segments(x)  # each has softmax's sums, float32, of which it uses its own share
        shares = (
            re.sub(r"f32\[(\d+)", lambda rows: f"f32[{int(rows[1]) // segments}", text)
            for text in types.values()
        )
        return sum(map(size_in_memory, shares))
    if x.opcode != "fusion":
        inside, operands = [x], {name: name for name in types}
    else:
        inside = list(x.body.values())
        parameters = {
            int(p.line.partition(" parameter(")[2].partition(")")[0]): p.name
            for p in inside
            if p.opcode == "parameter"
        }
        operands = {parameters[i]: name for i, name in enumerate(x.operands)}
    users = collections.defaultdict(list)
    for part in inside:
        for name in part.operands:
            users[name].append(part)
    read: dict[str, int] = {}
    for inner, outer in operands.items():
        size = min(_read(inner, users), size_in_memory(types[outer]))
        read[outer] = max(size, read.get(outer, 0))
    return sum(read.values()) + _written(x, inside)


def _read(name: str, users: dict[str, list[Instruction]]) -> float:
    """How much of an operand is read: where it is only sliced, the slices."""
    size = 0
    for user in users.get(name, []):
        first = user.operands[0] == name
        if user.opcode == "bitcast":
            size += _read(user.name, users)
        elif user.opcode in SLICES and first:
            size += size_in_memory(user.type)
        elif user.opcode in UPDATES and first and user.operands.count(name) == 1:
            # In place; a scatter adds to what is there.
            size += size_in_memory(user.type_of(-1)) if user.opcode == "scatter" else 0
        else:
            return math.inf
    return size


def _written(x: Instruction, inside: list[Instruction]) -> int:
    """The result, of which an update in place writes its part."""
    if x.opcode != "fusion":
        return size_in_memory(x.type)
    root = next((p for p in inside if p.line.lstrip().startswith("ROOT ")), inside[-1])
    parts = [x.body[name] for name in root.operands] if root.opcode == "tuple" else [root]
    size = 0
    for part in parts:
        while part.opcode == "bitcast" and part.operands[0] in x.body:
            part = x.body[part.operands[0]]
        update = {"dynamic-update-slice": 1, "scatter": -1}.get(part.opcode)
        size += size_in_memory(part.type if update is None else part.type_of(update))
    return min(size, size_in_memory(x.type))


def _flops(x: Instruction) -> int:
    """Those of its matrix products, two for each multiplication."""
    if x.body is not None:
        return sum(map(_flops, x.body.values()))
    target = x.attribute(TARGET) if x.opcode == "custom-call" else ""
    if x.opcode == "dot" or "cublas" in target:
        summed = re.search(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d,"]*)[\]}]', x.line)[1]
        left = _dimensions(x.type_of(0))
        sums = math.prod(left[int(i)] for i in re.findall(r"\d+", summed))
        return 2 * math.prod(_dimensions(x.type)) * sums
    if "fmha" in target:  # attention: two products forward and five backward
        key = _dimensions(x.type_of(1))
        # Of queries: the result begins with [B, H, T, K]. Segments of one length have the least.
        length = _dimensions(x.type)[2] / _segments(x)
        multiplied = math.prod(key) * length  # of keys as long: T = S; heads may be fewer there
        return round((10 if "Backward" in target else 4) * multiplied)
    return 0


def _segments(x: Instruction) -> int:
    """The most segments of a row of cuDNN's packed attention."""
    found = re.search(r'"max_seg_per_batch": ?(\d+)', x.line)
    return int(found[1]) if found else 1


def _dimensions(array_type: str) -> list[int]:
    return [int(n) for n in re.search(r"\[([\d,]*)\]", array_type)[1].split(",") if n]


def bounds_by_kind(kernels: Sequence[Kernel], device: Specification) -> list[dict[str, Any]]:
    """Sums over the kernels of each kind of work, the longest first."""
    rows: dict[str, dict[str, Any]] = {}
    for k in kernels:
        row = rows.setdefault(k.kind, dict(kind=k.kind, ms=0.0, kernels=0, bytes=0, flops=0))
        row["ms"] += 1e3 * k.runs * k.seconds(device)
        for name, each in {"kernels": 1, "bytes": k.bytes, "flops": k.flops}.items():
            row[name] += k.runs * each
    return sorted(rows.values(), key=lambda row: -row["ms"])


def turns_of_search(loops: int, steps: int) -> list[int]:
    """How often each loop of a search turns for outputs of so many tokens, none of them shorter.

    Loops follow one another with room for 16, 32, 64, ... tokens; the last is for the few sentences
    that go on alone, of which there are none.
    """
    ends = [min(steps, 16 * 2**i) for i in range(max(loops - 2, 0))]
    ends = [0, *ends, steps]
    return [*(after - before for before, after in itertools.pairwise(ends)), 0]
