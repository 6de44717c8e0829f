"""Probabilities of given targets: a model decodes with the true prefix (teacher forcing)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.vocabulary import BOS, PAD
from transformer.decoding.batching import CPU_TOKENS, Shape, batches, is_of_cpus
from transformer.decoding.ensemble import Ensemble
from transformer.decoding.programs import Programs, Variables
from transformer.decoding.top_k import log_softmax
from transformer.models.cache import widened
from transformer.models.functional import FunctionalModel


class Forced(NamedTuple):
    """The results for each token of a target, EOS included."""

    log_probs_T: np.ndarray  # natural logarithms
    expected_T: np.ndarray  # the most probable token in its place
    attention_TS: np.ndarray | None  # the weights over source tokens when it was predicted


class ForcedDecoder:
    """Decodes with the true prefix; compiled programs are kept for the next call.

    It goes token by token, as a search does, so that it works with every model that decodes.
    """

    def __init__(self, model: FunctionalModel | Ensemble, mesh: jax.sharding.Mesh):
        self.num_devices = mesh.size
        is_wide = is_of_cpus(mesh)

        def decode(
            variables: Variables,
            src_BS: jax.Array,
            tgt_in_BT: jax.Array,
            tgt_out_BT: jax.Array,
            attention: bool,
        ) -> Forced:
            bound = model.bind(*variables)
            cache = bound.init_cache(bound.encode(src_BS), src_BS, 1, tgt_in_BT.shape[1])
            if is_wide:
                cache = widened(cache)
            if attention:
                cache["attention"] = jnp.zeros(src_BS.shape, jnp.float32)

            def step(cache, tokens):
                in_B, out_B = tokens
                logits_BV, cache = bound.decode_step(in_B, cache)
                log_probs_BV = log_softmax(logits_BV).astype(jnp.float32)
                log_probs_B = jnp.take_along_axis(log_probs_BV, out_B[:, None], axis=1)[:, 0]
                # Like a search, it never expects PAD or BOS.
                log_probs_BV = log_probs_BV.at[:, jnp.array([PAD, BOS])].set(-jnp.inf)
                expected_B = jnp.argmax(log_probs_BV, axis=-1)
                return cache, Forced(log_probs_B, expected_B, cache.get("attention"))

            _, found = jax.lax.scan(step, cache, (tgt_in_BT.T, tgt_out_BT.T))
            return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), found)

        self._programs = Programs(decode, 3, mesh)

    def prepare(
        self,
        variables: Variables,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
    ) -> dict[str, jax.stages.Compiled]:
        """Compiles and runs once the programs for these pairs of token ids, the largest first."""
        variables = self._programs.gather(variables)
        programs = {}
        for shape, _ in self._batches(sources, targets):
            empty = np.full(shape, PAD, np.int32)
            name = f"forced decoding, {shape.rows} x {shape.width} tokens"
            programs[name] = self._programs.compiled(
                variables, empty, empty, empty, attention=False
            )
            self._programs(variables, empty, empty, empty, attention=False)
        return programs

    def decode(
        self,
        variables: Variables,
        sources: Sequence[np.ndarray],
        targets: Sequence[np.ndarray],
        *,
        attention: bool = False,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[Forced]:
        """The results for each pair of token ids, both with EOS.

        attention: also return the weights of attention; UserError if the model has none.
        """
        variables = self._programs.gather(variables)
        results: list[Forced | None] = [None] * len(targets)
        done = 0
        for shape, members in self._batches(sources, targets):
            src_BS, in_BT, out_BT = (np.full(shape, PAD, np.int32) for _ in range(3))
            for row, i in enumerate(members):
                src_BS[row, : len(sources[i])] = sources[i]
                in_BT[row, : len(targets[i])] = [BOS, *targets[i][:-1]]
                out_BT[row, : len(targets[i])] = targets[i]
            found = self._programs(variables, src_BS, in_BT, out_BT, attention=attention)
            found = jax.tree.map(np.asarray, found)
            for row, i in enumerate(members):
                S, T = len(sources[i]), len(targets[i])
                attention_TS = found.attention_TS[row, :T, :S] if attention else None
                log_probs_T, expected_T = found.log_probs_T[row, :T], found.expected_T[row, :T]
                results[i] = Forced(log_probs_T, expected_T, attention_TS)
            done += len(members)
            progress(done)
        return results

    def _batches(self, sources, targets) -> list[tuple[Shape, list[int]]]:
        longer = [max(len(s), len(t)) for s, t in zip(sources, targets, strict=True)]
        return batches(longer, lambda width: max(1, CPU_TOKENS // width), self.num_devices)
