"""Several models searched as one: at each step the mean of their probabilities counts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.decoding.search import Cache
from transformer.models.functional import FunctionalModel, Params

# Where the models' own caches are stacked: hypotheses must stay first where the search moves them.
_CACHE_AXES = {"step": None, "sentence": 0, "hypothesis": 1}


def stack(params: Sequence[Params]) -> Params:
    """The parameters of several models of one config, along a first axis of each array."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *params)


class Ensemble(NamedTuple):
    """A `FunctionalModel` for a search with K models of one config.

    Its parameters are theirs, stacked: every array begins with the axis K.
    """

    model: FunctionalModel

    def bind(self, params: Params) -> "BoundEnsemble":
        return BoundEnsemble(self.model, params)


class BoundEnsemble(NamedTuple):
    """The methods of `model.Transformer` that a search calls."""

    model: FunctionalModel
    params: Params

    def encode(self, src_BS: jax.Array) -> jax.Array:
        """The memories, [K, B, S, D]."""
        return jax.vmap(lambda params: self.model.bind(params).encode(src_BS))(self.params)

    def init_cache(self, memory_KBSD: jax.Array, *arguments: Any) -> Cache:
        def of_one(params: Params, memory_BSD: jax.Array) -> Cache:
            return self.model.bind(params).init_cache(memory_BSD, *arguments)

        return jax.vmap(of_one, out_axes=_CACHE_AXES)(self.params, memory_KBSD)

    def decode_step(self, tokens_N: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """The logarithms [N, V] of the mean probabilities of the next token."""

        def of_one(params: Params, cache: Cache) -> tuple[jax.Array, Cache]:
            return self.model.bind(params).decode_step(tokens_N, cache)

        together = jax.vmap(of_one, in_axes=(0, _CACHE_AXES), out_axes=(0, _CACHE_AXES))
        logits_KNV, cache = together(self.params, cache)
        log_probs_KNV = jax.nn.log_softmax(logits_KNV)
        return jax.nn.logsumexp(log_probs_KNV, axis=0) - jnp.log(len(logits_KNV)), cache
