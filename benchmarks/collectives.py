"""What the devices exchange in a compiled program, read from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Iterator

from benchmarks.hlo import Instruction, parse

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")


@dataclasses.dataclass
class Traffic:
    """All collectives of one kind."""

    count: int = 0
    bytes: int = 0  # of their results, on each device


def collectives(text: str) -> dict[str, Traffic]:
    """The collectives of one run of a program, by kind; each turn of a loop counts.

    Raises ValueError for collectives in a loop whose number of turns is not in the text.
    """
    computations, entry = parse(text)
    traffic: dict[str, Traffic] = {}
    seen = set()
    for kind, result, times, key in _walk(computations, entry, 1, entry):
        if key not in seen:
            seen.add(key)
            total = traffic.setdefault(kind, Traffic())
            total.count += times
            total.bytes += times * size_of(result)
    return {kind: traffic[kind] for kind in KINDS if kind in traffic}


def size_of(result: str) -> int:
    """The bytes of an HLO type such as bf16[3,5]{1,0}, or of a tuple of them."""
    size = 0
    for name, dimensions in re.findall(r"\b(pred|[a-z]+\d\w*)\[([\d,]*)\]", result):
        bits = 8 if name == "pred" else int(re.search(r"\d+", name)[0])
        size += math.prod(int(n) for n in dimensions.split(",") if n) * bits // 8
    return size


def _walk(
    computations: dict[str, list[Instruction]], name: str, times: int | None, frame: str
) -> Iterator[tuple[str, str, int, tuple[str, str]]]:
    """Kind, type of the result, and number of runs of each collective, with a key.

    Equal keys mean the same collective. A TPU's compiler spreads one over several fusions of
    the computation that calls them (`frame`): they have its channel in common.
    """
    for instruction in computations[name]:
        # Of a pair, -start has its arguments, too.
        kind = instruction.opcode.removesuffix("-done")
        if kind in KINDS:
            if times is None:
                raise ValueError(
                    f"no number of turns is known for the loop with {instruction.name}"
                )
            key = frame, instruction.attribute("channel_id") or instruction.name
            yield kind, instruction.type, times, key
        elif kind == "while":
            turns = _turns(instruction, computations)
            turns = None if None in (times, turns) else times * turns
            body = instruction.attribute("body")
            yield from _walk(computations, body, turns, body)
        elif kind == "conditional":
            branches = instruction.line.partition("branch_computations=")[2]
            for branch in re.findall(r"%([\w.-]+)", branches):
                if branch in computations:
                    yield from _walk(computations, branch, times, branch)
        elif body := instruction.body:
            for kind, result, runs, key in _walk(computations, body, times, frame):
                if body.startswith("all-reduce-scatter"):  # all-reduce and slice in one
                    kind, result = "reduce-scatter", instruction.type
                yield kind, result, runs, key


def _turns(loop: Instruction, computations: dict[str, list[Instruction]]) -> int | None:
    """How often a loop runs its body, if the text says so."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.line):
        return int(known[1])
    # For a TPU there is only the condition: a counter, from 0, less than a constant.
    condition = computations[loop.attribute("condition")]
    text = "\n".join(instruction.line for instruction in condition)
    less = re.search(r"ROOT .* compare\(.*?, (?:.* )?%?([\w.-]+)\), direction=LT", text)
    constants = dict(re.findall(r"%?(\S+) = \w+\[\]\S* constant\((\d+)\)", text))
    return int(constants[less[1]]) if less and less[1] in constants else None
