"""What the devices exchange in a compiled program, and how long, read from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.costs import Kernel
from benchmarks.hlo import COLLECTIVES, Computation, Instruction, parse, size_of
from benchmarks.targets import GPUS_OF_A_HOST
from transformer.system.hardware import Specification

# How often each of so many devices in a ring sends the bytes of its result.
SENT: dict[str, Callable[[int], float]] = {
    "all-reduce": lambda group: 2 * (group - 1) / group,
    "all-gather": lambda group: (group - 1) / group,
    "reduce-scatter": lambda group: group - 1,
    "all-to-all": lambda group: (group - 1) / group,
}


@dataclasses.dataclass
class Traffic:
    """All collectives of one kind, on each device."""

    count: int = 0
    bytes: int = 0  # of their results
    seconds: float = 0  # at least, over links and network; 0 for a device without a data sheet


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
            groups = groups_of(begun, num_devices)
            traffic[kind].seconds += times * seconds_of_links(kind, result, groups, device)
    return {kind: total for kind, total in traffic.items() if total.count}


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


def waiting_seconds(
    text: str, kernels: Sequence[Kernel], device: Specification, num_devices: int
) -> float:
    """Seconds that a device waits for others, if kernels and links take their shortest times.

    A program runs in the order of its text. A GPU begins a collective (-start), runs the kernels
    that come next, and needs the result at -done. Collectives follow one another over the links,
    and meanwhile the kernels run. With the work this is a bound of the whole; slower kernels hide
    more. A collective that is no pair of -start and -done hides behind nothing. A loop of which the
    text does not say how often it turns is taken once.
    """
    work = {kernel.instruction.name: kernel.seconds(device) for kernel in kernels}
    ends: dict[str, float] = {}  # of collectives that have begun
    now = links_free = waited = 0.0

    def seconds(first: Instruction, result: str) -> float:
        return seconds_of_links(first.kind, result, groups_of(first, num_devices), device)

    def begin(name: str, took: float) -> None:
        nonlocal links_free
        ends[name] = links_free = max(now, links_free) + took

    def wait(until: float) -> None:
        nonlocal now, waited
        waiting = max(until - now, 0)
        now, waited = now + waiting, waited + waiting

    def run(computation: Computation) -> None:
        nonlocal now, links_free
        found = computation.values()
        results = {x.operands[0]: x.type for x in found if x.opcode.endswith("-done")}
        for x in found:
            last = [*x.body.values()][-1] if x.opcode == "async-start" else x
            if x.opcode == "async-start" and last.opcode in COLLECTIVES:
                begin(x.name, seconds(last, last.type))
            elif x.opcode.endswith("-done") and x.operands[0] in ends:
                wait(ends.pop(x.operands[0]))
            elif x.runs:  # of a conditional's branches only one is among `kernels`
                for body, turns in x.runs:
                    for _ in range(turns or 1):
                        run(body)
            elif x.kind not in COLLECTIVES:
                now += work.get(x.name, 0)
            elif x.opcode.endswith("-start") and x.name in results:
                begin(x.name, seconds(x, results[x.name]))
            elif x.opcode == x.kind:  # it does not queue behind those under way
                took = seconds(x, x.type)
                links_free = max(now, links_free) + took
                wait(now + took)

    run(parse(text))
    return waited
