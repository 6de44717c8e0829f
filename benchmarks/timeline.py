"""How much of the exchange hides behind work, if a program runs in the order of its text.

A GPU begins a collective (-start), runs the kernels that come next in the text, and needs the
result at -done. Collectives follow one another over the links, and meanwhile the kernels run.
"""

from collections.abc import Sequence

from benchmarks.bounds import seconds_of
from benchmarks.collectives import KINDS, groups_of, seconds_of_links
from benchmarks.costs import Kernel
from benchmarks.hlo import Instruction, branches_of, parse, turns_of
from transformer.system.hardware import Specification


def waiting_seconds(
    text: str, kernels: Sequence[Kernel], device: Specification, num_devices: int
) -> float:
    """Seconds that a device waits for others, if kernels and links take their shortest times.

    With the work this is a bound of the whole; slower kernels hide more. A collective that is no
    pair of -start and -done hides behind nothing. A loop of which the text does not say how often
    it turns is taken once.
    """
    computations, entry = parse(text)
    work = {k.instruction.name: seconds_of(k._replace(runs=1), device) for k in kernels}
    ends: dict[str, float] = {}  # of collectives that have begun
    now = links_free = waited = 0.0

    def seconds(first: Instruction, result: str) -> float:
        kind = first.opcode.removesuffix("-start")
        return seconds_of_links(kind, result, groups_of(first, num_devices), device)

    def begin(name: str, took: float) -> None:
        nonlocal links_free
        ends[name] = links_free = max(now, links_free) + took

    def wait(until: float) -> None:
        nonlocal now, waited
        waiting = max(until - now, 0)
        now, waited = now + waiting, waited + waiting

    def run(name: str) -> None:
        nonlocal now, links_free
        results = {x.operands[0]: x.type for x in computations[name] if x.opcode.endswith("-done")}
        for x in computations[name]:
            kind = x.opcode.removesuffix("-start").removesuffix("-done")
            if x.opcode == "while":
                for _ in range(turns_of(x, computations) or 1):
                    run(x.attribute("body"))
            elif x.opcode == "conditional":
                for branch in branches_of(x):  # the kernels of others are not among `kernels`
                    run(branch)
            elif x.opcode == "async-start" and computations[x.body][-1].opcode in KINDS:
                collective = computations[x.body][-1]
                begin(x.name, seconds(collective, collective.type))
            elif x.opcode.endswith("-done") and x.operands[0] in ends:
                wait(ends.pop(x.operands[0]))
            elif x.opcode in ("call", "async-start"):
                run(x.body)
            elif kind not in KINDS:
                now += work.get(x.name, 0)
            elif x.opcode.endswith("-start") and x.name in results:
                begin(x.name, seconds(x, results[x.name]))
            elif x.opcode == kind:  # it does not queue behind those under way
                took = seconds(x, x.type)
                links_free = max(now, links_free) + took
                wait(now + took)

    run(entry)
    return waited
