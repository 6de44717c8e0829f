"""Sentences in, sentences out: tokens, batches of similar length, beam search, text."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from transformer.data.sources import PairSource
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import EOS, PAD
from transformer.decoding.batching import Shape, batches, most_rows
from transformer.decoding.ensemble import Ensemble
from transformer.decoding.search import Hypotheses, beam_search
from transformer.models.functional import FunctionalModel
from transformer.system.distributed import barrier
from transformer.system.errors import check_range
from transformer.system.sharding import distribute, replicated, split_over_all

Variables = tuple[dict[str, Any], dict[str, Any]]


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
    """Translates with given variables; compiled searches are kept for the next call.

    Variables are a pair: the parameters of a model, and its extra state ({} for most).
    """

    def __init__(
        self,
        model: FunctionalModel | Ensemble,
        tokenizers: Tokenizers,
        config: DecodingConfig,
        mesh: jax.sharding.Mesh,
    ):
        self.tokenizers = tokenizers
        self.config = config
        self._mesh = mesh
        self._model = model

        def search(variables: Variables, src_BS: jax.Array, max_length_B: jax.Array) -> Hypotheses:
            longest = src_BS.shape[1] + config.max_extra_length
            bound = model.bind(*variables)
            cache = bound.init_cache(bound.encode(src_BS), src_BS, config.beam_size, longest)
            return beam_search(
                bound.decode_step,
                cache,
                max_length_B,
                beam_size=config.beam_size,
                alpha=config.length_penalty,
                longest=longest,
            )

        # Each device decodes its rows with all of the parameters: a step of a search is too
        # little work to wait for messages. All processes then get all hypotheses.
        self._rows, everywhere = split_over_all(mesh), replicated(mesh)
        self._gather = jax.jit(lambda variables: variables, out_shardings=everywhere)
        self._search = jax.jit(
            search, in_shardings=(everywhere, self._rows, self._rows), out_shardings=everywhere
        )
        self._compiled: dict[Shape, jax.stages.Compiled] = {}

    def prepare(self, variables: Variables, source: PairSource) -> dict[str, jax.stages.Compiled]:
        """Compiles and runs once what the sentences of `source` need, the largest first."""
        texts = [text for text, _ in source.pairs()]
        extra = self.config.max_extra_length
        shapes = {shape for shape, _ in self._batches(variables, self._encode(texts))}
        variables = self._gather(variables)
        programs = {}
        for shape in sorted(shapes, key=lambda shape: -shape.rows * (shape.width + extra)):
            rows, width = shape
            self._run(variables, np.full(shape, PAD, np.int32), np.zeros(rows, np.int32))
            programs[f"search, {rows} x {width} source tokens"] = self._compiled[shape]
        return programs

    def translate(
        self,
        variables: Variables,
        sentences: Sequence[str],
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[str]:
        """The best translation of each sentence, in order; an empty line stays empty.

        `progress` is called with the number of sentences done so far.
        """
        variables = self._gather(variables)
        sources = self._encode(sentences)
        translations = [""] * len(sentences)
        done = 0
        for shape, members in self._batches(variables, sources):
            src_BS = np.full(shape, PAD, np.int32)
            max_length_B = np.zeros(shape.rows, np.int32)  # 0: an empty row, settled at once
            for row, i in enumerate(members):
                src_BS[row, : len(sources[i])] = sources[i]
                # Section 6.1: input length + 50, the input counted without its EOS.
                max_length_B[row] = len(sources[i]) - 1 + self.config.max_extra_length
            best_BL = self._run(variables, src_BS, max_length_B)
            for row, i in enumerate(members):
                translations[i] = self.tokenizers.target.decode(best_BL[row].tolist())
            done += len(members)
            progress(done)
        return translations

    def _encode(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """Token ids and EOS of each sentence; nothing of a blank one."""
        encoded = self.tokenizers.source.encode_batch(sentences, num_threads=-1)
        return [
            np.append(np.asarray(tokens, np.int32), EOS) if text.strip() else np.empty(0, np.int32)
            for tokens, text in zip(encoded, sentences)
        ]

    def _batches(
        self, variables: Variables, sources: Sequence[np.ndarray]
    ) -> list[tuple[Shape, list[int]]]:
        def bytes_of_row(width: int) -> int:
            one = jax.ShapeDtypeStruct((1, width), np.int32)
            M, longest = self.config.beam_size, width + self.config.max_extra_length

            def step(variables, src_BS):
                bound = self._model.bind(*variables)
                cache = bound.init_cache(bound.encode(src_BS), src_BS, M, longest)
                return bound.decode_step(jax.numpy.zeros(M, np.int32), cache)

            logits_MV, cache = jax.eval_shape(step, variables, one)
            # The logits, and what becomes of them, are there a few times, in float32.
            sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(cache)]
            return sum(sizes) + 16 * logits_MV.size

        devices = self._mesh.devices
        return batches(
            [len(source) for source in sources],
            lambda width: most_rows(width, bytes_of_row, devices.flat[0]),
            devices.size,
        )

    def _run(
        self, variables: Variables, src_BS: np.ndarray, max_length_B: np.ndarray
    ) -> np.ndarray:
        """The tokens of the best hypothesis of each row, [B, L]."""
        arguments = [distribute(lambda x: x, x, self._rows) for x in (src_BS, max_length_B)]
        shape = Shape(*src_BS.shape)
        if shape not in self._compiled:
            self._compiled[shape] = self._search.lower(variables, *arguments).compile()
            barrier()  # one may have compiled for longer
        hypotheses = self._compiled[shape](variables, *arguments)
        return np.asarray(hypotheses.tokens_BML)[:, 0]
