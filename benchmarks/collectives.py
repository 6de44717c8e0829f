"""What the devices exchange in a compiled program, read from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.hlo import Instruction, branches_of, parse, size_of, turns_of
from transformer.system.hardware import Specification

HOST = 8  # GPUs of one host, numbered one after another

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
    seconds: float = 0  # which these take at least; 0 for a device without a data sheet


def collectives(
    text: str, num_devices: int, device: Specification | None = None
) -> dict[str, Traffic]:
    """The collectives of one run of a program, by kind; each turn of a loop counts.

    Raises ValueError for collectives in a loop whose number of turns is not in the text.
    """
    computations, entry = parse(text)
    traffic: dict[str, Traffic] = {}
    seen = set()
    for kind, result, of, times, key in _walk(computations, entry, 1, entry):
        if key not in seen:
            seen.add(key)
            total = traffic.setdefault(kind, Traffic())
            total.count += times
            total.bytes += times * size_of(result)
            group = group_of(of, num_devices)
            total.sent += times * size_of(result) * SENT[kind](len(group))
            if device is not None:
                total.seconds += times * seconds_of_links(kind, result, group, device)
    return {kind: traffic[kind] for kind in KINDS if kind in traffic}


def seconds_of_links(kind: str, result: str, group: Sequence[int], device: Specification) -> float:
    """The bound of one collective, in rings of the group.

    GPUs have their numbers host by host, HOST of them in each. From one host to the next, the
    devices of a group share their ways out.
    """
    hosts = {number // HOST for number in group}
    rate = device.link
    if device.network is not None and len(hosts) > 1:
        rate = min(rate, device.network * len(group) / len(hosts))
    return size_of(result) * SENT[kind](len(group)) / rate


def group_of(instruction: Instruction, num_devices: int) -> tuple[int, ...]:
    """The numbers of the devices of one group; of all devices if the text does not say."""
    # {{0,1},{2,3}}; or [4,2]<=[2,4]T(1,0) for the numbers from 0, laid out in the second shape,
    # transposed, and then laid out in the first, a group in each row; or
    # mesh['a'=2,'b'=2] {'b'} for those that differ in b alone, where device_ids=(...) may say how
    # the numbers are laid out before they make a mesh.
    groups = instruction.line.partition("replica_groups=")[2]
    if listed := re.match(r"\{\{([\d,]+)\}", groups):
        return _numbers(listed[1])
    if shaped := re.match(r"\[([\d,]+)\]<=(\S+)", groups):
        return tuple(_layout(shaped[2]).reshape(_numbers(shaped[1]))[0].tolist())
    if named := re.match(r"mesh\[([^\]]*)\](?:, device_ids=\(([^ ]*)\))? \{([^}]*)\}", groups):
        names, sizes = zip(*re.findall(r"'([^']*)'=(\d+)", named[1]), strict=True)
        sizes = tuple(map(int, sizes))
        mesh = np.arange(math.prod(sizes)) if named[2] is None else _layout(named[2])
        others = [slice(None) if f"'{name}'" in named[3] else 0 for name in names]
        return tuple(mesh.reshape(sizes)[tuple(others)].ravel().tolist())
    return tuple(range(num_devices))


def _layout(text: str) -> np.ndarray:
    """The numbers from 0 in an order such as [2,4]T(1,0)."""
    shape, order = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text).groups()
    numbers = np.arange(math.prod(_numbers(shape))).reshape(_numbers(shape))
    return numbers.transpose(_numbers(order)) if order else numbers


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _walk(
    computations: dict[str, list[Instruction]], name: str, times: int | None, frame: str
) -> Iterator[tuple[str, str, Instruction, int, tuple[str, str]]]:
    """Kind, type of the result, instruction and number of runs of each collective, with a key.

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
            yield kind, instruction.type, begun, times, key
        elif kind == "while":
            turns = turns_of(instruction, computations)
            turns = None if None in (times, turns) else times * turns
            body = instruction.attribute("body")
            yield from _walk(computations, body, turns, body)
        elif kind == "conditional":
            for branch in branches_of(instruction):
                yield from _walk(computations, branch, times, branch)
        elif body := instruction.body:
            for kind, result, begun, runs, key in _walk(computations, body, times, frame):
                if body.startswith("all-reduce-scatter"):  # all-reduce and slice in one
                    kind, result = "reduce-scatter", instruction.type
                    key = frame, instruction.name  # all of these may have the same channel
                yield kind, result, begun, runs, key
