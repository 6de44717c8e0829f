"""What a model expects next after each prefix of a given target (teacher forcing)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.sources import PairSource
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import BOS, EOS, PAD
from transformer.decoding.batching import CPU_TOKENS, Shape, batches
from transformer.decoding.ensemble import Ensemble
from transformer.decoding.translation import Variables
from transformer.models.functional import FunctionalModel
from transformer.system.distributed import barrier
from transformer.system.sharding import distribute, replicated, split_over_all


class ForcedDecoder:
    """Decodes with the true prefix; compiled programs are kept for the next call.

    It goes token by token, as a search does, so that it works with every model that decodes.
    """

    def __init__(
        self,
        model: FunctionalModel | Ensemble,
        tokenizers: Tokenizers,
        mesh: jax.sharding.Mesh,
    ):
        self.tokenizers = tokenizers
        self.num_devices = mesh.size

        def predict(variables: Variables, src_BS: jax.Array, tgt_in_BT: jax.Array) -> jax.Array:
            bound = model.bind(*variables)
            cache = bound.init_cache(bound.encode(src_BS), src_BS, 1, tgt_in_BT.shape[1])

            def step(cache, tokens_B):
                logits_BV, cache = bound.decode_step(tokens_B, cache)
                # Like a search, it never expects PAD or BOS.
                logits_BV = logits_BV.at[:, jnp.array([PAD, BOS])].set(-jnp.inf)
                return cache, jnp.argmax(logits_BV, axis=-1)

            return jax.lax.scan(step, cache, tgt_in_BT.T)[1].T

        self._rows, everywhere = split_over_all(mesh), replicated(mesh)
        self._gather = jax.jit(lambda variables: variables, out_shardings=everywhere)
        self._predict = jax.jit(
            predict, in_shardings=(everywhere, self._rows, self._rows), out_shardings=everywhere
        )
        self._compiled: dict[Shape, jax.stages.Compiled] = {}

    def prepare(self, variables: Variables, source: PairSource) -> dict[str, jax.stages.Compiled]:
        """Compiles and runs once what the pairs of `source` need, the largest first."""
        variables = self._gather(variables)
        for shape, _ in self._batches(*self._encode(*zip(*source.pairs()))):
            if shape not in self._compiled:
                empty = np.full(shape, PAD, np.int32)
                self._run(variables, empty, empty)
        return {f"forced decoding, {r} x {w} tokens": x for (r, w), x in self._compiled.items()}

    def hits(
        self, variables: Variables, sources: Sequence[str], references: Sequence[str]
    ) -> list[np.ndarray]:
        """For each reference, at which of its tokens, EOS included, the model is right, [T]."""
        variables = self._gather(variables)
        sources, targets = self._encode(sources, references)
        found = [np.empty(0, bool)] * len(targets)
        for shape, members in self._batches(sources, targets):
            src_BS, tgt_in_BT = (np.full(shape, PAD, np.int32) for _ in range(2))
            for row, i in enumerate(members):
                src_BS[row, : len(sources[i])] = sources[i]
                tgt_in_BT[row, : len(targets[i])] = [BOS, *targets[i][:-1]]
            predicted_BT = self._run(variables, src_BS, tgt_in_BT)
            for row, i in enumerate(members):
                found[i] = predicted_BT[row, : len(targets[i])] == targets[i]
        return found

    def _encode(self, *sides: Sequence[str]) -> list[list[list[int]]]:
        """The token ids and EOS of all lines of the sources and of the references."""
        return [
            [[*tokens, EOS] for tokens in tokenizer.encode_batch(list(lines), num_threads=-1)]
            for tokenizer, lines in zip(self.tokenizers, sides, strict=True)
        ]

    def _batches(self, sources, targets) -> list[tuple[Shape, list[int]]]:
        longer = [max(len(s), len(t)) for s, t in zip(sources, targets, strict=True)]
        return batches(longer, lambda width: max(1, CPU_TOKENS // width), self.num_devices)

    def _run(self, variables: Variables, src_BS: np.ndarray, tgt_in_BT: np.ndarray) -> np.ndarray:
        arguments = [distribute(lambda x: x, x, self._rows) for x in (src_BS, tgt_in_BT)]
        shape = Shape(*src_BS.shape)
        if shape not in self._compiled:
            self._compiled[shape] = self._predict.lower(variables, *arguments).compile()
            barrier()  # one may have compiled for longer
        return np.asarray(self._compiled[shape](variables, *arguments))
