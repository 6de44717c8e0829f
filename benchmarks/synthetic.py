"""Sentence pairs that were never text, with lengths and word frequencies like WMT's."""

import numpy as np

from transformer.data.token_cache import TokenizedPairs
from transformer.data.vocabulary import EOS, UNK


def synthetic_pairs(
    num_pairs: int, vocab_size: int, max_source_length: int, max_target_length: int, seed: int
) -> TokenizedPairs:
    """Pairs of 29 tokens a side on average, if these fit; the same ones for the same arguments.

    Lengths are log-normal, those of a pair alike, with a median of no more than a quarter of the
    longest; ids follow Zipf's law, whose repetitions embedding gradients feel. Longer sides are
    cut, where training would drop the pair.
    """
    rng = np.random.default_rng(seed)
    median = median_length(max_source_length, max_target_length)
    source_lengths = rng.lognormal(np.log(median), 0.6, num_pairs)
    target_lengths = source_lengths * rng.lognormal(0, 0.2, num_pairs)
    first = UNK + 1

    def side(lengths: np.ndarray, longest: int) -> tuple[np.ndarray, np.ndarray]:
        lengths = np.clip(lengths.astype(int), 2, longest)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        rank = (vocab_size - first + 1) ** rng.random(offsets[-1])  # density 1 / rank
        tokens = (rank.astype(int) - 1 + first).astype(np.int32)
        tokens[offsets[1:] - 1] = EOS
        return tokens, offsets

    report = {"total": num_pairs, "pairs": num_pairs}
    report |= dict.fromkeys(("empty", "source_too_long", "target_too_long"), 0)
    return TokenizedPairs(
        *side(source_lengths, max_source_length), *side(target_lengths, max_target_length), report
    )


def median_length(max_source_length: int, max_target_length: int) -> float:
    """Of the source sides of `synthetic_pairs`."""
    return min(24, max_source_length / 4, max_target_length / 4)
