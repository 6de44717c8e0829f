"""A mixture of experts in place of the feed-forward network (Shazeer et al. 2017, 1701.06538).

A router chooses the best k of E experts for each token; their outputs are weighted and added. No
token is dropped, and the output for a token depends only on that token. So a decoder that gets one
token at a time computes the same as with whole rows.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.core import min_dim

from transformer.models.decoder_only.decoder_only_config import DecoderOnlyConfig
from transformer.models.layers import ACTIVATIONS, Linear, kernel_init
from transformer.models.numerics import DropoutRngs, at_least_float32, multiply


class Experts(nnx.Module):
    """E feed-forward networks, of which each token uses k.

    Letters of this file: E experts, k experts of a token, A = k times the number of tokens, G
    groups of tokens that go to one expert together, R tokens of a group.
    """

    def __init__(self, config: DecoderOnlyConfig, rngs: nnx.Rngs):
        num_experts, d_model, d_ff = config.num_experts, config.d_model, config.expert_d_ff
        dtype = jnp.dtype(config.dtype)

        def kernels(d_in: int, d_out: int) -> nnx.Param:
            keys = jax.random.split(rngs.params(), num_experts)
            one = functools.partial(kernel_init, shape=(d_in, d_out), dtype=jnp.float32)
            return nnx.Param(jax.vmap(one)(keys))

        # int8 would save little time here, and choose other experts.
        self.router = Linear(
            d_model, num_experts, use_bias=False, dtype=dtype, rngs=rngs, takes_int8=False
        )
        self.hidden_EDF = kernels(d_model, d_ff)
        self.hidden_bias_EF = nnx.Param(jnp.zeros((num_experts, d_ff), jnp.float32))
        self.output_EFD = kernels(d_ff, d_model)
        self.output_bias_ED = nnx.Param(jnp.zeros((num_experts, d_model), jnp.float32))
        self.num_experts, self.num_chosen = num_experts, config.experts_per_token
        self.activation, self.dtype = config.activation, dtype

    def __call__(self, x_BXD: jax.Array, rngs: DropoutRngs | None = None) -> jax.Array:
        del rngs  # hidden layers have no dropout: the order of tokens there depends on the batch
        # 1. The best k experts of each token; the softmax is over these.
        scores_BXk, expert_BXk = jax.lax.top_k(self._scores(x_BXD), self.num_chosen)
        weights_BXk = jax.nn.softmax(scores_BXk, axis=-1)
        # 2. Tokens side by side, in groups of one expert each.
        group_size = -(-expert_BXk.size // self.num_experts)
        place_A, expert_G = groups(expert_BXk.reshape(-1), self.num_experts, group_size)
        x_AD = jnp.repeat(x_BXD.reshape(-1, x_BXD.shape[-1]), self.num_chosen, axis=0)
        x_GRD = jnp.zeros((expert_G.shape[0] * group_size, x_AD.shape[1]), x_AD.dtype)
        x_GRD = x_GRD.at[place_A].set(x_AD, unique_indices=True)
        x_GRD = x_GRD.reshape(expert_G.shape[0], group_size, -1)
        # 3. The networks.
        hidden_GRF = multiply("GRD,GDF->GRF", x_GRD, self.hidden_EDF[...][expert_G], self.dtype)
        hidden_GRF += self.hidden_bias_EF[...][expert_G][:, None]
        hidden_GRF = ACTIVATIONS[self.activation](hidden_GRF.astype(self.dtype))
        y_GRD = multiply("GRF,GFD->GRD", hidden_GRF, self.output_EFD[...][expert_G], self.dtype)
        y_GRD += self.output_bias_ED[...][expert_G][:, None]
        # 4. Back to the tokens.
        y_AD = y_GRD.reshape(-1, x_AD.shape[1])[place_A]
        y_BXkD = y_AD.reshape(*expert_BXk.shape, -1) * weights_BXk[..., None]
        return jnp.sum(y_BXkD, axis=2).astype(self.dtype)

    def balance(self, x_BXD: jax.Array, real_BX: jax.Array) -> jax.Array:
        """The unevenness of each row's tokens over experts, [B]: from 1, evenly, up to E.

        The sum over experts of E * (their share of the choices) * (their mean probability), as in
        GShard and the Switch Transformer. Each row has its own, so that a batch may be split.
        """
        scores_BXE = self._scores(x_BXD)
        _, expert_BXk = jax.lax.top_k(scores_BXE, self.num_chosen)
        chosen_BXE = jax.nn.one_hot(expert_BXk, self.num_experts).sum(axis=2) / self.num_chosen
        tokens_B1 = jnp.maximum(1, jnp.sum(real_BX, axis=1))[:, None]
        share_BE, probability_BE = (
            jnp.sum(x_BXE, axis=1, where=real_BX[..., None]) / tokens_B1
            for x_BXE in (chosen_BXE, jax.nn.softmax(scores_BXE, axis=-1))
        )
        return self.num_experts * jnp.sum(share_BE * probability_BE, axis=1)

    def _scores(self, x_BXD: jax.Array) -> jax.Array:
        return self.router(x_BXD).astype(at_least_float32(self.dtype))


def groups(expert_A: jax.Array, num_experts: int, group_size: int) -> tuple[jax.Array, jax.Array]:
    """Tokens in groups of `group_size`, each of one expert; some places stay empty.

    expert_A: the expert of each token. Returns the place of each token (group * group_size plus
    its place in the group) and the expert of each group, [G]. There are enough groups for any
    assignment.
    """
    A = expert_A.shape[0]
    # Each chosen expert has at most one group that is not full. min_dim, because A is a symbol in a
    # program for any number of sentences.
    num_groups = min_dim(A, -(-A // group_size) + min_dim(num_experts, A))
    count_E = jnp.bincount(expert_A, length=num_experts)
    end_E = jnp.cumsum(-(-count_E // group_size))  # the group after an expert's last
    order_A = jnp.argsort(expert_A, stable=True)
    expert_sorted_A = expert_A[order_A]
    within_A = jnp.arange(A) - (jnp.cumsum(count_E) - count_E)[expert_sorted_A]
    first_group_A = jnp.where(expert_sorted_A > 0, end_E[expert_sorted_A - 1], 0)
    place_A = jnp.zeros(A, jnp.int32)
    place_A = place_A.at[order_A].set(
        (first_group_A * group_size + within_A).astype(jnp.int32), unique_indices=True
    )
    expert_G = jnp.searchsorted(end_E, jnp.arange(num_groups), side="right")
    return place_A, jnp.minimum(expert_G, num_experts - 1)
