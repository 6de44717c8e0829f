"""What the devices exchange in a compiled program, read from its HLO text."""

import dataclasses
from collections.abc import Iterator

from benchmarks.hlo import Instruction, branches_of, parse, size_of, turns_of

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
            turns = turns_of(instruction, computations)
            turns = None if None in (times, turns) else times * turns
            body = instruction.attribute("body")
            yield from _walk(computations, body, turns, body)
        elif kind == "conditional":
            for branch in branches_of(instruction):
                yield from _walk(computations, branch, times, branch)
        elif body := instruction.body:
            for kind, result, runs, key in _walk(computations, body, times, frame):
                if body.startswith("all-reduce-scatter"):  # all-reduce and slice in one
                    kind, result = "reduce-scatter", instruction.type
                yield kind, result, runs, key
