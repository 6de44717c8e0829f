"""Search inputs of a batch: constraint arrays, and the strategy and rules built from them."""

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from transformer.data.vocabulary import PAD
from transformer.decoding.batching import Shape
from transformer.decoding.brackets import Brackets, Grammar
from transformer.decoding.config import DecodingConfig
from transformer.decoding.rules import (
    Coverage,
    LogitsRule,
    MinLength,
    NoRepeat,
    Prefix,
    RepetitionPenalty,
)
from transformer.decoding.strategies import (
    Beam,
    Constrained,
    DiverseBeam,
    Sample,
    Strategy,
    phrase_tables,
)


class SearchInputs(NamedTuple):
    """Constraints on the output of each row, as arrays; None for no constraint."""

    max_length_B: np.ndarray
    min_length_B: np.ndarray | None = None
    prefix_BP: np.ndarray | None = None
    phrase_BPC: np.ndarray | None = None
    next_BPCC: np.ndarray | None = None
    seed_B: np.ndarray | None = None
    words_B: np.ndarray | None = None


class Request(NamedTuple):
    """A source, and the requirements on its output."""

    source: str
    prefix: str = ""  # the required beginning
    constraints: Sequence[str] = ()  # the phrases that it must contain
    number: int | None = None  # equal sources with other numbers get other samples


class Sentence(NamedTuple):
    """A request in tokens."""

    source: np.ndarray  # token ids and EOS; empty if blank
    prefix: list[int]
    phrases: list[tuple[int, ...]]
    words: int  # of the source
    number: int | None = None


def parts_of_search(
    config: DecodingConfig,
    inputs: SearchInputs,
    src_BS: jax.Array,
    grammar: Grammar | None,
    given: int = 0,
) -> tuple[Strategy, list[LogitsRule]]:
    """The strategy and the rules for `beam_search`. given: tokens of each prefix; see Prefix."""
    rules = []
    if inputs.min_length_B is not None:
        rules.append(MinLength(inputs.min_length_B))
    if inputs.prefix_BP is not None:
        rules.append(Prefix(inputs.prefix_BP, given))
    if inputs.words_B is not None:
        rules.append(Brackets(grammar, inputs.words_B, inputs.max_length_B))
    if config.no_repeat_ngram:
        rules.append(NoRepeat(config.no_repeat_ngram))
    if config.repetition_penalty != 1:
        rules.append(RepetitionPenalty(config.repetition_penalty))
    if config.coverage_penalty:
        rules.append(Coverage(config.coverage_penalty, src_BS != PAD))
    if inputs.phrase_BPC is not None:
        strategy = Constrained(config.beam_size, inputs.phrase_BPC, inputs.next_BPCC)
    elif inputs.seed_B is not None:
        keys_B = jax.vmap(jax.random.key)(inputs.seed_B)
        keys_B = jax.vmap(jax.random.fold_in, (0, None))(keys_B, config.seed)
        strategy = Sample(config.temperature, config.top_k, config.top_p, keys_B)
    elif config.beam_groups > 1:
        strategy = DiverseBeam(config.beam_groups, config.diversity)
    else:
        strategy = Beam()
    return strategy, rules


def arrays_of(
    config: DecodingConfig,
    sentences: Sequence[Sentence],
    shape: Shape,
    members: Sequence[int],
    sizes: tuple[int, int, int],
) -> tuple[np.ndarray, SearchInputs]:
    """The rows of a batch. Rows without a member have length 0 and are settled at once."""
    B = shape.rows
    longest_prefix, P, C = sizes
    has_minimum = config.min_length or config.min_length_ratio
    src_BS = np.full(shape, PAD, np.int32)
    inputs = SearchInputs(
        max_length_B=np.zeros(B, np.int32),
        min_length_B=np.zeros(B, np.int32) if has_minimum else None,
        prefix_BP=np.full((B, longest_prefix), PAD, np.int32) if longest_prefix else None,
        phrase_BPC=np.full((B, P, C), PAD, np.int32) if P else None,
        next_BPCC=np.zeros((B, P, C, C), np.int32) if P else None,
        seed_B=np.zeros(B, np.uint32) if config.temperature else None,
        words_B=np.zeros(B, np.int32) if config.brackets else None,
    )
    for row, i in enumerate(members):
        source, prefix, phrases, words, number = sentences[i]
        src_BS[row, : len(source)] = source
        # Section 6.1: input length + 50, the input counted without its EOS.
        inputs.max_length_B[row] = config.longest(len(source) - 1)
        if has_minimum:
            inputs.min_length_B[row] = config.shortest(len(source) - 1)
        if longest_prefix:
            inputs.prefix_BP[row, : len(prefix)] = prefix
        if P:
            inputs.phrase_BPC[row], inputs.next_BPCC[row] = phrase_tables(phrases, P, C)
        if config.brackets:
            inputs.words_B[row] = words
        if config.temperature:  # of this row only, so that its neighbours do not matter
            own = [] if number is None else [number % 2**31]
            asked = np.concatenate([source, np.asarray([*prefix, *own], np.int32)])
            inputs.seed_B[row] = zlib.crc32(asked.astype("<i4").tobytes())
    return src_BS, inputs


def sizes_of_inputs(sentences: Sequence[Sentence]) -> tuple[int, int, int]:
    """The most tokens of a prefix, phrases, and tokens of a phrase, as powers of 2, or 0.

    Powers of 2, so that few programs are compiled.
    """
    phrases = [sentence.phrases for sentence in sentences]
    most = (
        max((len(sentence.prefix) for sentence in sentences), default=0),
        max(map(len, phrases), default=0),
        max((len(phrase) for of_sentence in phrases for phrase in of_sentence), default=0),
    )
    return tuple(1 << (n - 1).bit_length() if n else 0 for n in most)


def longest_phrases(phrases: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The phrases that are not part of another one, each once."""
    different = dict.fromkeys(map(tuple, phrases))

    def is_part(phrase, other):
        n = len(phrase)
        return any(other[i : i + n] == phrase for i in range(len(other) - n + 1))

    return [x for x in different if x and not any(is_part(x, y) for y in different if y != x)]
