"""The text of a compiled program (HLO), line by line."""

import math
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
    def operands(self) -> list[str]:
        """The names of what it reads, in order."""
        text = self.line.partition(f" {self.opcode}(")[2]
        return re.findall(r"%([\w.-]+)", text[: text.find(")")])

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


def size_of(result: str) -> int:
    """The bytes of an HLO type such as bf16[3,5]{1,0}, or of a tuple of them."""
    return sum(size for size, _ in _sizes(result))


def size_in_memory(result: str) -> int:
    """The same without what a TPU keeps on its chip, which has a memory space, as S(1)."""
    return sum(size for size, layout in _sizes(result) if "S(" not in layout)


def _sizes(result: str) -> list[tuple[int, str]]:
    return [
        (math.prod(int(n) for n in dimensions.split(",") if n) * bits_of(name) // 8, layout)
        for name, dimensions, layout in re.findall(
            r"\b(pred|[a-z]+\d\w*)\[([\d,]*)\](\{[^}]*\})?", result
        )
    ]


def bits_of(name: str) -> int:
    return 8 if name == "pred" else int(re.search(r"\d+", name)[0])


def turns_of(loop: Instruction, computations: dict[str, list[Instruction]]) -> int | None:
    """How often a loop runs its body, if the text says so."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.line):
        return int(known[1])
    # For a TPU there is only the condition: a counter, from 0, less than a constant.
    condition = computations[loop.attribute("condition")]
    text = "\n".join(instruction.line for instruction in condition)
    less = re.search(r"ROOT .* compare\(.*?, (?:.* )?%?([\w.-]+)\), direction=LT", text)
    constants = dict(re.findall(r"%?(\S+) = \w+\[\]\S* constant\((\d+)\)", text))
    return int(constants[less[1]]) if less and less[1] in constants else None


def branches_of(conditional: Instruction) -> list[str]:
    """The computations of which a conditional runs one."""
    line = conditional.line
    return re.findall(
        r"%([\w.-]+)", line.partition("branch_computations={")[2].partition("}")[0]
    ) or [conditional.attribute(f"{which}_computation") for which in ("true", "false")]
