"""What the devices exchange in a compiled program, and how long, read from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator

from benchmarks.hlo import COLLECTIVES, Computation, Instruction, parse, size_of
from transformer.system.hardware import Specification

# How often each of so many devices in a ring sends the bytes of its result.
SENT: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda group: 2 * (group - 1) / group,
    "all-gather": lambda group: (group - 1) / group,
    "reduce-scatter": lambda group: group - 1,
    "all-to-all": lambda group: (group - 1) / group,
    "collective-permute": lambda group: 1,
}


@dataclasses.dataclass
class Traffic:
    """All collectives of one kind, on each device."""

    count: int = 0
    bytes: int = 0  # of their results
    seconds: float = 0  # at least, over links; 0 for a device without a data sheet


def collectives(
    text: str, num_devices: int, device: Specification | None = None
) -> dict[str, Traffic]:
    """The collectives of one run of a program, by kind; each turn of a loop counts.

    Raises ValueError for collectives in a loop whose number of turns is not in the text.
    """
    entry = parse(text)
    traffic = {kind: Traffic() for kind in COLLECTIVES}
    # Equal keys mean the same collective, see _walk.
    found = {key: each for *each, key in reversed([*_walk(entry, 1, entry)])}
    for kind, result, begun, times in found.values():
        traffic[kind].count += times
        traffic[kind].bytes += times * size_of(result)
        if device is not None:
            size = group_size(begun, num_devices)
            traffic[kind].seconds += times * SENT[kind](size) * size_of(result) / device.link
    return {kind: total for kind, total in traffic.items() if total.count}


def group_size(instruction: Instruction, num_devices: int) -> int:
    """The number of devices that exchange data with each other; all if the text names no groups.

    Raises ValueError for text of another form.
    """
    # {{0,1},{2,3}}; or [4,2]<=[8] for 4 groups of 2; or mesh['a'=2,'b'=4] {'b'} for those that
    # differ in b, {'b':(2)2} in the last of two parts of b.
    _, name, text = instruction.line.partition("replica_groups=")
    if not name or text.startswith("{}"):
        return num_devices
    if listed := re.match(r"\{\{([\d,]+)\}", text):
        return len(listed[1].split(","))
    if shaped := re.match(r"\[\d+,(\d+)\]<=", text):
        return int(shaped[1])
    if named := re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(\S*\))? \{([^}]*)\}", text):
        sizes = dict(re.findall(r"'([^']*)'=(\d+)", named[1]))
        parts = re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", named[2])
        return math.prod(int(part or sizes[axis]) for axis, part in parts)
    raise ValueError(f"groups of devices in another form than expected: {text[:80]}")


def _walk(
    computation: Computation, times: int | None, frame: Computation
) -> Iterator[tuple[str, str, Instruction, int, tuple[str, str]]]:
    """Kind, type of the result, instruction and number of runs of each collective, with a key.

    Equal keys mean the same collective. A TPU's compiler spreads one over several fusions of
    the computation that calls them (`frame`): they have its chain or channel in common. Those of
    `jax.shard_map` all have channel 1.
    """
    for x in computation.values():
        # Of a pair, -done has the type of the result, -start the groups.
        if (kind := x.opcode.removesuffix("-done")) in COLLECTIVES:
            if times is None:
                raise ValueError(f"no number of turns is known for the loop with {x.name}")
            shared = x.attribute("chain_id") or x.attribute("channel_id")
            key = frame.name, x.name if computation is frame else shared or x.name
            begun = x if kind == x.opcode else computation[x.operands[0]]
            yield kind, x.type, begun, times, key
        elif x.body is not None:
            for kind, result, begun, runs, key in _walk(x.body, times, frame):
                if x.body.name.startswith("all-reduce-scatter"):  # all-reduce and slice in one
                    kind, result = "reduce-scatter", x.type
                    key = frame.name, x.name  # all of these may have the same channel
                yield kind, result, begun, runs, key
        else:
            for body, turns in x.runs:
                turns = None if None in (times, turns) else times * turns
                yield from _walk(body, turns, body)
