"""Attention of an RNN's decoder: the scores of Bahdanau et al. 2015 and of Luong et al. 2015.

Letters of this file: H hidden units of the decoder, U an annotation (the encoder's output at a
token), K a key, which scores are computed from, M the states that attend.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from transformer.models.numerics import multiply
from transformer.models.rnn.recurrence import INITIALIZATIONS, Product, Weights
from transformer.models.rnn.rnn_config import RNNConfig


class Alignment(nnx.Module):
    """Scores of a state s with each annotation h_j, their softmax, and the context.

        additive   v tanh(W s + U h_j)     Bahdanau's; Luong's "concat", with (W, U) as one matrix
        dot        s h_j
        general    s W h_j

    window: 0, or D of Luong's local-p. A state then predicts a position p = S sigmoid(v tanh(W s));
    only annotations within D of it have weights, times exp(-(j - p)^2 / (2 (D / 2)^2)) each.
    """

    def __init__(self, config: RNNConfig, rngs: nnx.Rngs):
        H, U, K = config.hidden_size, config.annotation_size, config.attention_size
        score, window = config.attention, config.attention_window
        initialization = INITIALIZATIONS[config.initialization]
        if score == "additive":
            self.query_HK = initialization.matrix("alignment", (H, K), rngs)
            self.key_UK = initialization.matrix("alignment", (U, K), rngs)
            if config.attention_bias:
                self.key_bias_K = initialization.vector(K, rngs)
            energy_K1 = initialization.energy(rngs.params(), (K, 1), jnp.float32)
            self.energy_K = nnx.Param(energy_K1[:, 0])
        elif score == "general":
            self.key_UH = initialization.matrix("alignment", (U, H), rngs)
        if window:
            self.position_HP = initialization.matrix("alignment", (H, H), rngs)
            position_P1 = initialization.energy(rngs.params(), (H, 1), jnp.float32)
            self.position_P = nnx.Param(position_P1[:, 0])
        self.score, self.window, self.dtype = score, window, jnp.dtype(config.dtype)
        self.use_bias = config.attention_bias

    def keys(self, annotations_BSU: jax.Array) -> jax.Array:
        """The keys of the annotations, computed once per sentence: [B, S, K]."""
        if self.score == "dot":
            return annotations_BSU
        if self.score == "general":
            return multiply("BSU,UH->BSH", annotations_BSU, self.key_UH[...], self.dtype)
        keys_BSK = multiply("BSU,UK->BSK", annotations_BSU, self.key_UK[...], self.dtype)
        return keys_BSK + self.key_bias_K[...][None, None] if self.use_bias else keys_BSK

    def weights(self, annotations_BSU: jax.Array, keys_BSK: jax.Array) -> Weights:
        """The weights of a step, for `recur`."""
        weights: Weights = {"annotations": ("BMS,BSU->BMU", annotations_BSU)}
        if self.score == "additive":
            weights["query"] = ("BMH,HK->BMK", self.query_HK[...])
        else:
            weights["keys"] = ("BMH,BSH->BMS", keys_BSK)
        if self.window:
            weights["position"] = ("BMH,HP->BMP", self.position_HP[...])
        return weights

    def fixed(self, keys_BSK: jax.Array) -> dict[str, jax.Array]:
        """The other arrays that a step needs, for `recur`."""
        fixed = {}
        if self.score == "additive":
            fixed |= {"keys": keys_BSK, "energy": self.energy_K[...]}
        if self.window:
            fixed["position"] = self.position_P[...]
        return fixed

    def __call__(
        self, product: Product, fixed: dict[str, Any], s_BMH: jax.Array, mask_BMS: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The contexts [B, M, U] of M states per row, and their weights [B, M, S]."""
        if self.score == "additive":
            scores_BMS = self._energies(product("query", s_BMH), fixed["keys"], fixed["energy"])
        else:
            scores_BMS = product("keys", s_BMH)
        least = jnp.finfo(scores_BMS.dtype).min
        if self.window:
            position_BMP = jnp.tanh(product("position", s_BMH))
            place_BM = multiply("BMP,P->BM", position_BMP, fixed["position"], self.dtype)
            distance_BMS = _distances(jax.nn.sigmoid(place_BM), mask_BMS)
            mask_BMS &= jnp.abs(distance_BMS) <= self.window
        # A state that may attend to nothing is padding; nobody reads its finite weights.
        scores_BMS = jnp.where(mask_BMS, scores_BMS, least)
        weights_BMS = jax.nn.softmax(scores_BMS)
        if self.window:
            weights_BMS *= jnp.exp(-2 * (distance_BMS / self.window) ** 2)
        return product("annotations", weights_BMS), weights_BMS

    def _energies(self, query_BMK, keys_BSK, energy_K):
        # The backward pass computes tanh again: keeping B M S K numbers per step takes longer.
        @jax.checkpoint
        def energies(query_BMK, keys_BSK, energy_K):
            hidden_BMSK = jnp.tanh(query_BMK[:, :, None] + keys_BSK[:, None])
            return multiply("BMSK,K->BMS", hidden_BMSK, energy_K, self.dtype)

        return energies(query_BMK, keys_BSK, energy_K)


def _distances(place_BM: jax.Array, mask_BMS: jax.Array) -> jax.Array:
    """j - p of each annotation that a state may attend to, j counted from 0 in its sentence."""
    length_BM1 = jnp.sum(mask_BMS, axis=-1, keepdims=True)
    j_BMS = jnp.cumsum(mask_BMS, axis=-1) - 1
    return j_BMS - length_BM1 * place_BM[..., None]
