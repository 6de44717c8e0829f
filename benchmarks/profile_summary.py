"""Where the time of a training step goes: a table from a trace, by kind of work.

    python train.py --config=configs/demo.py --workdir=runs/profile --profile=100:103
    python benchmarks/profile_summary.py runs/profile

A trace times the program's instructions, most of them fusions of many operations. The text of
the compiled program, which train.py writes beside the trace, tells what each is made of, and the
`jax.named_scope`s in there where in the model that stands. On a CPU the times are those of all
threads together; of a product that XLA hands to a thread pool, only the thread that started it.
On several GPUs or TPUs they are means of the devices.

Beside each time stands the bound of costs.py, the shortest one under its assumptions, where the
device's data sheet is known (transformer/system/hardware.py). So the table says where time is lost.
"""

import argparse
import collections
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
from jax.profiler import ProfileData

from benchmarks import timing
from benchmarks.costs import bounds_by_kind, kernels
from benchmarks.hlo import parse
from benchmarks.kinds import CONTROL, KINDS, NAME, kind, kind_of_kernel
from transformer.runs import cli
from transformer.system.errors import UserError
from transformer.system.hardware import SPECIFICATIONS, Specification, specification
from transformer.system.paths import argument
from transformer.system.profiling import HLO_FILE, STEP


class Event(NamedTuple):
    """An instruction's run."""

    name: str
    start: float  # nanoseconds
    end: float


class Trace(NamedTuple):
    """The runs of instructions in some training steps."""

    events: list[Event]
    steps: int
    devices: int = 1  # whose runs these are


def read_trace(path: Path) -> Trace:
    events, steps, devices = [], 0, 0
    for plane in ProfileData.from_file(str(path)).planes:
        is_device = plane.name.startswith("/device:")
        lines = list(plane.lines)
        # On a TPU one line has them all; on a GPU the streams have them, some lines repeat them.
        ops = [line for line in lines if line.name == "XLA Ops"]
        streams = ops or [line for line in lines if line.name.startswith("Stream")]
        devices += is_device and bool(streams)
        for line in streams if is_device else lines:
            for event in line.events:
                steps += not is_device and event.name == STEP
                hlo_op = dict(event.stats).get("hlo_op")
                if hlo_op is not None or is_device:
                    name = event.name if hlo_op is None else str(hlo_op)
                    end = event.start_ns + event.duration_ns
                    events.append(Event(name, event.start_ns, end))
    return Trace(events, steps, max(devices, 1))


def summarise(trace: Trace, hlo: str, device: Specification | None = None) -> dict[str, Any]:
    """Milliseconds a step by kind of work, and the instructions that took longest.

    device: if known, there are also the bounds by kind of work, "bounds_ms".
    """
    events, steps = trace.events, trace.steps
    program = parse(hlo).program
    instructions = {name: x for each in program.values() for name, x in each.items()}
    # Kernels on a GPU are named after instructions, with other punctuation.
    canonical = {re.sub(r"\W", "_", name): name for name in instructions}
    by_kind, by_name, kinds = collections.Counter(), collections.Counter(), {}
    for event in events:
        name = canonical.get(re.sub(r"\W", "_", event.name), event.name)
        by_name[name] += (event.end - event.start) / 1e6 / steps / trace.devices
    for name in list(by_name):
        if name not in instructions:
            kinds[name] = kind_of_kernel(name)
        elif instructions[name].opcode in CONTROL:
            del by_name[name]
            continue
        else:
            kinds[name] = kind(instructions[name])
        by_kind[kinds[name]] += by_name[name]
    bounds_ms = {}
    if device is not None:
        rows = {row["kind"]: row["ms"] for row in bounds_by_kind(kernels(hlo), device)}
        bounds_ms["bounds_ms"] = dict.fromkeys(KINDS, 0.0) | rows
    return bounds_ms | {
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


def table(result: dict[str, Any]) -> str:
    """Measured and bound by kind of work, the longest first."""
    kinds, bounds_ms = result["kinds_ms"], result.get("bounds_ms")
    rows = [*sorted(kinds.items(), key=lambda item: -item[1]), ("all", sum(kinds.values()))]
    lines = [f"{'kind of work':22} {'ms a step':>10}   share"]
    if bounds_ms:
        bounds_ms = bounds_ms | {"all": sum(bounds_ms.values())}
        lines[0] += "   bound ms  time / bound"
    for name, ms in rows:
        line = f"{name:22} {ms:10.3f} {ms / rows[-1][1]:7.1%}"
        if bounds_ms:
            ratio = f"{ms / bounds_ms[name]:.2f}" if bounds_ms[name] else "-"
            line += f" {bounds_ms[name]:10.3f}  {ratio:>12}"
        lines.append(line)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "path", type=argument, help="a work directory, a folder of traces, or a trace"
    )
    parser.add_argument("--output", type=argument, help="a JSON file for the result")
    parser.add_argument(
        "--device", choices=SPECIFICATIONS, help="whose bounds to show; this machine's if not given"
    )
    args = parser.parse_args()
    path, hlo_file = find(args.path)
    trace = read_trace(path)
    if not (trace.events and trace.steps):
        raise UserError(f"{path} is no trace of a training step; make one with train.py --profile")
    device = SPECIFICATIONS.get(args.device) or specification(jax.devices()[0])
    result = summarise(trace, hlo_file.read_text(), device)
    print(f"{trace.steps} steps in {path}, {result['span_ms']:.2f} ms each\n")
    print(table(result))
    print("\nThe longest instructions:\n")
    for row in result["longest"]:
        shown = row["op_name"][-80:]
        print(f"{row['ms']:8.3f} ms  {row['kind']:20} {row['instruction']:32} {shown}")
    if args.output:
        timing.write(args.output, result)


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
