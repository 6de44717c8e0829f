"""What the devices exchange in a compiled program, read from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.hlo import Instruction, branches_of, parse, size_of, turns_of
from benchmarks.targets import GPUS_OF_A_HOST
from transformer.system.hardware import Specification

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
    seconds: float = 0  # at least, over links and network; 0 for a device without a data sheet


def collectives(
    text: str, num_devices: int, device: Specification | None = None
) -> dict[str, Traffic]:
    """The collectives of one run of a program, by kind; each turn of a loop counts.

    Raises ValueError for collectives in a loop whose number of turns is not in the text.
    """
    computations, entry = parse(text)
    traffic: dict[str, Traffic] = {}
    seen = set()
    for kind, result, begun, times, key in _walk(computations, entry, 1, entry):
        if key not in seen:
            seen.add(key)
            total = traffic.setdefault(kind, Traffic())
            total.count += times
            total.bytes += times * size_of(result)
            groups = groups_of(begun, num_devices)
            total.sent += times * size_of(result) * SENT[kind](len(groups[0]))
            if device is not None:
                total.seconds += times * seconds_of_links(kind, result, groups, device)
    return {kind: traffic[kind] for kind in KINDS if kind in traffic}


def seconds_of_links(
    kind: str, result: str, groups: Sequence[Sequence[int]], device: Specification
) -> float:
    """The bound of one collective: that of the slowest of its groups."""
    factors = [_factors(kind, group, device.network is not None) for group in groups]
    network = device.network or math.inf
    size = size_of(result)
    return max(size * max(inside / device.link, out / network) for inside, out in factors)


def _factors(kind: str, group: Sequence[int], knows_hosts: bool) -> tuple[float, float]:
    """How often a device sends the bytes of its result: inside of its host, and out of it.

    As is best for the network: what a host's devices have in common leaves it once, a part of it
    through each device's own port.
    """
    hosts = len({number // GPUS_OF_A_HOST for number in group}) if knows_hosts else 1
    beside = len(group) / hosts
    if kind == "collective-permute":  # a group is a pair
        return (1, 0) if hosts == 1 else (0, 1)
    inside, out = SENT[kind](beside), SENT[kind](hosts)
    if kind == "reduce-scatter":  # the part of a host has the results of all hosts
        return hosts * inside, out
    if kind == "all-to-all":
        return inside / hosts, out
    return inside, out / beside


def groups_of(instruction: Instruction, num_devices: int) -> list[tuple[int, ...]]:
    """The numbers of the devices that exchange data with each other, group by group.

    All devices are one group if the text names none. Raises ValueError for text of another form.
    """
    # {{0,1},{2,3}}; or [4,2]<=[2,4]T(1,0) for the numbers from 0, laid out in the second shape,
    # transposed, and then laid out in the first, a group in each row; or
    # mesh['a'=2,'b'=4] {'b'} for those that differ in b alone, {'b':(2)2} in the last of two parts
    # of b; device_ids=(...) may say how the numbers lie before they make a mesh.
    _, name, text = instruction.line.partition("replica_groups=")
    if not name:
        _, name, text = instruction.line.partition("source_target_pairs=")
    if not name or text.startswith("{}"):
        return [tuple(range(num_devices))]
    if listed := re.match(r"\{(\{[\d,]+\},?)+\}", text):
        return [_numbers(group) for group in re.findall(r"\{([\d,]+)\}", listed[0])]
    if shaped := re.match(r"\[([\d,]+)\]<=(\S+)", text):
        return _rows(_layout(shaped[2]).reshape(_numbers(shaped[1])))
    if named := re.match(r"mesh\[([^\]]*)\](?:, device_ids=\((\S*)\))? \{([^}]*)\}", text):
        sizes = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", named[1])}
        # Every axis in three: the one in the middle differs inside of a group.
        parts = {name: (1, 1, size) for name, size in sizes.items()}
        for name, before, own in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", named[3]):
            before, own = int(before or 1), int(own or sizes[name])
            parts[name] = before, own, sizes[name] // (before * own)
        shape = [size for three in parts.values() for size in three]
        numbers = _layout(named[2] or f"[{math.prod(shape)}]").reshape(shape)
        inner = list(range(1, len(shape), 3))
        mesh = np.moveaxis(numbers, inner, range(-len(inner), 0))
        return _rows(mesh.reshape(-1, math.prod(shape[1::3])))
    raise ValueError(f"groups of devices in another form than expected: {text[:80]}")


def _layout(text: str) -> np.ndarray:
    """The numbers from 0 in an order such as [2,4]T(1,0), or those of a list."""
    laid = re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if not laid:
        return np.array(_numbers(text))
    shape, order = _numbers(laid[1]), laid[2]
    numbers = np.arange(math.prod(shape)).reshape(shape)
    return numbers.transpose(_numbers(order)) if order else numbers


def _rows(groups: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(group) for group in groups.tolist()]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def _walk(
    computations: dict[str, list[Instruction]], name: str, times: int | None, frame: str
) -> Iterator[tuple[str, str, Instruction, int, tuple[str, str]]]:
    """Kind, type of the result, instruction and number of runs of each collective, with a key.

    Equal keys mean the same collective. A TPU's compiler spreads one over several fusions of
    the computation that calls them (`frame`): they have its chain or channel in common. Those of
    `jax.shard_map` all have channel 1.
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
            shared = instruction.attribute("chain_id") or instruction.attribute("channel_id")
            key = frame, instruction.name if name == frame else shared or instruction.name
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
