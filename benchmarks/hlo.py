"""The text of a compiled program (HLO), line by line."""

import math
import re
from typing import NamedTuple

_HEADER = re.compile(r"(ENTRY )?%?([\w.-]+) \(.*\{$")
_INSTRUCTION = re.compile(r" +(?:ROOT )?%?([\w.-]+) = (.*?) ([a-z][a-z\d-]*)\(")
COLLECTIVES = "all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all"


class Computation(dict[str, "Instruction"]):
    """Its instructions by name, in order; and all computations of its program."""

    def __init__(self, name: str, program: "dict[str, Computation]"):
        super().__init__()
        self.name, self.program = name, program


class Instruction(NamedTuple):
    """A line of a program."""

    name: str
    type: str  # of its result, such as bf16[3,5]{1,0}, or a tuple of them
    opcode: str
    line: str
    home: Computation

    def attribute(self, name: str) -> str:
        """The x of name=%x or name="x"; "" if there is none."""
        found = re.search(rf'\b{name}=(?:"([^"]*)"|%?([\w.-]+))', self.line)
        return found[found.lastindex] if found else ""

    @property
    def operands(self) -> list[str]:
        """The names of what it reads, in order."""
        text = self.line.partition(f" {self.opcode}(")[2]
        return re.findall(r"%([\w.-]+)", text[: text.find(")")])

    def type_of(self, operand: int) -> str:
        return self.home[self.operands[operand]].type

    @property
    def kind(self) -> str:
        """The opcode without the -start or -done of a pair."""
        return self.opcode.removesuffix("-start").removesuffix("-done")

    @property
    def body(self) -> Computation | None:
        """The computation that a fusion or call consists of; None for other instructions.

        What the others call is the sum of a reduction, or the order of a sort.
        """
        if self.opcode not in ("fusion", "call", "async-start"):
            return None
        return self._named("calls", "to_apply")

    @property
    def runs(self) -> list[tuple[Computation, int | None]]:
        """The computations that it runs as programs of their own, and how often.

        None where the text does not say. A conditional runs only one of its branches.
        """
        if self.opcode == "while":
            return [(self._named("body"), self._turns())]
        if self.opcode == "conditional":
            listed = self.line.partition("branch_computations={")[2].partition("}")[0]
            branches = [self.home.program[x] for x in re.findall(r"%([\w.-]+)", listed)]
            two = ("true_computation", "false_computation")
            return [(x, 1) for x in branches or map(self._named, two)]
        return [(self.body, 1)] if self.opcode in ("call", "async-start") else []

    def _named(self, *attributes: str) -> Computation:
        (name,) = filter(None, map(self.attribute, attributes))
        return self.home.program[name]

    def _turns(self) -> int | None:
        """How often a loop runs its body, if the text says so."""
        if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', self.line):
            return int(known[1])
        if not self.attribute("condition"):
            return None
        # For a TPU there is only the condition: a counter, from 0, less than a constant.
        text = "\n".join(x.line for x in self._named("condition").values())
        less = re.search(r"ROOT .* compare\(.*?, (?:.* )?%?([\w.-]+)\), direction=LT", text)
        constants = dict(re.findall(r"%?(\S+) = \w+\[\]\S* constant\((\d+)\)", text))
        return int(constants[less[1]]) if less and less[1] in constants else None


def parse(text: str) -> Computation:
    """The computation that runs first, which knows the others."""
    program: dict[str, Computation] = {}
    entry = computation = Computation("", program)
    for line in text.splitlines():
        if header := _HEADER.match(line):
            computation = program[header[2]] = Computation(header[2], program)
            entry = computation if header[1] else entry
        elif match := _INSTRUCTION.match(line):
            computation[match[1]] = Instruction(*match.groups(), line, computation)
    return entry


def size_of(result: str) -> int:
    """The bytes of an HLO type such as bf16[3,5]{1,0}, or of a tuple of them."""
    return sum(size for size, _ in _sizes(result))


def size_in_memory(result: str) -> int:
    """The same without what a TPU keeps on its chip, which has a memory space, as S(1)."""
    return sum(size for size, layout in _sizes(result) if "S(" not in layout)


def _sizes(result: str) -> list[tuple[int, str]]:
    found = re.findall(r"\b(pred|[a-z]+(\d+)\w*)\[([\d,]*)\](\{[^}]*\})?", result)
    return [
        (math.prod(int(n) for n in dimensions.split(",") if n) * int(bits or 8) // 8, layout)
        for _, bits, dimensions, layout in found
    ]
