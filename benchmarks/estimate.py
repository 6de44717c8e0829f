"""Says what a program would be on GPUs or TPUs, on a machine that has none.

    python benchmarks/estimate.py --config=configs/base.py --device=h200 \\
        --config.model.dtype=bfloat16
    python benchmarks/estimate.py --config=configs/big.py --device=v5e:2x4 --config.mesh.fsdp=8
    python benchmarks/estimate.py --config=configs/base.py --device=h200 --program=search

The program is compiled for the device: a minute or two of a CPU. Its text says which kernels run
and what each reads, writes and multiplies; costs.py makes of that the shortest time, under its
assumptions.
No data set is needed: shapes follow from the config. Devices: h200, h100, a100 and l4
(pip install "jax[cuda13]"), slices of TPU v4, v5e, v5p and v6e (pip install "jax[tpu]"), and cpu.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from ml_collections import config_flags

from benchmarks import costs, timing
from benchmarks.collectives import collectives
from benchmarks.costs import bounds_by_kind, kernels, turns_of_search, unknown_loops
from benchmarks.kinds import OTHER, UPDATE
from benchmarks.program import Program, sizes_of, training_flops
from benchmarks.synthetic import IDS
from benchmarks.targets import compile_options, target_devices
from transformer.data.batches import Batch, layout
from transformer.decoding.inputs import SearchInputs
from transformer.decoding.translation import Translator
from transformer.runs import cli
from transformer.runs.provenance import conditions
from transformer.runs.run_config import Config
from transformer.system.files import write_named
from transformer.system.hardware import specification, units
from transformer.system.paths import DEFINE_path
from transformer.system.sharding import row_shards

TOKENS_EACH = 8  # of a sentence, in the row that has the most of them

CONFIG = config_flags.DEFINE_config_file("config", None, "The config file; configs/base.py if none")
DEVICE = flags.DEFINE_string("device", "h200", "h200, h100:8, v5e:2x4, cpu:8, ...")
PROGRAM = flags.DEFINE_enum("program", "train", ["train", "search"], "What to compile")
SENTENCES = flags.DEFINE_integer("sentences", 64, "Of a search, on each device", lower_bound=1)
LENGTH = flags.DEFINE_integer("length", 32, "Source tokens of each, as wide as rows", lower_bound=1)
STEPS = flags.DEFINE_integer("steps", 32, "Tokens of each output", lower_bound=1)
OUTPUT = DEFINE_path("output", None, "A JSON file for the result")
HLO = DEFINE_path("hlo", None, "A file for the program's text")


def main() -> None:
    # The cache gives programs back without what the compiler knew of them.
    jax.config.update("jax_enable_compilation_cache", False)
    result = estimate(Config.from_dict(cli.config_of(CONFIG)))
    if OUTPUT.value:  # first: whoever reads what is printed may stop early
        timing.write(OUTPUT.value, result)
    print(shown(result))


def estimate(config: Config) -> dict[str, Any]:
    """Compiles; returns what the program's text and the compiler say."""
    devices = target_devices(DEVICE.value)
    vocab_size, training = config.tokenizer.vocab_size, config.training
    widths = config.data.max_source_length, config.data.max_target_length
    sizes = sizes_of(config, vocab_size)._replace(row_segments=max(1, max(widths) // TOKENS_EACH))
    program = Program(config, sizes, devices)
    mesh, device = program.mesh, specification(devices[0])
    result: dict[str, Any] = {
        "commit": conditions()["commit"],
        "device": DEVICE.value,
        "device_kind": devices[0].device_kind,
        "mesh": dict(mesh.shape),
        "program": PROGRAM.value,
        "parameters": program.num_params,
        "model": dataclasses.asdict(program.model_config),
    }

    # 1. The program. Shapes follow from the config.
    searches = PROGRAM.value == "search"
    rows = layout(  # as for an accelerator: train.py's own parts are for a CPU
        training.tokens_per_update, training.max_tokens_per_device, *widths, row_shards(mesh)
    )
    result["rows"] = [rows.accumulation, rows.rows_per_step, *widths]
    # Newer Pallas asks the mesh which GPU it makes a kernel for.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        if searches:
            translator = Translator(program.model, IDS, config.decoding, mesh)
            search = translator.programs.jitted(beam_size=config.decoding.beam_size, nbest=1)
            sentences = SENTENCES.value * mesh.size
            tokens = jax.ShapeDtypeStruct((sentences, LENGTH.value), jnp.int32)
            limits = jax.ShapeDtypeStruct((sentences,), jnp.int32)
            lowered = search.lower(program.variables, tokens, SearchInputs(limits))
        else:
            source, target = (
                jax.ShapeDtypeStruct((*result["rows"][:2], n), jnp.int32) for n in widths
            )
            lowered = program.lower(Batch(source, source, target, target, target))
        try:  # in the mesh, too: for several devices Pallas makes its kernel now
            compiled = lowered.compile(compiler_options=compile_options(devices))
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            return result | {"exchange": {}, "does_not_fit": " ".join(str(error).split())[:200]}
    text = compiled.as_text()
    if HLO.value:
        write_named(Path(HLO.value), text)

    # 2. What it needs of each device.
    memory = compiled.memory_analysis()
    result["memory"] = {
        "arguments": memory.argument_size_in_bytes,
        "results": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "program": memory.generated_code_size_in_bytes,
    }
    loops = unknown_loops(text) if searches else 0
    found = kernels(text, turns_of_search(loops, STEPS.value) if loops else [])
    if searches:  # what is not differentiated is no update there
        found = [k._replace(kind=OTHER if k.kind == UPDATE else k.kind) for k in found]
    traffic = collectives(text, mesh.size, device)
    result["kernels"] = sum(kernel.runs for kernel in found)
    result["bytes"] = sum(kernel.runs * kernel.bytes for kernel in found)
    result["flops"] = sum(kernel.runs * kernel.flops for kernel in found)
    result["exchange"] = {kind: dataclasses.asdict(t) for kind, t in traffic.items()}
    if not searches:
        lengths = (np.full(rows.rows, width) for width in widths)
        result["model_flops"] = training_flops(config, vocab_size, *lengths).sum() / mesh.size
    if device is None:
        return result
    if devices[0].platform == "tpu":
        # XLA writes a TPU's products as convolutions, whose FLOPs the text does not tell. The
        # compiler counts those of a loop once; the program has the model's FLOPs at least.
        result["flops"] = max(compiled.cost_analysis()["flops"], result.get("model_flops", 0))

    # 3. The bounds that follow.
    result["memory_limit"] = device.memory * 2**30
    result["kinds"] = bounds_by_kind(found, device)
    result["exchange_ms"] = {kind: 1e3 * t.seconds for kind, t in traffic.items()}
    work = sum(row["ms"] for row in result["kinds"])
    if devices[0].platform == "tpu":
        work = max(work, 1e3 * result["flops"] / (costs.PEAK_SHARE * device.bfloat16))
    # Kernels and collectives may all run at the same time.
    result["bound_ms"] = bound = max(work, sum(result["exchange_ms"].values()))
    if not searches:
        result["mfu_allowed"] = result["model_flops"] / device.bfloat16 / (bound / 1e3)
    tokens = sentences * STEPS.value if searches else rows.rows * sum(widths)
    result["tokens_per_second_allowed"] = tokens / (bound / 1e3)
    return result


def shown(result: dict[str, Any]) -> str:
    """For people."""
    axes = " x ".join(f"{size} {axis}" for axis, size in result["mesh"].items())
    lines = [f"device      {result['device']} ({result['device_kind']}), {axes}"]
    accumulation, at_once, source, target = result["rows"]
    model = result["model"]
    lines.append(
        f"model       {result['parameters']:,} parameters, {model['dtype']}, kernels: "
        f"{model.get('kernels', 'plain')}"
    )
    if result["program"] != "search":
        lines.append(f"rows        {accumulation} x {at_once} of {source} + {target} tokens")
    if "does_not_fit" in result:
        return "\n".join([*lines, f"memory      does not fit: {result['does_not_fit']}"])
    total = sum(result["memory"].values())
    verdict = ""
    if limit := result.get("memory_limit"):
        verdict = f" of {limit / 2**30:.0f} GiB, {'fits' if total <= limit else 'does not fit'}"
    parts = ", ".join(f"{units(size)} {name}" for name, size in result["memory"].items())
    lines.append(f"memory      {units(total)}{verdict}: {parts}")
    lines.append(
        f"work        {result['flops'] / 1e12:.2f} TFLOP in products"
        + (f" ({result['model_flops'] / 1e12:.2f} the model's)" if "model_flops" in result else "")
        + f", {result['bytes'] / 1e9:.1f} GB moved, {result['kernels']:,} kernels"
    )
    for kind, traffic in result["exchange"].items():
        ms = f", at least {result['exchange_ms'][kind]:.2f} ms" if "exchange_ms" in result else ""
        lines.append(f"exchange    {traffic['count']} {kind}, {units(traffic['bytes'])}{ms}")
    if "bound_ms" not in result:
        return "\n".join(lines)
    mfu = f", MFU at most {result['mfu_allowed']:.0%}" if "mfu_allowed" in result else ""
    lines.append(
        f"bound       {result['bound_ms']:.2f} ms{mfu}, "
        f"{result['tokens_per_second_allowed']:,.0f} tokens a second at most"
    )
    lines.append(
        f"            if memory gives {costs.MEMORY_SHARE:.0%} and products "
        f"{costs.PEAK_SHARE:.0%} of the data sheet, a kernel takes "
        f"{1e6 * costs.KERNEL_SECONDS:.0f} microseconds to start, and exchange is hidden"
    )
    lines.append("\n  bound ms   kernels       GB    TFLOP  kind of work")
    for row in result["kinds"]:
        lines.append(
            f"{row['ms']:10.2f} {row['kernels']:9,} {row['bytes'] / 1e9:8.2f} "
            f"{row['flops'] / 1e12:8.2f}  {row['kind']}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    cli.run(main, default_config=Path(__file__).parents[1] / "configs" / "base.py")
