"""One update of BERT's pre-training: this project against Hugging Face Transformers, in turns.

    pip install -r requirements-bert-test.txt
    python benchmarks/versus_pytorch_bert.py --config=configs/bert_base.py --rows=8
    python benchmarks/versus_pytorch_bert.py --config=configs/bert_tiny.py --dtype=bfloat16

Both train as many parameters on the same full rows of random tokens, on the CPU, with dropout,
AdamW and clipping. Theirs is BertForPreTraining as it comes: it computes logits of all positions,
ours of the masked ones. bfloat16 means model.dtype=bfloat16 here and autocast there. Each is a
process of its own, and only one works at a time.
"""

import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from absl import flags
from ml_collections import config_flags

from benchmarks import timing
from transformer.data.sequences import Masked
from transformer.runs import cli
from transformer.runs.run_config import Config
from transformer.system.cpu import available_cores
from transformer.system.errors import UserError
from transformer.system.paths import DEFINE_path
from transformer.system.startup import use_huge_pages

OURS, THEIRS = "ours", "huggingface"
VOCAB_SIZE = 30_522

CONFIG = config_flags.DEFINE_config_file("config", None, "A config of the task masked_lm.")
DTYPE = flags.DEFINE_enum("dtype", "float32", ["float32", "bfloat16"], "In place of model.dtype.")
ROWS = flags.DEFINE_integer("rows", 32, "Sequences of an update.", lower_bound=1)
ROUNDS = flags.DEFINE_integer("rounds", 5, "Measurements of each.", lower_bound=1)
OUTPUT = DEFINE_path("output", None, "A JSON file for the result.")
WORKER = flags.DEFINE_enum("worker", None, [OURS, THEIRS], "Used by this script itself.")


def main() -> None:
    config = Config.from_dict(cli.config_of(CONFIG))
    if config.task.name != "masked_lm" or config.model.head != "pre_training":
        raise UserError("give a config of the task masked_lm with model.head=pre_training")
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, dtype=DTYPE.value))
    if WORKER.value == OURS:
        use_huge_pages()  # as train.py; starts the worker anew
        timing.serve(lambda: prepare_ours(config))
    elif WORKER.value:
        timing.serve(lambda: prepare_theirs(config))
    else:
        heading = f"{ROWS.value} sequences of {config.data.max_length} tokens, {DTYPE.value}"
        timing.compare_two(OURS, THEIRS, ROUNDS.value, heading, OUTPUT.value)


def random_batch(config: Config) -> Masked:
    """Full rows, one sequence each, of two sentences, with as many predictions as there may be."""
    rng, rows = np.random.default_rng(0), ROWS.value
    length, most = config.data.max_length, config.data.max_predictions
    tokens_BS = rng.integers(5, VOCAB_SIZE, (rows, length), np.int32)
    types_BS = np.broadcast_to(np.arange(length) >= length // 2, (rows, length)).astype(np.int32)
    masked_BP = np.sort([rng.permutation(length)[:most] for _ in range(rows)]).astype(np.int32)
    return Masked(
        tokens_BS,
        types_BS,
        np.ones_like(tokens_BS),
        masked_BP,
        rng.integers(5, VOCAB_SIZE, (rows, most), np.int32),
        np.zeros((rows, 1), np.int32),
        rng.integers(0, 2, (rows, 1), np.int32),
        np.full(rows, most, np.float32),
    )


def prepare_ours(config: Config) -> tuple[dict[str, Any], Callable[[], float]]:
    import jax

    from benchmarks.program import Program
    from transformer.models.family import Sizes

    start, length = time.monotonic(), config.data.max_length
    sizes = Sizes(VOCAB_SIZE, VOCAB_SIZE, True, length, length)
    program = Program(config, sizes, jax.devices()[:1])
    step, finish = program.begin(Masked(*(x[None] for x in random_batch(config))))
    about = {"parameters": program.num_params, "start_seconds": time.monotonic() - start}
    return about, timing.repeat_for_a_second(step, finish)


def prepare_theirs(config: Config) -> tuple[dict[str, Any], Callable[[], float]]:
    import torch
    import transformers

    start = time.monotonic()
    torch.set_num_threads(available_cores())
    model = transformers.BertForPreTraining(
        transformers.BertConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=config.model.d_model,
            num_hidden_layers=config.model.num_layers,
            num_attention_heads=config.model.num_heads,
            intermediate_size=config.model.d_ff,
            # The same function as gelu_new, and faster.
            hidden_act={"gelu": "gelu_pytorch_tanh", "gelu_exact": "gelu"}[config.model.activation],
            hidden_dropout_prob=config.model.dropout,
            attention_probs_dropout_prob=config.model.attention_dropout,
            max_position_embeddings=config.model.max_positions,
        )
    ).train()
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    batch = random_batch(config)
    labels_BS = np.full(batch.tokens_BS.shape, -100)
    np.put_along_axis(labels_BS, batch.masked_BP, batch.labels_BP, axis=1)
    given = {
        "input_ids": batch.tokens_BS,
        "token_type_ids": batch.types_BS,
        "attention_mask": batch.segments_BS,
        "labels": labels_BS,
        "next_sentence_label": batch.is_random_BC[:, 0],
    }
    given = {name: torch.tensor(x, dtype=torch.long) for name, x in given.items()}

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=DTYPE.value == "bfloat16"):
            loss = model(**given).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.max_grad_norm)
        adam.step()
        adam.zero_grad()

    step()
    about = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "start_seconds": time.monotonic() - start,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return about, timing.repeat_for_a_second(step, lambda: None)


if __name__ == "__main__":
    cli.run(main, default_config=Path(__file__).parents[1] / "configs" / "bert_base.py")
