"""The text of a compiled program (HLO), line by line."""

import re
from typing import NamedTuple

_HEADER = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r" +(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z\d-]*)\(")


class Instruction(NamedTuple):
    """A line of a program."""

    name: str
    type: str  # of its result, such as bf16[3,5]{1,0}, or a tuple of them
    opcode: str
    line: str

    def attribute(self, name: str) -> str:
        """The x of name=%x or name="x"; "" if there is none."""
        found = re.search(rf'\b{name}=(?:"([^"]*)"|%?([\w.-]+))', self.line)
        return found[found.lastindex] if found else ""

    @property
    def body(self) -> str:
        """The computation that a fusion or call consists of; "" for other instructions.

        What the others call is the sum of a reduction, or the order of a sort.
        """
        if self.opcode not in ("fusion", "call", "async-start"):
            return ""
        return self.attribute("calls") or self.attribute("to_apply")


def parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    """The instructions of each computation by its name, and the name of the first to run."""
    computations: dict[str, list[Instruction]] = {}
    entry, computation = "", []
    for line in text.splitlines():
        if header := _HEADER.match(line):
            computation = computations[header[2]] = []
            entry = header[2] if header[1] else entry
        elif match := _INSTRUCTION.match(line):
            computation.append(Instruction(*match.groups(), line))
    return computations, entry
