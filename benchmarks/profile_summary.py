"""Where the time of a training step goes: a table from a trace, by kind of work.

    python train.py --config=configs/demo.py --workdir=runs/profile --profile=100:103
    python benchmarks/profile_summary.py runs/profile

A trace times the program's instructions, most of them fusions of many operations. The text of
the compiled program, which train.py writes beside the trace, tells what each is made of, and the
`jax.named_scope`s in there where in the model that stands. On a CPU the times are those of all
threads together; of a product that XLA hands to a thread pool, only the thread that started it.
"""

import argparse
import collections
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from jax.profiler import ProfileData

from benchmarks import timing
from benchmarks.hlo import Instruction, parse
from transformer.runs import cli
from transformer.system.errors import UserError
from transformer.system.profiling import HLO_FILE, STEP

PRODUCTS, UPDATE, COPIES, OTHER = "matrix products", "update", "copies", "other"
# The last of these in an operation's name says its kind. All but the _ are scopes of the model.
SCOPES = {
    "attention": "attention",
    "add_and_norm": "add & norm",
    "dropout": "dropout, random bits",
    "_threefry": "dropout, random bits",
    "_random_bits": "dropout, random bits",
    "embedding": "embedding",
    "logits": "logits and loss",
    "loss": "logits and loss",
}
KINDS = [PRODUCTS, *dict.fromkeys(SCOPES.values()), UPDATE, COPIES, OTHER]
SCOPE = re.compile(rf"(?<![a-zA-Z])({'|'.join(SCOPES)})(?![a-zA-Z])")
# Attributes: the path of scopes and transformations to an operation; the target of a custom call.
NAME, TARGET = "op_name", "custom_call_target"
PRODUCT = re.compile(r"dot|convolution|custom-call.*(?:gemm|matmul|dot)", re.IGNORECASE)
# Their parts are instructions of their own.
CONTROL = {"while", "conditional", "async-start", "async-done", "async-update"}
WEIGHTLESS = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "broadcast", "iota"}


class Event(NamedTuple):
    """An instruction's run."""

    name: str
    start: float  # nanoseconds
    end: float


def kind(instruction: Instruction, computations: dict[str, list[Instruction]]) -> str:
    """The kind of work of an instruction; for a fusion, that of most of its parts.

    A fusion with a matrix product in it is of that product's kind.
    """
    parts = list(_parts(instruction, computations))
    products = [p for p in parts if PRODUCT.fullmatch(p.opcode + p.attribute(TARGET))]
    weighty = products or [p for p in parts if p.opcode not in WEIGHTLESS] or parts
    if all(p.opcode == "copy" for p in weighty):
        return COPIES
    named = [p.attribute(NAME) for p in weighty if p.attribute(NAME) or products]
    counts = collections.Counter(_kind_of_part(name, bool(products)) for name in named)
    return counts.most_common(1)[0][0] if counts else OTHER


def _parts(
    instruction: Instruction, computations: dict[str, list[Instruction]]
) -> Iterator[Instruction]:
    if not instruction.body:
        yield instruction
    else:
        for part in computations[instruction.body]:
            yield from _parts(part, computations)


def _kind_of_part(op_name: str, is_product: bool) -> str:
    if scopes := SCOPE.findall(op_name):
        return SCOPES[scopes[-1]]
    if is_product:
        return PRODUCTS
    # What is not differentiated is what comes after the gradient.
    return OTHER if "jvp" in op_name or not op_name else UPDATE


def read_trace(path: Path) -> tuple[list[Event], int]:
    """The runs of instructions in a trace of training steps, and the number of steps."""
    events, steps = [], 0
    for plane in ProfileData.from_file(str(path)).planes:
        is_device = plane.name.startswith("/device:")
        lines = list(plane.lines)
        # On a TPU one line has them all; on a GPU the streams have them, some lines repeat them.
        ops = [line for line in lines if line.name == "XLA Ops"]
        streams = ops or [line for line in lines if line.name.startswith("Stream")]
        for line in streams if is_device else lines:
            for event in line.events:
                steps += not is_device and event.name == STEP
                hlo_op = dict(event.stats).get("hlo_op")
                if hlo_op is not None or is_device:
                    name = event.name if hlo_op is None else str(hlo_op)
                    end = event.start_ns + event.duration_ns
                    events.append(Event(name, event.start_ns, end))
    return events, steps


def summarise(events: list[Event], steps: int, hlo: str) -> dict[str, Any]:
    """Milliseconds a step by kind of work, and the instructions that took longest."""
    computations, _ = parse(hlo)
    instructions = {x.name: x for computation in computations.values() for x in computation}
    # Kernels on a GPU are named after instructions, with other punctuation.
    canonical = {re.sub(r"\W", "_", name): name for name in instructions}
    by_kind, by_name, kinds = collections.Counter(), collections.Counter(), {}
    for event in events:
        name = canonical.get(re.sub(r"\W", "_", event.name), event.name)
        if name not in kinds:
            instruction = instructions.get(name)
            if instruction is None:
                kinds[name] = _kind_of_kernel(name)
            elif instruction.opcode in CONTROL:
                kinds[name] = None
            else:
                kinds[name] = kind(instruction, computations)
        if kinds[name] is not None:
            milliseconds = (event.end - event.start) / 1e6 / steps
            by_kind[kinds[name]] += milliseconds
            by_name[name] += milliseconds
    return {
        "steps": steps,
        "span_ms": (max(e.end for e in events) - min(e.start for e in events)) / 1e6 / steps,
        "kinds_ms": {k: by_kind[k] for k in KINDS},
        "longest": [
            {
                "instruction": name,
                "kind": kinds[name],
                "ms": milliseconds,
                "op_name": instructions[name].attribute(NAME) if name in instructions else "",
            }
            for name, milliseconds in by_name.most_common(15)
        ],
    }


def _kind_of_kernel(name: str) -> str:
    """The kind of what the program's text does not name: a library's kernel, a transfer."""
    if re.search(r"gemm|cutlass|nvjet|cublas|xmma", name, re.IGNORECASE):
        return PRODUCTS
    if re.search(r"fmha|flash|cudnn.*sdpa", name, re.IGNORECASE):
        return "attention"
    return COPIES if re.search(r"memcpy|memset", name, re.IGNORECASE) else OTHER


def find(path: Path) -> tuple[Path, Path]:
    """The newest trace in a work directory or folder, and the program's text."""
    traces = [path] if path.is_file() else sorted(path.rglob("*.xplane.pb"))
    if not traces:
        raise UserError(f"{path} holds no *.xplane.pb; make one with train.py --profile=100:103")
    trace = max(traces, key=lambda trace: trace.stat().st_mtime)
    for folder in trace.parents:
        if (folder / HLO_FILE).exists():
            return trace, folder / HLO_FILE
    raise UserError(f"there is no {HLO_FILE} above {trace}; train.py --profile=100:103 writes it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", type=Path, help="a work directory, a folder of traces, or a trace")
    parser.add_argument("--output", type=Path, help="a JSON file for the result")
    args = parser.parse_args()
    trace, hlo_file = find(args.path)
    events, steps = read_trace(trace)
    if not (events and steps):
        raise UserError(f"{trace} is no trace of a training step; make one with train.py --profile")
    result = summarise(events, steps, hlo_file.read_text())

    total = sum(result["kinds_ms"].values())
    print(f"{steps} steps in {trace}, {result['span_ms']:.2f} ms each; instructions by kind:\n")
    for name, milliseconds in sorted(result["kinds_ms"].items(), key=lambda item: -item[1]):
        print(f"{name:22} {milliseconds:10.3f} ms a step {milliseconds / total:7.1%}")
    print(f"{'all':22} {total:10.3f} ms a step\n\nThe longest instructions:\n")
    for row in result["longest"]:
        shown = row["op_name"][-80:]
        print(f"{row['ms']:8.3f} ms  {row['kind']:20} {row['instruction']:32} {shown}")
    if args.output:
        timing.write(args.output, result)


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
