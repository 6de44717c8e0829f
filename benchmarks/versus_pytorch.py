"""One training step of a config: this project against PyTorch, in turns.

    pip install -r requirements-benchmarks.txt
    python benchmarks/versus_pytorch.py --dtype=float32 --rounds=5
    python benchmarks/versus_pytorch.py --config=configs/big.py --dtype=bfloat16 --rows=97 \
        --length=256 --vocab_size=37000

Both train the same function of as many parameters with Adam, the same schedule, clipping and
label smoothing on full rows of random tokens; on the GPU if there is one, else the CPU. PyTorch's
model is that of benchmarks/pytorch_<model.family>.py. bfloat16 means model.dtype=bfloat16 here and
autocast there. Each is a process of its own, and only one works at a time. Times are of whole
steps: forward, backward, update.
"""

import dataclasses
import importlib
import math
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from absl import flags
from ml_collections import config_flags

from benchmarks import timing
from benchmarks.program import sizes_of, training_flops
from benchmarks.synthetic import full_rows
from transformer.data.batches import Batch
from transformer.runs import cli
from transformer.runs.provenance import conditions
from transformer.runs.run_config import Config
from transformer.system.cpu import available_cores
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path
from transformer.system.startup import use_huge_pages

BASE = Path(__file__).parents[1] / "configs" / "base.py"
_LAYERS = {"d_model", "d_ff", "num_heads", "dropout", "attention_dropout", "activation_dropout"}
_LAYERS |= {"activation", "dtype", "norm_epsilon"}


class Peer(NamedTuple):
    """What PyTorch's model of a family can be: that of a config, but for some fields."""

    config: str  # a module of configs/
    free: set[str] | None  # the fields that may differ; None: the model checks by itself


PEERS = {
    "transformer": Peer(
        "base", _LAYERS | {"num_encoder_layers", "num_decoder_layers", "max_positions"}
    ),
    "universal": Peer("universal_base", _LAYERS | {"encoder_steps", "decoder_steps"}),
    "rnn": Peer("rnn_bahdanau", None),
    "convolutional": Peer("convs2s_iwslt", None),
}
FREE_OPTIMIZER = {
    *("beta1", "beta2", "epsilon", "schedule", "peak_learning_rate", "warmup_steps"),
    *("max_grad_norm", "decay_steps"),
}
OURS, EAGER, COMPILED = "ours", "pytorch", "pytorch_compiled"

CONFIG = config_flags.DEFINE_config_file("config", None, "The config file; configs/base.py if none")
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "In place of model.dtype")
ROWS = flags.DEFINE_integer("rows", 16, "Sentence pairs in a batch", lower_bound=1)
LENGTH = flags.DEFINE_integer("length", 64, "Source tokens of each, and target", lower_bound=2)
VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 32_000, "Size of the vocabulary", lower_bound=8)
VERSUS = flags.DEFINE_list("versus", [EAGER, COMPILED], "Which of the two, or both")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Measurements of each", lower_bound=1)
OUTPUT = DEFINE_path("output", None, "A JSON file for the result")
WORKER = flags.DEFINE_enum("worker", None, [OURS, EAGER, COMPILED], "Used by this script itself")


def main() -> None:
    config = Config.from_dict(cli.config_of(CONFIG))
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dtype=DTYPE.value))
    if WORKER.value == OURS:
        use_huge_pages()  # as train.py; starts the worker anew
        timing.serve(lambda: prepare_ours(config))
    elif WORKER.value:
        timing.serve(lambda: prepare_pytorch(config))
    else:
        check(config)
        compare(config)


def check(config: Config) -> None:
    """Raises UserError for what PyTorch is not compared with."""
    if config.model.family not in PEERS:
        raise UserError(
            f"there is no model in PyTorch for model.family={config.model.family!r}; there are: "
            f"{', '.join(PEERS)}"
        )
    peer = PEERS[config.model.family]
    reference = importlib.import_module(f"configs.{peer.config}").get_config()
    free = {"optimizer": FREE_OPTIMIZER}
    if peer.free is not None:
        free["model"] = peer.free
    for section, fields in free.items():
        for field, value in vars(getattr(config, section)).items():
            if field not in fields and value != reference[section][field]:
                raise UserError(
                    "PyTorch's model is compared only with "
                    f"{section}.{field}={reference[section][field]!r}"
                )
    if config.optimizer.schedule not in ("noam", "inverse_sqrt", "cosine"):
        raise UserError("PyTorch has optimizer.schedule noam, inverse_sqrt and cosine alone here")
    if getattr(config.model, "activation", "relu") not in ("relu", "gelu"):
        raise UserError(f"PyTorch's layers have no model.activation={config.model.activation!r}")
    if unknown := set(VERSUS.value) - {EAGER, COMPILED}:
        raise UserError(f"--versus={','.join(unknown)}: it must be {EAGER}, {COMPILED} or both")


def compare(config: Config) -> None:
    """Starts the workers, lets them take turns, prints and writes the result."""
    workers, failed = {}, {}
    for name in [OURS, *VERSUS.value]:
        try:
            workers[name] = timing.Worker(
                [sys.executable, *sys.argv, f"--worker={name}"],
                # Beside PyTorch, JAX cannot have most of the GPU's memory.
                {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.45"},
            )
        except timing.Failed as failure:
            failed[name] = str(failure)
            print(f"{name} cannot be measured: {failure}; its error is above", file=sys.stderr)
    if OURS not in workers:
        raise SystemExit(1)
    times = timing.alternate({name: w.measure for name, w in workers.items()}, ROUNDS.value)
    for worker in workers.values():
        worker.close()

    tokens = 2 * ROWS.value * LENGTH.value
    lengths = np.full(ROWS.value, LENGTH.value)
    flops = training_flops(config, VOCAB_SIZE.value, lengths, lengths).sum()
    print(
        f"\n{ROWS.value} rows of {LENGTH.value} + {LENGTH.value} tokens, vocabulary of "
        f"{VOCAB_SIZE.value:,}, {DTYPE.value}; {flops / 1e9:.0f} model GFLOPs a step\n"
        f"\n{'':17} {'parameters':>12} {'start':>7} {'memory':>9} {'ms a step':^26} "
        f"{'tokens/s':>9} {'TFLOP/s':>8} {'time / ours':^22}"
    )
    results = {}
    for name, worker in workers.items():
        ratios = [theirs / ours for theirs, ours in zip(times[name], times[OURS], strict=True)]
        seconds = timing.summary(times[name])
        ratio = seconds["median"] / timing.summary(times[OURS])["median"]
        results[name] = {
            **worker.about,
            "seconds_per_step": seconds,
            "tokens_per_second": tokens / seconds["median"],
            "flops_per_second": flops / seconds["median"],
            "time_over_ours": {"of_medians": ratio, "min": min(ratios), "max": max(ratios)},
        }
        print(
            f"{name:17} {worker.about['parameters']:12,} {worker.about['start_seconds']:6.1f}s "
            f"{worker.about['peak_memory'] / 2**30:5.2f} GiB {timing.shown(times[name]):^26} "
            f"{tokens / seconds['median']:9,.0f} {flops / seconds['median'] / 1e12:8.3f} "
            f"{ratio:6.3f} [{min(ratios):.3f} .. {max(ratios):.3f}]"
        )
    if OUTPUT.value:
        shape = {"rows": ROWS.value, "length": LENGTH.value, "vocab_size": VOCAB_SIZE.value}
        timing.write(
            OUTPUT.value,
            {
                "conditions": conditions(),
                "model": dataclasses.asdict(config.model),
                "batch": shape,
                "model_flops_per_step": flops,
                "results": results,
                "failed": failed,
            },
        )


def random_batch() -> Batch:
    return full_rows(ROWS.value, LENGTH.value, LENGTH.value, VOCAB_SIZE.value)


def prepare_ours(config: Config) -> tuple[dict[str, Any], Callable[[], float]]:
    import jax

    from benchmarks.program import Program

    start = time.monotonic()
    program = Program(config, sizes_of(config, VOCAB_SIZE.value), jax.devices()[:1])
    step, finish = program.begin(random_batch())
    seconds = time.monotonic() - start
    measure = timing.repeat_for_a_second(step, finish)
    stats = jax.local_devices()[0].memory_stats()
    return {
        "parameters": program.num_params,
        "start_seconds": seconds,
        "peak_memory": stats["peak_bytes_in_use"] if stats else peak_of_process(),
    }, measure


def rate_of(config: Config) -> Callable[[int], float]:
    """The learning rate after so many updates, without JAX."""
    c = config.optimizer
    warmup = c.warmup_steps
    peak = c.peak_learning_rate or (config.model.d_model * warmup) ** -0.5

    def rate(count: int) -> float:
        step = count + 1
        if c.schedule == "cosine":
            part = min(1, max(0, step - warmup) / (c.decay_steps - warmup))
            after = (1 + math.cos(math.pi * part)) / 2
        else:
            after = (warmup / step) ** 0.5
        return peak * min(step / warmup, after)

    return rate


def prepare_pytorch(config: Config) -> tuple[dict[str, Any], Callable[[], float]]:
    import torch

    peer = importlib.import_module(f"benchmarks.pytorch_{config.model.family}")
    start = time.monotonic()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    if on_gpu:
        torch.set_float32_matmul_precision("highest")  # TF32, as XLA
    else:
        torch.set_num_threads(available_cores())
    torch.manual_seed(config.training.seed)
    model = peer.build(config.model, VOCAB_SIZE.value, LENGTH.value).to(device)
    adam = torch.optim.Adam(
        model.parameters(),
        lr=1.0,  # times the schedule
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        eps=config.optimizer.epsilon,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, rate_of(config))
    src_BS, _, tgt_in_BT, tgt_out_BT, _ = (
        torch.tensor(x[0], dtype=torch.long, device=device) for x in random_batch()
    )
    padding_BS = src_BS == 0

    def loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=DTYPE.value == "bfloat16"):
            logits_BTV = model(src_BS, tgt_in_BT, padding_BS)
        return torch.nn.functional.cross_entropy(
            logits_BTV.float().flatten(0, 1),
            tgt_out_BT.flatten(),
            label_smoothing=config.training.label_smoothing,
        )

    if WORKER.value == COMPILED:
        loss = torch.compile(loss)

    def step() -> None:
        loss().backward()
        if config.optimizer.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_grad_norm)
        adam.step()
        schedule.step()
        adam.zero_grad()

    def finish() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    step()
    finish()
    seconds = time.monotonic() - start
    measure = timing.repeat_for_a_second(step, finish)
    if not math.isfinite(loss().item()):
        raise FloatingPointError("the loss in PyTorch is not finite")
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "start_seconds": seconds,
        "peak_memory": torch.cuda.max_memory_allocated() if on_gpu else peak_of_process(),
        "torch": torch.__version__,
    }, measure


def peak_of_process() -> int:
    """The most main memory that this process has held, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    cli.run(main, default_config=BASE)
