"""Sentence pairs that were never text, and batches of them."""

import numpy as np

from transformer.data.batches import Batch
from transformer.data.sequences import Masked
from transformer.data.token_files import TokenizedPairs
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, EOS, UNK, Tokenizer
from transformer.training.adversarial import ImageBatch

FIRST = UNK + 1  # of the ids of words


def synthetic_pairs(
    num_pairs: int,
    vocab_size: int,
    limits: tuple[int, int],
    median: float,
    ratio: float = 1.0,
    seed: int = 0,
) -> TokenizedPairs:
    """Pairs with lengths and word frequencies like WMT's; the same ones for the same arguments.

    Lengths are log-normal, those of a pair alike. median: of the source sides; ratio: of target to
    source tokens. Sides longer than `limits`, (source, target), are cut, where training would drop
    the pair. Ids follow Zipf's law, whose repetitions embedding gradients feel.
    """
    rng = np.random.default_rng(seed)
    source_lengths = rng.lognormal(np.log(median), 0.6, num_pairs)
    target_lengths = source_lengths * rng.lognormal(np.log(ratio), 0.2, num_pairs)
    dtype = np.uint16 if vocab_size <= 2**16 else np.int32  # as in a token cache

    def side(lengths: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.clip(lengths.round().astype(int), 2, limit)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        rank = (vocab_size - FIRST + 1) ** rng.random(offsets[-1])  # density 1 / rank
        tokens = (rank.astype(int) - 1 + FIRST).astype(dtype)
        tokens[offsets[1:] - 1] = EOS
        return tokens, offsets

    source_limit, target_limit = limits
    sides = *side(source_lengths, source_limit), *side(target_lengths, target_limit)
    return TokenizedPairs(*sides, report={})


def median_length(limits: tuple[int, int]) -> float:
    """A median for `synthetic_pairs`: 24 as in WMT, where the limits are far enough from that."""
    return min(24, *(limit / 4 for limit in limits))


def full_rows(rows: int, source_length: int, target_length: int, vocab_size: int) -> Batch:
    """A batch with axes [1, B, ...] and a pair of random words, without padding, in each row."""
    rng = np.random.default_rng(0)
    src, tgt_out = (
        rng.integers(FIRST, vocab_size, (1, rows, length), dtype=np.int32)
        for length in (source_length, target_length)
    )
    tgt_in = np.roll(tgt_out, 1, axis=2)
    tgt_in[..., 0] = BOS
    return Batch(src, np.ones_like(src), tgt_in, tgt_out, np.ones_like(tgt_out))


def full_sequences(rows: int, length: int, predictions: int, vocab_size: int) -> Masked:
    """The same for BERT: a sequence of two sentences in each row, with so many masked tokens."""
    rng = np.random.default_rng(0)
    tokens_BS = rng.integers(5, vocab_size, (rows, length), np.int32)
    types_BS = np.broadcast_to(np.arange(length) >= length // 2, (rows, length)).astype(np.int32)
    masked_BP = np.sort([rng.permutation(length)[:predictions] for _ in range(rows)])
    parts = Masked(
        tokens_BS,
        types_BS,
        np.ones_like(tokens_BS),
        masked_BP.astype(np.int32),
        rng.integers(5, vocab_size, (rows, predictions), np.int32),
        np.zeros((rows, 1), np.int32),
        rng.integers(0, 2, (rows, 1), np.int32),
        np.full(rows, predictions, np.float32),
    )
    return Masked(*(part[None] for part in parts))


def random_images(rows: int, size: int, channels: int, classes: int) -> ImageBatch:
    """Images of noise and their classes, with axes [1, B, ...]."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (1, rows, size, size, channels), np.uint8)
    return ImageBatch(images, rng.integers(0, classes, (1, rows), np.int32))


class Ids(Tokenizer):
    """Token ids as text, so that no time goes into tokenization."""

    pieces, sample_batch = (), None

    def encode_batch(self, texts, num_threads):
        return [list(map(int, text.split())) for text in texts]

    def decode(self, ids):
        return " ".join(map(str, ids))


IDS = Tokenizers(Ids(), Ids())
