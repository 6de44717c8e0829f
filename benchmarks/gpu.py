"""All that is worth measuring on a machine with one GPU, in ten minutes.

    python benchmarks/gpu.py RESULTS
    python benchmarks/gpu.py RESULTS --quick

Base and big in bfloat16 with the paper's 25,000 source and target tokens an update; where their
time goes, and the bound of each kind of work beside it; the same in PyTorch. The folder RESULTS
gets results.json, rewritten after each part. A part that fails or for which no time is left does
not stop those after it. --quick tries the script itself, on any machine.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import timing
from transformer.runs import cli
from transformer.runs.provenance import ROOT
from transformer.system.paths import argument

QUICK = [
    *(f"--config.model.{field}=1" for field in ("num_encoder_layers", "num_decoder_layers")),
    *("--config.model.d_model=32", "--config.model.d_ff=64", "--config.model.num_heads=2"),
]
QUICK_DATA = [
    *(f"--config.data.max_{side}_length=16" for side in ("source", "target")),
    *("--config.tokenizer.vocab_size=500", "--config.training.tokens_per_update=256"),
]
SECONDS_FOR_A_PART = 240
# XLA starts many kernels as one CUDA graph, a command buffer, and a trace would show no more.
KERNEL_BY_KERNEL = {"XLA_FLAGS": "--xla_gpu_enable_command_buffer="}


def parts(traces: Path, quick: bool) -> dict[str, tuple[str, list[str], dict[str, str]]]:
    """By name, in order of importance: a script, its flags, its environment."""
    sizes = [*QUICK, *QUICK_DATA, "--steps=2"] if quick else ["--steps=30"]
    shape = ["--rows=97", "--length=256", "--vocab_size=37000", "--rounds=5"]
    if quick:
        shape = [*QUICK, "--rows=2", "--length=16", "--vocab_size=500", "--rounds=1"]
    found = {}
    configs = {model: f"--config={ROOT}/configs/{model}.py" for model in ("base", "big")}
    for model, config in configs.items():
        flags, trace = [config, "--config.model.dtype=bfloat16", *sizes], str(traces / model)
        found[model] = "training_speed.py", flags, {}
        traced = [*flags, f"--profile={trace}"]
        found[f"{model}, traced"] = "training_speed.py", traced, KERNEL_BY_KERNEL
        found[f"{model}, where the time goes"] = "profile_summary.py", [trace], {}
    compiled = "pytorch" if quick else "pytorch_compiled"
    for model, other in ("base", compiled), ("big", compiled), ("base", "pytorch"):
        flags = [configs[model], "--dtype=bfloat16", *shape, f"--versus={other}"]
        found[f"{model} versus {other}"] = "versus_pytorch.py", flags, {}
    return found


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
            print(f"\n== {name}", flush=True)
            start = time.monotonic()
            try:
                if end - start < 20:
                    raise timing.Failed("no time was left")
                seconds = min(end - start, SECONDS_FOR_A_PART)
                result = timing.run_benchmark(*part, quiet=False, timeout=seconds)
                results[name] = {"took_seconds": time.monotonic() - start, **result}
            except timing.Failed as failure:
                results[name] = {"error": str(failure)}
                print(f"failed: {failure}", flush=True)
            timing.write(folder / "results.json", results)
    if all("error" in result for result in results.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    with cli.one_line_errors():
        main()
