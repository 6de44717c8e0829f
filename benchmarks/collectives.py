"""What the devices exchange in a compiled program, read from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator

from benchmarks.hlo import Instruction, branches_of, parse, size_of, turns_of

# How often each of so many devices in a ring sends the bytes of its result.
SENT: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda group: 2 * (group - 1) / group,
    "all-gather": lambda group: (group - 1) / group,
    "reduce-scatter": lambda group: group - 1,
    "collective-permute": lambda _: 1,
    "all-to-all": lambda group: (group - 1) / group,
}
KINDS = tuple(SENT)


@dataclasses.dataclass
class Traffic:
    """All collectives of one kind, on each device."""

    count: int = 0
    bytes: int = 0  # of their results
    sent: float = 0  # bytes over the links, in rings of the groups


def collectives(text: str, num_devices: int) -> dict[str, Traffic]:
    """The collectives of one run of a program, by kind; each turn of a loop counts.

    Raises ValueError for collectives in a loop whose number of turns is not in the text.
    """
    computations, entry = parse(text)
    traffic: dict[str, Traffic] = {}
    seen = set()
    for kind, result, group, times, key in _walk(computations, entry, 1, entry):
        if key not in seen:
            seen.add(key)
            total = traffic.setdefault(kind, Traffic())
            total.count += times
            total.bytes += times * size_of(result)
            total.sent += times * size_of(result) * SENT[kind](group or num_devices)
    return {kind: traffic[kind] for kind in KINDS if kind in traffic}


def group_size(instruction: Instruction) -> int | None:
    """How many devices exchange data with each other; None if the text does not say: all."""
    # {{0,1},{2,3}}; or [2,2]<=[4] for the numbers from 0 in that shape, a group in each row; or
    # mesh['a'=2,'b'=2] {'b'} for those that differ in b alone.
    groups = instruction.line.partition("replica_groups=")[2]
    if listed := re.match(r"\{\{([\d,]+)\}", groups):
        return listed[1].count(",") + 1
    if shaped := re.match(r"\[(?:\d+,)*(\d+)\]<=", groups):
        return int(shaped[1])
    if named := re.match(r"mesh\[([^\]]*)\][^{]*\{([^}]*)\}", groups):
        sizes = dict(re.findall(r"'([^']*)'=(\d+)", named[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']*)'", named[2]))
    return None


def _walk(
    computations: dict[str, list[Instruction]], name: str, times: int | None, frame: str
) -> Iterator[tuple[str, str, int | None, int, tuple[str, str]]]:
    """Kind, type of the result, group_size and number of runs of each collective, with a key.

    Equal keys mean the same collective. A TPU's compiler spreads one over several fusions of
    the computation that calls them (`frame`): they have its channel in common.
    """
    named = {instruction.name: instruction for instruction in computations[name]}
    for instruction in computations[name]:
        # Of a pair, -done has the type of the result, -start the groups.
        kind = instruction.opcode.removesuffix("-done")
        if kind in KINDS:
            if times is None:
                raise ValueError(
                    f"no number of turns is known for the loop with {instruction.name}"
                )
            key = frame, instruction.attribute("channel_id") or instruction.name
            begun = instruction if kind == instruction.opcode else named[instruction.operands[0]]
            yield kind, instruction.type, group_size(begun), times, key
        elif kind == "while":
            turns = turns_of(instruction, computations)
            turns = None if None in (times, turns) else times * turns
            body = instruction.attribute("body")
            yield from _walk(computations, body, turns, body)
        elif kind == "conditional":
            for branch in branches_of(instruction):
                yield from _walk(computations, branch, times, branch)
        elif body := instruction.body:
            for kind, result, group, runs, key in _walk(computations, body, times, frame):
                if body.startswith("all-reduce-scatter"):  # all-reduce and slice in one
                    kind, result = "reduce-scatter", instruction.type
                    key = frame, instruction.name  # all of these may have the same channel
                yield kind, result, group, runs, key
