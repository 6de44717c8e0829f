"""What the devices exchange in a compiled program, read from its HLO text."""

import dataclasses
import math
import re
from collections.abc import Iterator

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")

_INSTRUCTION = re.compile(r" +(?:ROOT )?%?(\S+) = (.*?) ([\w-]+)\(")  # name, type, operation
_CONSTANT = re.compile(r"%?(\S+) = \w+\[\]\S* constant\((\d+)\)")


@dataclasses.dataclass
class Traffic:
    """All collectives of one kind."""

    count: int = 0
    bytes: int = 0  # of their results, on each device


def collectives(hlo: str) -> dict[str, Traffic]:
    """The collectives of one run of a program, by kind; each turn of a loop counts.

    Raises ValueError for collectives in a loop whose number of turns is not in the text.
    """
    computations, entry = _computations(hlo)
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


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """The lines of each computation by its name, and the name of the first to run."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in hlo.splitlines():
        if header := re.match(r"(ENTRY )?%?([^\s(]+) .*\{$", line):
            lines = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        else:
            lines.append(line)
    return computations, entry


def _walk(
    computations: dict[str, list[str]], name: str, times: int | None, frame: str
) -> Iterator[tuple[str, str, int, tuple[str, str]]]:
    """Kind, type of the result, and number of runs of each collective, with a key.

    Equal keys mean the same collective. A TPU's compiler spreads one over several fusions of
    the computation that calls them (`frame`): they have its channel in common.
    """
    for line in computations[name]:
        if not (instruction := _INSTRUCTION.match(line)):
            continue
        own_name, result, operation = instruction.groups()
        kind = operation.removesuffix("-done")  # of a pair, -start has its arguments, too
        if kind in KINDS:
            if times is None:
                raise ValueError(f"no number of turns is known for the loop with {own_name}")
            channel = re.search(r"channel_id=(\d+)", line)
            yield kind, result, times, (frame, channel[1] if channel else own_name)
        elif operation == "while":
            turns = _turns(line, computations)
            turns = None if None in (times, turns) else times * turns
            body = re.search(r"body=%?([\w.-]+)", line)[1]
            yield from _walk(computations, body, turns, body)
        elif operation == "conditional":
            for branch in re.findall(r"%([\w.-]+)", line.partition("branch_computations=")[2]):
                if branch in computations:
                    yield from _walk(computations, branch, times, branch)
        elif called := re.search(r"(?:calls|to_apply)=%?([\w.-]+)", line):
            if operation not in ("fusion", "call", "async-start"):
                continue  # the sum of a reduction, the order of a sort
            inner = _walk(computations, called[1], times, frame)
            for kind, inner_result, runs, key in inner:
                if called[1].startswith("all-reduce-scatter"):  # all-reduce and slice in one
                    kind, inner_result = "reduce-scatter", result
                yield kind, inner_result, runs, key


def _turns(line: str, computations: dict[str, list[str]]) -> int | None:
    """How often a loop runs its body, if the text says so."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', line):
        return int(known[1])
    # For a TPU there is only the condition: a counter, from 0, less than a constant.
    condition = "\n".join(computations[re.search(r"condition=%?([\w.-]+)", line)[1]])
    constants = dict(_CONSTANT.findall(condition))
    root = re.search(r"ROOT .* compare\(.*?, (?:.* )?%?([\w.-]+)\), direction=LT", condition)
    return int(constants[root[1]]) if root and root[1] in constants else None
