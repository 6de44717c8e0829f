"""How full batches are and how fast the host makes them; packed rows beside length buckets.

    python benchmarks/input_pipeline.py
    python benchmarks/input_pipeline.py --pairs=0 --text --config=configs/multi30k.py
    python benchmarks/input_pipeline.py --pairs=0 --text \\
        --config.data.train_source=a.en --config.data.train_target=a.de

The first makes a million pairs with lengths like WMT's; --text takes the training text of the
config. --train also times an update of the config's model for every shape of batch.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import jax
import numpy as np
from absl import flags
from ml_collections import config_flags

from benchmarks import timing
from benchmarks.program import Program, packed_rows, sizes_of
from benchmarks.synthetic import full_rows, synthetic_pairs
from transformer.data.batches import PackedPairs
from transformer.data.prefetch import prefetch
from transformer.data.sources import training_source
from transformer.data.token_cache import token_cache
from transformer.data.token_files import TokenizedPairs
from transformer.data.token_workers import PairEncoder
from transformer.data.tokenizers import get_tokenizers
from transformer.runs import cli
from transformer.runs.run_config import Config

BATCHES = 300
BUCKET = 8  # tokens: the lengths of a bucket differ by less

CONFIG = config_flags.DEFINE_config_file("config", None, "The config file; configs/base.py if none")
PAIRS = flags.DEFINE_integer("pairs", 1_000_000, "Synthetic pairs; 0 for none", lower_bound=0)
RATIO = flags.DEFINE_float("ratio", 1.1, "Of target to source tokens in synthetic pairs")
MEDIAN = flags.DEFINE_float("median", 22, "Of the source tokens of synthetic pairs")
TEXT = flags.DEFINE_bool("text", False, "Measure the config's training text")
TRAIN = flags.DEFINE_bool("train", False, "Time updates of the config's model")


def main() -> None:
    config = Config.from_dict(cli.config_of(CONFIG))
    limits = config.data.max_source_length, config.data.max_target_length
    with tempfile.TemporaryDirectory() as folder:
        if PAIRS.value:
            print(f"{PAIRS.value:,} synthetic pairs")
            about = {"median": MEDIAN.value, "ratio": RATIO.value}
            measure(synthetic_pairs(PAIRS.value, 2**16, limits, **about), config)
        if TEXT.value:
            source = training_source(config.data)
            print(source.describe())
            tokenizers = get_tokenizers(folder, config.tokenizer, source)
            encoder = PairEncoder(tokenizers, limits, config.tokenizer.sampling_alpha)
            samples = config.tokenizer.num_samples
            measure(token_cache(source, encoder, folder, num_samples=samples), config)


def measure(pairs: TokenizedPairs, config: Config) -> None:
    source, target = pairs.source_lengths, pairs.target_lengths
    print(
        f"  tokens: median {np.median(source):.0f} + {np.median(target):.0f}, longest "
        f"{source.max()} + {target.max()}, target / source {target.sum() / source.sum():.3f}"
    )

    # 1. Packed rows.
    packed, batches, rows, widths = packed_rows(pairs, config)
    plan_seconds = timing.median_of(lambda: PackedPairs(pairs, *widths, seed=0))
    print(
        f"  packed:  {packed.fill:6.2%} full, 1 shape, {rows.rows} x ({widths[0]} + {widths[1]}); "
        f"planned in {plan_seconds:.2f} s, {plan_seconds / len(pairs) * 1e6:.2f} us a pair"
    )

    # 2. Host batches.
    steps = range(BATCHES)
    num_pairs = sum(len(packed.pairs_of(batches.rows(step))) for step in steps)
    alone = timing.median_of(lambda: [batches[step] for step in steps][-1])
    ahead = timing.median_of(lambda: list(prefetch(batches.__getitem__, steps))[-1])
    print(
        f"  batches: {num_pairs / alone:,.0f} pairs/s, {BATCHES / alone:,.0f} batches/s; "
        f"{num_pairs / ahead:,.0f} pairs/s through prefetch"
    )

    # 3. Length buckets: by the longer side, as Tensor2Tensor; and by both sides.
    longer = np.maximum(source, target)
    by_one = buckets(longer, longer, config.training.tokens_per_update)
    by_both = buckets(source, target, config.training.tokens_per_update)
    for name, shapes in (("longer side", by_one), ("both sides", by_both)):
        positions = sum(count * rows * (s + t) for (rows, s, t), count in shapes.items())
        print(
            f"  buckets: {packed.num_tokens / positions:6.2%} full, {len(shapes)} shapes, "
            f"lengths of the {name} to multiples of {BUCKET}"
        )

    # 4. Updates.
    if TRAIN.value:
        num_batches = {(rows.rows, *widths): len(packed) / rows.rows}
        for name, shapes in (("packed rows", num_batches), ("buckets (longer side)", by_one)):
            seconds = epoch_seconds(config, shapes)
            print(
                f"  trained: {packed.num_tokens / seconds:,.0f} tokens/s, "
                f"{len(pairs) / seconds:,.0f} pairs/s with {name}"
            )


def buckets(
    source: np.ndarray, target: np.ndarray, tokens_per_update: int
) -> dict[tuple[int, int, int], int]:
    """The batches of an epoch by their shape: sentences, source and target length.

    A batch has a bucket's width and as many sentences as `tokens_per_update` allows; the last
    of each bucket is filled up with empty ones.
    """
    widths = np.stack([-(-source // BUCKET), -(-target // BUCKET)]) * BUCKET
    shapes, counts = np.unique(widths, axis=1, return_counts=True)
    result = {}
    for (s, t), count in zip(shapes.T.tolist(), counts.tolist()):
        rows = max(1, tokens_per_update // max(s, t))
        result[rows, s, t] = -(-count // rows)
    return result


def epoch_seconds(config: Config, shapes: dict[tuple[int, int, int], float]) -> float:
    """How long the updates of an epoch take, from the median of a few of each shape."""
    vocab_size = config.tokenizer.vocab_size
    program = Program(config, sizes_of(config, vocab_size), jax.devices()[:1])
    program.start()
    total = 0.0
    for (rows, s, t), count in shapes.items():
        batch = full_rows(rows, s, t, vocab_size)
        program.compile(batch)
        total += count * timing.median_of(
            lambda batch=batch: jax.block_until_ready(program.step(batch))
        )
    return total


if __name__ == "__main__":
    cli.run(main, default_config=Path(__file__).parents[1] / "configs" / "base.py")
