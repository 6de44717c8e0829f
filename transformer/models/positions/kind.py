"""The base of all kinds of positions, and what they may add by distance."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.numerics import multiply
from transformer.system.errors import UserError


class Scoring(NamedTuple):
    """What attention does besides products of queries and keys; any may be None.

    The first three depend on the distance, a key's position less the query's. For whole rows their
    first axis is R: the distances from 1 - T to S - 1, counted in places of the row. In a decoding
    step it is two axes, [B, X], for the one query of each row, where B may be 1.
    """

    bias_RH: jax.Array | None = None  # added to scores
    key_RK: jax.Array | None = None  # added to keys, and the same for all heads
    value_RU: jax.Array | None = None  # added to values, likewise
    cap: jax.Array | None = None  # products become cap * tanh(product / cap), before the bias

    def scores(self, scores_BHTS: jax.Array, query_BHTK: jax.Array) -> jax.Array:
        """The scores, from the products of scaled queries with keys."""
        in_rows, (_, H, T, S) = self._in_rows, scores_BHTS.shape
        if self.key_RK is not None:
            spec = "BHTK,RK->BHTR" if in_rows else "BHTK,BRK->BHTR"
            more_BHTR = multiply(spec, query_BHTK, self.key_RK, query_BHTK.dtype)
            scores_BHTS += by_pair(more_BHTR, S) if in_rows else more_BHTR
        if self.cap is not None:
            scores_BHTS = self.cap * jnp.tanh(scores_BHTS / self.cap)
        if self.bias_RH is not None:
            bias = self.bias_RH.swapaxes(-1, -2)[..., None, :].astype(scores_BHTS.dtype)
            if in_rows:
                bias = by_pair(jnp.broadcast_to(bias, (H, T, bias.shape[-1])), S)[None]
            scores_BHTS += bias
        return scores_BHTS

    def values(self, y_BHTU: jax.Array, weights_BHTS: jax.Array) -> jax.Array:
        """The weighted sums of values, from those of values without what is added to them."""
        if self.value_RU is None:
            return y_BHTU
        spec = "BHTR,RU->BHTU" if self._in_rows else "BHTR,BRU->BHTU"
        weights_BHTR = by_distance(weights_BHTS) if self._in_rows else weights_BHTS
        return y_BHTU + multiply(spec, weights_BHTR, self.value_RU, weights_BHTS.dtype)

    def of_queries(self, first: jax.Array, T: int, S: int) -> "Scoring":
        """The same of T queries of whole rows, the first of which is number `first`."""

        def slice_of(x: jax.Array | None) -> jax.Array | None:
            if x is None:
                return None
            num_queries = len(x) - S + 1
            # Queries that fill up the last block come after the row.
            x = jnp.pad(x, ((T, 0), (0, 0)))
            return jax.lax.dynamic_slice_in_dim(x, num_queries - first, T + S - 1)

        return Scoring(*map(slice_of, self[:3]), self.cap)

    @property
    def is_plain(self) -> bool:
        return all(x is None for x in self)

    @property
    def _in_rows(self) -> bool:
        return all(x is None or x.ndim == 2 for x in self[:3])


def by_pair(x_TR: jax.Array, S: int) -> jax.Array:
    """[..., T, R] as [..., T, S]: for key s of query t the entry of the distance s - t.

    Only padding and reshaping, since a gather would have a slow gradient.
    """
    *batch, T, R = x_TR.shape
    x_TR = jnp.pad(x_TR, [(0, 0)] * (len(batch) + 1) + [(0, 1)])
    x_X = x_TR.reshape(*batch, T * (R + 1))[..., T - 1 : T - 1 + T * R]
    return x_X.reshape(*batch, T, R)[..., :S]


def by_distance(x_TS: jax.Array) -> jax.Array:
    """Undoes `by_pair`: [..., T, S] as [..., T, R], with zeros where a query has no such key."""
    *batch, T, S = x_TS.shape
    R, whole = T + S - 1, [(0, 0)] * len(batch)
    x_X = jnp.pad(x_TS, [*whole, (0, 0), (0, R - S)]).reshape(*batch, T * R)
    return jnp.pad(x_X, [*whole, (T - 1, 1)]).reshape(*batch, T, R + 1)[..., :R]


class Positions(nnx.Module):
    """A kind's part in self-attention; this base does nothing there.

    is_shared: whether all layers of a stack have one object, with one set of parameters.
    scores: whether `scoring` adds anything; fast kernels then cannot take its place.
    max_distance: the default of model.max_distance, for kinds that use it.
    """

    is_shared, scores = True, False
    max_distance: int | None = None

    def __init__(self, config: Any, causal: bool, rngs: nnx.Rngs):
        """causal: whether the stack is a decoder."""

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises UserError for a config with which the kind cannot be."""
        if cls.max_distance is None and config.max_distance:
            raise UserError(
                f"model.max_distance is {config.max_distance}, but model.positions is "
                f"{config.positions!r} and does not use it; leave it at 0"
            )

    @staticmethod
    def multiplications(config: Any) -> int:
        """Those for a pair of tokens besides score and weighted sum."""
        return 0

    def rotate(self, x_BHTK: jax.Array, place: Any) -> jax.Array:
        """Queries or keys as their positions turn them.

        place: a `Mask` or a `DecodingStep`. Its `positions_BT` are those within sentences; sizes of
          1 stand for any.
        """
        return x_BHTK

    def scoring(self, distances: Any) -> Scoring:
        """What is added at these distances; see `Scoring`. They are an array, [R] or [B, X]."""
        return Scoring()
