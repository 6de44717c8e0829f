"""Ensembles: a search with the mean of several models' probabilities at each step."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.decoding.search import Cache
from transformer.models.functional import FunctionalModel, Params
from transformer.models.weight_layout import WeightLayout


class Ensemble(NamedTuple):
    """A `FunctionalModel` for a search with several models of one vocabulary, of any families.

    Its parameters and extra state are lists of theirs.
    """

    models: Sequence[FunctionalModel]

    def bind(
        self,
        params: Sequence[Params],
        extra: Sequence[dict[str, Any]],
        *,
        weight_layout: WeightLayout | None = None,
    ) -> "BoundEnsemble":
        together = zip(self.models, params, extra, strict=True)
        return BoundEnsemble(
            [model.bind(*own, weight_layout=weight_layout) for model, *own in together]
        )

    def in_layout(
        self,
        params: Sequence[Params],
        extra: Sequence[dict[str, Any]],
        weight_layout: WeightLayout,
    ) -> list[Params]:
        together = zip(self.models, params, extra, strict=True)
        return [model.in_layout(*own, weight_layout) for model, *own in together]

    def takes_int8(self) -> bool:
        return all(model.takes_int8() for model in self.models)


class BoundEnsemble(NamedTuple):
    """The methods of a sequence-to-sequence model that a search calls."""

    models: Sequence[nnx.Module]

    def encode(self, src_BS: jax.Array) -> list[Any]:
        """The memory of each model."""
        return [model.encode(src_BS) for model in self.models]

    def init_cache(self, memories: Sequence[Any], *arguments: Any) -> Cache:
        pairs = zip(self.models, memories, strict=True)
        caches = [model.init_cache(memory, *arguments) for model, memory in pairs]
        return _together(caches)

    def decode_step(self, tokens_N: jax.Array, cache: Cache) -> tuple[jax.Array, Cache]:
        """The logarithms [N, V] of the mean probabilities of the next token."""
        log_probs_KNV, caches = [], []
        for number, model in enumerate(self.models):
            shared = {name: cache[name] for name in ("step", "attention") if name in cache}
            own = {name: parts[number] for name, parts in cache.items() if name not in shared}
            logits_NV, own = model.decode_step(tokens_N, {**shared, **own})
            log_probs_KNV.append(jax.nn.log_softmax(logits_NV))
            caches.append(own)
        sum_NV = jax.nn.logsumexp(jnp.stack(log_probs_KNV), axis=0)
        together = _together(caches)
        if "attention" in cache:  # the mean of the models
            together["attention"] = sum(own["attention"] for own in caches) / len(caches)
        return sum_NV - jnp.log(len(self.models)), together


def _together(caches: Sequence[Cache]) -> Cache:
    """One cache, whose parts are lists of theirs."""
    names = ("sentence", "hypothesis", "key_values")
    parts = {name: [cache.get(name) for cache in caches] for name in names}
    return {"step": caches[0]["step"], **parts}
