"""Sentences in, sentences out: tokens, batches of similar length, beam search, text."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import numpy as np

from transformer.decoding import Hypotheses, beam_search
from transformer.errors import check_range
from transformer.model import FunctionalModel, Params
from transformer.sharding import replicated, split_rows
from transformer.tokenizer import EOS, PAD, Tokenizers

# Positions (source tokens, padding included) that are decoded at once on each device.
TOKENS_AT_ONCE = 2048
SHORTEST_WIDTH = 16


@dataclasses.dataclass(frozen=True)
class DecodingConfig:
    """See configs/base.py."""

    beam_size: int
    length_penalty: float
    max_extra_length: int

    def __post_init__(self):
        check_range(self, "decoding", "beam_size max_extra_length", 1)
        check_range(self, "decoding", "length_penalty", 0)


class Translator:
    """Translates with given parameters; compiled searches are kept for the next call."""

    def __init__(
        self,
        model: FunctionalModel,
        tokenizers: Tokenizers,
        config: DecodingConfig,
        mesh: jax.sharding.Mesh,
    ):
        self.tokenizers = tokenizers
        self.config = config
        self.num_devices = mesh.size

        def search(params: Params, src_BS: jax.Array, max_length_B: jax.Array) -> Hypotheses:
            longest = src_BS.shape[1] + config.max_extra_length
            bound = model.bind(params)
            cache = bound.init_cache(bound.encode(src_BS), src_BS, config.beam_size, longest)
            return beam_search(
                bound.decode_step,
                cache,
                max_length_B,
                beam_size=config.beam_size,
                alpha=config.length_penalty,
                longest=longest,
            )

        rows = split_rows(mesh, axis=0)
        self._search = jax.jit(search, in_shardings=(replicated(mesh), rows, rows))

    def translate(
        self,
        params: Params,
        sentences: Sequence[str],
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[str]:
        """The best translation of each sentence, in order; an empty line stays empty.

        `progress` is called with the number of sentences done so far.
        """
        sources = [
            np.append(np.asarray(tokens, np.int32), EOS)
            for tokens in self.tokenizers.source.encode_batch(sentences, num_threads=-1)
        ]
        translations = [""] * len(sentences)
        done = 0
        for width, members in batches_by_length(
            [len(s) if text.strip() else 0 for s, text in zip(sources, sentences)],
            self.num_devices,
        ):
            rows = rows_for_width(width, self.num_devices)
            src_BS = np.full((rows, width), PAD, np.int32)
            max_length_B = np.zeros(rows, np.int32)  # 0: an empty row, settled at once
            for row, i in enumerate(members):
                src_BS[row, : len(sources[i])] = sources[i]
                # Section 6.1: input length + 50, the input counted without its EOS.
                max_length_B[row] = len(sources[i]) - 1 + self.config.max_extra_length
            hypotheses = self._search(params, src_BS, max_length_B)
            best_BL = np.asarray(hypotheses.tokens_BML[:, 0])
            for row, i in enumerate(members):
                translations[i] = self.tokenizers.target.decode(best_BL[row].tolist())
            done += len(members)
            progress(done)
        return translations


def rows_for_width(width: int, num_devices: int) -> int:
    return num_devices * max(1, TOKENS_AT_ONCE // width)


def batches_by_length(lengths: Sequence[int], num_devices: int) -> list[tuple[int, list[int]]]:
    """(padded width, members) of each batch; sentences of length 0 are in none.

    Widths are 16, 32, 64, ..., so that few shapes are compiled, and each has a fixed number
    of rows. The longest come first: if memory runs out, it does so at the start.
    """
    by_width: dict[int, list[int]] = {}
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if lengths[i]:
            width = max(SHORTEST_WIDTH, 1 << (lengths[i] - 1).bit_length())
            by_width.setdefault(width, []).append(i)
    batches = []
    for width, members in by_width.items():
        rows = rows_for_width(width, num_devices)
        batches += [(width, members[i : i + rows]) for i in range(0, len(members), rows)]
    return batches
