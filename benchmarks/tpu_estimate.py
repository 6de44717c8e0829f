"""Says what a training step would be on a TPU slice, before anyone pays for the slice.

    python benchmarks/tpu_estimate.py --config=configs/big.py --topology=v5e:2x4 \\
        --config.mesh.fsdp=8 --config.model.dtype=bfloat16

The train step is compiled for the slice by libtpu (pip install "jax[tpu]"), which needs no TPU:
a minute or two of a CPU. No data set is needed either: shapes follow from the config.
--topology=cpu:8 compiles for 8 virtual devices of the CPU instead.
"""

import importlib.util
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
# libtpu would let one process at a time have the TPU, which this one does not touch.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.experimental import topologies
from ml_collections import config_flags

from benchmarks.collectives import collectives
from benchmarks.program import Program, training_flops
from transformer.data.batches import Batch, layout
from transformer.runs import cli
from transformer.runs.experiment import Experiment
from transformer.system.compilation import units
from transformer.system.errors import UserError
from transformer.system.sharding import row_shards

# Memory of a JAX device, from Google Cloud's pages on each version. A chip is one device, but
# in a topology of v4 each of its two cores.
HBM_GIB = {"TPU v4": 16, "TPU v5 lite": 16, "TPU v5": 95, "TPU v6 lite": 32}

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The config file; configs/base.py if none."
)
TOPOLOGY = flags.DEFINE_string(
    "topology",
    "v5e:2x4",
    "The slice: v4, v5e, v5p or v6e, and its chips along each axis; or cpu:N.",
)


def main() -> None:
    # The cache gives programs back without what the compiler knew of them.
    jax.config.update("jax_enable_compilation_cache", False)
    config = Experiment.from_dict(CONFIG.value.to_dict())
    devices = slice_devices(TOPOLOGY.value)
    vocab_size, training = config.tokenizer.vocab_size, config.training
    program = Program(config, vocab_size, devices)
    mesh = program.mesh
    axes = " x ".join(f"{size} {axis}" for axis, size in mesh.shape.items())
    print(f"slice       {TOPOLOGY.value}: {mesh.size} x {devices[0].device_kind}, {axes}")

    # 1. The batch, from the config alone.
    widths = config.data.max_source_length, config.data.max_target_length
    rows = layout(  # as for an accelerator: train.py's own parts are for a CPU
        training.tokens_per_update, training.max_tokens_per_device, *widths, row_shards(mesh)
    )
    num_rows = rows.accumulation * rows.rows_per_step
    print(
        f"update      {rows.rows} rows of {widths[0]} + {widths[1]} tokens, {config.model.dtype}; "
        f"{rows.accumulation} x {rows.rows_per_step} rows, {num_rows - rows.rows} of them empty",
        flush=True,
    )
    source, target = (
        jax.ShapeDtypeStruct((rows.accumulation, rows.rows_per_step, width), jnp.int32)
        for width in widths
    )
    batch = Batch(source, source, target, target, target)

    # 2. The program.
    start_time = time.monotonic()
    try:
        compiled = program.compile(batch)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(f"memory      does not fit: {' '.join(str(error).split())[:200]}")
        return
    print(f"compiled    in {time.monotonic() - start_time:.0f} s, jax {jax.__version__}")

    # 3. What it needs of each device, for one update.
    memory = compiled.memory_analysis()
    parts = {
        "state and batch": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "program": memory.generated_code_size_in_bytes,
    }
    limit = HBM_GIB.get(devices[0].device_kind)
    verdict = ""
    if limit:
        fits = sum(parts.values()) <= limit * 2**30
        verdict = f" of {limit} GiB, {'fits' if fits else 'does not fit'}"
    print(f"memory      {units(sum(parts.values()))}{verdict}: ", end="")
    print(", ".join(f"{units(size)} {name}" for name, size in parts.items()))
    lengths = (np.full(num_rows, width) for width in widths)
    flops = training_flops(config, vocab_size, *lengths).sum() / mesh.size
    print(
        f"arithmetic  {flops / 1e12:.2f} TFLOP in matrix products; XLA counts "
        f"{compiled.cost_analysis()['flops'] / 1e12:.2f} in all, the body of a loop once"
    )
    total = 0
    for kind, traffic in collectives(compiled.as_text()).items():
        print(f"exchange    {traffic.count} {kind}, {units(traffic.bytes)} of results")
        total += traffic.bytes
    print(f"exchange    {units(total)} in all")


def slice_devices(topology: str) -> Sequence[jax.Device]:
    """The devices of a slice, to compile for; those of cpu:N are real.

    To be called before JAX is used. Raises UserError for a slice that there is not, and for
    any TPU without libtpu.
    """
    jax.config.update("jax_platforms", "cpu")
    if match := re.fullmatch(r"cpu:([1-9]\d*)", topology):
        jax.config.update("jax_num_cpu_devices", int(match[1]))
        return jax.devices()
    if importlib.util.find_spec("libtpu") is None:
        raise UserError(
            f'--topology={topology} needs libtpu, which compiles for TPUs: pip install "jax[tpu]"'
        )
    # What libtpu would ask the network for; the topology asked of it need not be of that type.
    os.environ.update(TPU_WORKER_HOSTNAMES="localhost", TPU_ACCELERATOR_TYPE="v5litepod-8")
    try:
        return topologies.get_topology_desc(topology, "tpu").devices
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--topology={topology} is no TPU slice ({error}); v5e:2x4 and v5p:2x2x1 are"
        ) from error


if __name__ == "__main__":
    cli.run(main, default_config=Path(__file__).parents[1] / "configs" / "base.py")
