"""How fast a config trains: tokens a second, MFU, memory, time to compile.

    python benchmarks/training_speed.py --config=configs/demo.py
    python benchmarks/training_speed.py --config=configs/big.py --config.model.dtype=bfloat16

The train step, packing, prefetching and batches of train.py, on synthetic sentence pairs: no
download. What train.py does besides (validation, checkpoints, logs) is left out.
"""

import collections
import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
if __name__ == "__main__":
    from transformer.system.startup import use_huge_pages

    use_huge_pages()  # as train.py, before JAX is imported
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", "")  # or there would be nothing to time

import jax
import numpy as np
from absl import flags
from ml_collections import config_flags

from benchmarks import timing
from benchmarks.program import Program, packed_rows, sizes_of, training_flops
from benchmarks.synthetic import median_length, synthetic_pairs
from transformer.data.batches import Batch
from transformer.data.prefetch import prefetch
from transformer.runs import cli
from transformer.runs.provenance import conditions
from transformer.runs.run_config import Config
from transformer.system.compilation import memory_summary
from transformer.system.hardware import peak_flops
from transformer.system.paths import DEFINE_path
from transformer.system.profiling import STEP, Profile
from transformer.system.sharding import distribute, make_mesh, row_shards, split_rows
from transformer.tasks.task import tokens_at_once

WARM_UP = 3  # updates
UPDATES_AHEAD = 2  # as train.py

CONFIG = config_flags.DEFINE_config_file("config", None, "The config file; configs/base.py if none")
STEPS = flags.DEFINE_integer("steps", 20, "Updates to time", lower_bound=1)
OUTPUT = DEFINE_path("output", None, "A JSON file for the result")
PROFILE = DEFINE_path("profile", None, "A folder for a trace of three more updates")


def main() -> None:
    config = Config.from_dict(cli.config_of(CONFIG))
    result = measure(config, STEPS.value, Path(PROFILE.value) if PROFILE.value else None)
    show(result)
    if OUTPUT.value:
        timing.write(OUTPUT.value, result)


def measure(config: Config, steps: int, profile: Path | None) -> dict[str, Any]:
    """Trains for a few updates; returns what is worth knowing about them."""
    # 1. Data and program.
    vocab_size, training = config.tokenizer.vocab_size, config.training
    limits = config.data.max_source_length, config.data.max_target_length
    mesh, sizes = make_mesh(config.mesh), sizes_of(config, vocab_size)
    median = median_length(limits)
    num_pairs = 64 + int(5 * max(training.tokens_per_update, *limits) / median)
    pairs = synthetic_pairs(num_pairs, vocab_size, limits, median, seed=training.seed)
    lengths, device = (pairs.source_lengths, pairs.target_lengths), mesh.devices.flat[0]
    at_once = tokens_at_once(training.max_tokens_per_device, mesh)
    packed, batches, rows, widths = packed_rows(pairs, config, at_once, row_shards(mesh))
    program = Program(config, sizes._replace(row_segments=packed.most_examples))
    program.start()

    def load_batch(number: int) -> tuple[Batch, np.ndarray]:
        rows = batches.rows(number)
        return distribute(packed.batch, rows, split_rows(mesh, axis=1)), rows

    start = time.monotonic()
    compiled = program.compile(load_batch(0)[0])
    compile_seconds = time.monotonic() - start

    # 2. Updates. A step lasts from the end of the one before it to its own.
    loaded = prefetch(load_batch, itertools.count())
    pending: collections.deque = collections.deque()
    ends, waits, rows_of_step = [], [], []

    def look_at_metrics(not_yet: int) -> None:
        while len(pending) > not_yet:
            jax.device_get(pending.popleft())
            ends.append(time.monotonic())

    for _ in range(WARM_UP + steps):
        wait_start = time.monotonic()
        batch, row_numbers = next(loaded)
        waits.append(time.monotonic() - wait_start)
        rows_of_step.append(row_numbers)
        pending.append(program.step(batch))
        look_at_metrics(UPDATES_AHEAD)
    look_at_metrics(0)

    # 3. Three more in a trace.
    if profile is not None:
        with contextlib.closing(Profile(profile, range(3), compiled)) as tracing:
            for number in range(3):
                tracing.before(number, program.state)
                with jax.profiler.StepTraceAnnotation(STEP, step_num=number):
                    program.step(next(loaded)[0])
                tracing.after(number + 1, program.state)
    loaded.close()

    # 4. What they come to.
    step_seconds = np.diff(ends[WARM_UP - 1 :]).tolist()
    seconds, rows_timed = sum(step_seconds), rows_of_step[WARM_UP:]
    tokens = sum(map(packed.num_tokens_of, rows_timed))
    flops_of_pair = training_flops(config, vocab_size, *lengths)
    flops = sum(flops_of_pair[packed.pairs_of(r)].sum() for r in rows_timed)
    positions = steps * rows.accumulation * rows.rows_per_step * sum(widths)
    peak = peak_flops(device, config.model.dtype)
    flops_per_second = flops / seconds / mesh.size
    stats = device.memory_stats()
    return {
        "conditions": conditions(),
        "config": json.loads(config.to_json()),
        "parameters": program.num_params,
        "rows": [rows.accumulation, rows.rows_per_step],
        "row_widths": widths,
        "tokens_per_update": tokens / steps,
        "padding": 1 - tokens / positions,
        "tokens_per_second": tokens / seconds,
        "flops_per_token": flops / tokens,
        "step_seconds": timing.summary(step_seconds),
        "input_wait_seconds": timing.summary(waits[WARM_UP:]),
        "model_flops_per_second_per_device": flops_per_second,
        "mfu": None if peak is None else flops_per_second / peak,
        "memory_of_train_step": memory_summary(compiled),
        "peak_memory": stats["peak_bytes_in_use"] if stats else None,
        "compile_seconds": compile_seconds,
    }


def show(result: dict[str, Any]) -> None:
    accumulation, rows = result["rows"]
    source_width, target_width = result["row_widths"]
    mfu, peak_memory = result["mfu"], result["peak_memory"]
    for name, value in {
        "device": f"{result['conditions']['device']} beside {result['conditions']['cpu']}; "
        f"{result['config']['model']['dtype']}",
        "model": f"{result['parameters']:,} parameters, vocabulary of "
        f"{result['config']['tokenizer']['vocab_size']:,}",
        "update": f"{accumulation} x {rows} rows of {source_width} + {target_width}, "
        f"{result['padding']:.1%} of them padding",
        "tokens": f"{result['tokens_per_second']:,.0f} a second, source and target, "
        f"{result['tokens_per_update']:,.0f} an update, padding excluded; "
        f"{result['flops_per_token'] / 1e6:.1f} MFLOPs each",
        "step": f"{timing.shown(result['step_seconds']['values'])} ms",
        "input wait": f"{timing.shown(result['input_wait_seconds']['values'])} ms a step",
        "model FLOPs": f"{result['model_flops_per_second_per_device'] / 1e12:.4g} T a second "
        "and device; MFU "
        + ("unknown, as is the peak of this device and type" if mfu is None else f"{mfu:.1%}"),
        "memory": f"train step {result['memory_of_train_step']}"
        + ("" if peak_memory is None else f"; at most {peak_memory / 2**30:.2f} GiB in use"),
        "compilation": f"{result['compile_seconds']:.1f} s",
    }.items():
        print(f"{name:12} {value}")


if __name__ == "__main__":
    cli.run(main, default_config=Path(__file__).parents[1] / "configs" / "base.py")
