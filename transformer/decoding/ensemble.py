"""Several models searched as one: at each step the mean of their probabilities counts."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from transformer.decoding.search import Cache
from transformer.models.functional import FunctionalModel, Params

# Where the models' own caches are stacked: hypotheses must stay first where the search moves them.
_CACHE_AXES = {"step": None, "sentence": 0, "hypothesis": 1}


def stack(trees: Sequence[Params]) -> Params:
    """Parameters or extra state of several models of one config, along a first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


class Ensemble(NamedTuple):
    """A `FunctionalModel` for a search with K models of one config.

    Its parameters and extra state are theirs, stacked: every array begins with the axis K.
    """

    model: FunctionalModel

    def bind(self, params: Params, extra: dict[str, Any]) -> "BoundEnsemble":
        return BoundEnsemble(self.model, (params, extra))


class BoundEnsemble(NamedTuple):
    """What a search calls of a sequence-to-sequence model."""

    model: FunctionalModel
    variables: tuple[Params, dict[str, Any]]

    def encode(self, src_BS: jax.Array) -> Any:
        """The memories; every array begins with the axes [K, B]."""
        return jax.vmap(lambda v: self.model.bind(*v).encode(src_BS))(self.variables)

    def init_cache(self, memory: Any, *arguments: Any) -> Cache:
        def of_one(variables: Any, memory: Any) -> Cache:
            return self.model.bind(*variables).init_cache(memory, *arguments)

        return jax.vmap(of_one, out_axes=_CACHE_AXES)(self.variables, memory)

    def decode_step(self, tokens_N: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """The logarithms [N, V] of the mean probabilities of the next token."""

        def of_one(variables: Any, cache: Cache) -> tuple[jax.Array, Cache]:
            return self.model.bind(*variables).decode_step(tokens_N, cache)

        together = jax.vmap(of_one, in_axes=(0, _CACHE_AXES), out_axes=(0, _CACHE_AXES))
        logits_KNV, cache = together(self.variables, cache)
        log_probs_KNV = jax.nn.log_softmax(logits_KNV)
        return jax.nn.logsumexp(log_probs_KNV, axis=0) - jnp.log(len(logits_KNV)), cache
