"""All that is worth measuring on a machine with one GPU, in ten minutes.

    python benchmarks/gpu.py RESULTS
    python benchmarks/gpu.py RESULTS --quick

Base and big in bfloat16 with the paper's 25,000 source and target tokens an update; where their
time goes, and the bound of each kind of work beside it; the same in PyTorch; and base again under
other settings of JAX and XLA. The folder RESULTS gets results.json, rewritten after each part, and
log.txt. A part that fails or for which no time is left does not stop those after it. --quick tries
the script itself, on any machine.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import profile_summary, timing
from transformer.runs import cli
from transformer.runs.provenance import ROOT
from transformer.system.paths import argument

QUICK = [
    *(f"--config.model.{field}=1" for field in ("num_encoder_layers", "num_decoder_layers")),
    "--config.model.d_model=32",
    "--config.model.d_ff=64",
    "--config.model.num_heads=2",
]
QUICK_DATA = [
    *(f"--config.data.max_{side}_length=16" for side in ("source", "target")),
    "--config.tokenizer.vocab_size=500",
    "--config.training.tokens_per_update=256",
]
SECONDS_FOR_A_PART = 240
# XLA starts many kernels as one CUDA graph, a command buffer, and a trace would show no more.
KERNEL_BY_KERNEL = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}
# What base is tried with besides.
VARIANTS = {
    "without Triton's matrix products": "--xla_gpu_enable_triton_gemm=false",
    "latency-hiding scheduler": "--xla_gpu_enable_latency_hiding_scheduler=true",
}


class Part(NamedTuple):
    """A benchmark to run."""

    script: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = {}


def parts(traces: Path, quick: bool) -> dict[str, Part]:
    """By name, in order of importance."""
    sizes = [*QUICK, *QUICK_DATA, "--steps=2"] if quick else ["--steps=30"]
    shape = ["--rows=97", "--length=256", "--vocab_size=37000", "--rounds=5"]
    if quick:
        shape = [*QUICK, "--rows=2", "--length=16", "--vocab_size=500", "--rounds=1"]
    configs = {model: f"--config={ROOT}/configs/{model}.py" for model in ("base", "big")}
    speed = {
        model: [config, "--config.model.dtype=bfloat16", *sizes]
        for model, config in configs.items()
    }
    found = {}
    for model, flags in speed.items():
        trace = str(traces / model)
        found[model] = Part("training_speed.py", flags)
        found[f"{model}, traced"] = Part(
            "training_speed.py", [*flags, f"--profile={trace}"], KERNEL_BY_KERNEL
        )
        found[f"{model}, where the time goes"] = Part("profile_summary.py", [trace])
    others = [(model, "pytorch" if quick else "pytorch_compiled") for model in configs]
    for model, other in others if quick else [*others, ("base", "pytorch")]:
        flags = [configs[model], "--dtype=bfloat16", *shape, f"--versus={other}"]
        found[f"{model} versus {other}"] = Part("versus_pytorch.py", flags)
    for name, flag in VARIANTS.items():
        found[f"base, {name}"] = Part("training_speed.py", speed["base"], {"XLA_FLAGS": flag})
    return found


def run(part: Part, seconds: float, log: Path) -> dict[str, Any]:
    """The part's result, or what went wrong."""
    with log.open("a") as stream:
        print(f"\n== {part}", file=stream, flush=True)
        start = time.monotonic()
        try:
            result = timing.run_benchmark(*part, log=stream, timeout=seconds)
        except timing.Failed as failure:
            return {"error": f"{failure}; see {log.name}"}
        return {"took_seconds": time.monotonic() - start, **result}


def shown(result: Mapping[str, Any]) -> str:
    """A line for people."""
    if "error" in result:
        return result["error"]
    if "kinds_ms" in result:
        return "measured, and the bound if the device is known\n" + profile_summary.table(result)
    if "results" in result:
        lines = [
            f"{name} {timing.shown(row['seconds_per_step']['values'])} ms a step, "
            f"{row['time_over_ours']['of_medians']:.3f} x our time"
            for name, row in result["results"].items()
        ]
        lines += [f"{name} failed, {why}" for name, why in result["failed"].items()]
        return "; ".join(lines)
    mfu = "unknown" if result["mfu"] is None else f"{result['mfu']:.1%}"
    step = timing.shown(result["step_seconds"]["values"])
    return f"{step} ms a step, {result['tokens_per_second']:,.0f} tokens/s, MFU {mfu}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=argument, help="a folder")
    parser.add_argument("--quick", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--minutes", type=float, default=9.5, help="to stop after")
    args = parser.parse_args()
    end = time.monotonic() + 60 * args.minutes
    folder = args.results.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        # Equal programs of several parts are compiled once.
        os.environ["JAX_COMPILATION_CACHE_DIR"] = os.path.join(directory, "compiled")
        for name, part in parts(Path(directory), args.quick).items():
            left = end - time.monotonic()
            results[name] = {"error": "no time was left"}
            if left >= 20:
                results[name] = run(part, min(left, SECONDS_FOR_A_PART), folder / "log.txt")
            timing.write(folder / "results.json", results)
            print(f"{name}: {shown(results[name])}", flush=True)
    if all("error" in result for result in results.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
