"""One update of a config: this project against PyTorch, in turns.

    pip install -c constraints.txt -e ".[benchmarks]"
    python benchmarks/versus_pytorch.py --dtype=float32 --rounds=5
    python benchmarks/versus_pytorch.py --config=configs/big.py --dtype=bfloat16 --rows=97 \
        --length=256 --vocab_size=37000
    python benchmarks/versus_pytorch.py --config=configs/bert_base.py --rows=8 --vocab_size=30522
    python benchmarks/versus_pytorch.py --config=configs/sagan_cifar10.py --rows=64 \
        --versus=pytorch

Both train the same function of as many parameters, at the same learning rates and with the same
clipping and label smoothing, on full rows of random tokens or on random images; on the GPU if there
is one, else the CPU. PyTorch's model is that of benchmarks/pytorch_<model.family>.py; for BERT
(the extra bert-test) it is Hugging Face's BertForPreTraining as it comes,
which computes logits of all positions, ours of the masked ones. bfloat16 means model.dtype=bfloat16
here and autocast there. Each is a process of its own, and only one works at a time. Times are of
whole updates.
"""

import dataclasses
import importlib
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np
from absl import flags
from ml_collections import config_flags

from benchmarks import timing
from benchmarks.peers import check
from benchmarks.program import Program
from benchmarks.synthetic import full_rows, full_sequences, random_images
from transformer.models.family import Sizes
from transformer.runs import cli
from transformer.runs.provenance import conditions
from transformer.runs.run_config import Config
from transformer.system.cpu import available_cores
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path
from transformer.system.startup import use_huge_pages
from transformer.training.schedules import make_schedule

CLASSES = 10  # of random images
OURS, EAGER, COMPILED = "ours", "pytorch", "pytorch_compiled"
RATES = 10_000  # updates whose rates are known; all after them have the last

CONFIG = config_flags.DEFINE_config_file("config", None, "The config file; configs/base.py if none")
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "In place of model.dtype")
ROWS = flags.DEFINE_integer("rows", 16, "Sentence pairs, sequences or images", lower_bound=1)
LENGTH = flags.DEFINE_integer(
    "length", 64, "Source tokens of a pair, and target; BERT has data.max_length", lower_bound=2
)
VOCAB_SIZE = flags.DEFINE_integer("vocab_size", 32_000, "Size of the vocabulary", lower_bound=8)
THEIRS = [EAGER, COMPILED]
VERSUS = flags.DEFINE_multi_enum("versus", THEIRS, THEIRS, "Which of them")
ROUNDS = flags.DEFINE_integer("rounds", 5, "Measurements of each", lower_bound=1)
OUTPUT = DEFINE_path("output", None, "A JSON file for the result")
WORKER = flags.DEFINE_enum("worker", None, [OURS, *THEIRS], "Used by this script itself")


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


def compare(config: Config) -> None:
    """Lets the workers take turns, prints and writes the result."""
    # Beside PyTorch, JAX cannot have most of the GPU's memory.
    share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 / (1 + len(VERSUS.value)):.2f}"}
    results, failed = timing.race([OURS, *VERSUS.value], ROUNDS.value, **share)
    given = given_to(config)
    lengths = (np.full(ROWS.value, length) for length in given.lengths)
    flops = config.family.flops(config.model, given.sizes, *lengths).sum()
    print(
        f"\n{ROWS.value} rows of {given.what}, {DTYPE.value}; {flops / 1e9:.0f} model GFLOPs a "
        f"step\n\n{'':17} {'parameters':>12} {'memory':>9} {'ms a step':^26} "
        f"{given.unit + '/s':>9} {'TFLOP/s':>8} {'time / ours':^22}"
    )
    for name, result in results.items():
        del result["replies"]
        median = result["seconds"]["median"]
        result[f"{given.unit}_per_second"] = ROWS.value * given.units / median
        result["flops_per_second"] = flops / median
        print(
            f"{name:17} {result['parameters']:12,} {result['peak_memory'] / 2**30:5.2f} GiB "
            f"{timing.shown(result['seconds']['values']):^26} "
            f"{ROWS.value * given.units / median:9,.0f} {flops / median / 1e12:8.3f} "
            f"{timing.shown(result['over_first']['values'], unit=1):^22}"
        )
    if OUTPUT.value:
        shape = {"rows": ROWS.value, "length": LENGTH.value, "vocab_size": VOCAB_SIZE.value}
        about = {"conditions": conditions(), "model": dataclasses.asdict(config.model)}
        about |= {"batch": shape, "model_flops_per_step": flops}
        timing.write(OUTPUT.value, about | {"results": results, "failed": failed})


class Given(NamedTuple):
    """What an update is given."""

    batch: Any  # as the train step takes it, with axes [1, B, ...]
    sizes: Sizes
    lengths: tuple[int, int]  # of each row, as its family counts FLOPs
    units: int  # of each row
    unit: str
    what: str


def given_to(config: Config) -> Given:
    rows, vocab, length = ROWS.value, VOCAB_SIZE.value, LENGTH.value
    if config.model.family == "sagan":
        size, channels = config.model.image_size, config.model.channels
        sizes = Sizes(CLASSES, CLASSES, False, 1, 1)
        batch = random_images(rows, size, channels, CLASSES)
        return Given(batch, sizes, (1, 1), 1, "images", f"{size} x {size} x {channels}")
    if config.model.family == "bert":
        length, most = config.data.max_length, config.data.max_predictions
        sizes = Sizes(vocab, vocab, True, length, length)
        batch = full_sequences(rows, length, most, vocab)
        what = f"{length} tokens, {most} of them predicted, vocabulary of {vocab:,}"
        return Given(batch, sizes, (length, most), length, "tokens", what)
    limits = config.data.max_source_length, config.data.max_target_length
    sizes = Sizes(vocab, vocab, config.tokenizer.joint, *limits, row_segments=1)
    batch = full_rows(rows, length, length, vocab)
    what = f"{length} + {length} tokens, vocabulary of {vocab:,}"
    return Given(batch, sizes, (length, length), 2 * length, "tokens", what)


def prepare_ours(config: Config) -> tuple[dict[str, Any], Callable[[], dict[str, float]]]:
    given = given_to(config)
    program = Program(config, given.sizes, jax.devices()[:1])
    measure = timing.repeat_for_a_second(*program.begin(given.batch))
    stats = jax.local_devices()[0].memory_stats()
    peak = stats["peak_bytes_in_use"] if stats else timing.peak_memory()
    return {"parameters": program.num_params, "peak_memory": peak}, measure


def rates_of(config: Config) -> np.ndarray:
    """The learning rates of the first updates."""
    jax.config.update("jax_platforms", "cpu")  # the GPU is PyTorch's
    schedule = make_schedule(config.optimizer, config.model.width)
    return np.asarray(jax.vmap(schedule)(np.arange(1, RATES + 1)))


def prepare_pytorch(config: Config) -> tuple[dict[str, Any], Callable[[], dict[str, float]]]:
    import torch

    from benchmarks import pytorch_training

    peer = importlib.import_module(f"benchmarks.pytorch_{config.model.family}")
    given, rates = given_to(config), rates_of(config)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    if on_gpu:
        torch.set_float32_matmul_precision("highest")  # TF32, as XLA
    else:
        torch.set_num_threads(available_cores())
    torch.manual_seed(config.training.seed)
    batch = [torch.tensor(np.asarray(x)[0], device=device) for x in given.batch]
    if config.model.family == "sagan":
        if WORKER.value == COMPILED:
            raise UserError("PyTorch's SAGAN is measured uncompiled; give --versus=pytorch")
        networks, step = peer.training(config, CLASSES, rates, batch)
        loss = None
    else:
        model = peer.build(config.model, VOCAB_SIZE.value, LENGTH.value).to(device)
        networks = [model]
        loss = getattr(peer, "loss_of", pytorch_training.loss_of)(model, config, batch)
        loss = pytorch_training.autocast(loss, device.type, DTYPE.value == "bfloat16")
        if WORKER.value == COMPILED:
            loss = torch.compile(loss)
        step = pytorch_training.training(model, config, loss, rates)

    def finish() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    measure = timing.repeat_for_a_second(step, finish)
    if loss and not math.isfinite(loss().item()):
        raise FloatingPointError("the loss in PyTorch is not finite")
    return {
        "parameters": sum(p.numel() for network in networks for p in network.parameters()),
        "peak_memory": torch.cuda.max_memory_allocated() if on_gpu else timing.peak_memory(),
        "torch": torch.__version__,
    }, measure


if __name__ == "__main__":
    cli.run(main, default_config=Path(__file__).parents[1] / "configs" / "base.py")
