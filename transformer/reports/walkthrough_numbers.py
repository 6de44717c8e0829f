"""The values inside a Transformer on a sentence pair, computed by its own functions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer.data.batches import Batch
from transformer.data.vocabulary import BOS, EOS
from transformer.inference.attention_maps import attentions
from transformer.models.attention import Mask, attention
from transformer.models.functional import Params
from transformer.models.layers import ACTIVATIONS
from transformer.models.loss import cross_entropy
from transformer.models.numerics import multiply
from transformer.runs.restore import TrainedModel
from transformer.system.errors import UserError
from transformer.system.sharding import name_of
from transformer.training.optimizers import make_optimizer
from transformer.training.schedules import make_schedule


class Pass(NamedTuple):
    """The intermediate values of a forward pass, for one sentence pair and one decoder layer.

    Self-attention is that of one head of that layer, except for `joined`.
    """

    src_ids: list[int]
    tgt_in: list[int]
    tgt_out: list[int]
    src: list[str]  # tokens
    inputs: list[str]
    outputs: list[str]
    embedding_TD: np.ndarray  # rows of the table
    embedded_TD: np.ndarray  # scaled by their factor
    x_TD: np.ndarray  # plus positions
    layer_input_TD: np.ndarray
    query_TK: np.ndarray
    key_TK: np.ndarray
    value_TU: np.ndarray
    scores_TT: np.ndarray  # products
    masked_TT: np.ndarray  # scaled
    weights_TT: np.ndarray
    head_TU: np.ndarray
    joined_TX: np.ndarray  # all heads
    attended_TD: np.ndarray
    after_self_TD: np.ndarray  # add & norm
    cross_TS: np.ndarray  # weights of the head
    after_cross_TD: np.ndarray
    hidden_TF: np.ndarray
    transformed_TD: np.ndarray
    after_feed_forward_TD: np.ndarray
    y_TD: np.ndarray  # output of the last layer
    logits_TV: np.ndarray
    nll_T: np.ndarray
    smoothed_T: np.ndarray


class Update(NamedTuple):
    """One gradient step on the pair.

    groups: for each parameter its name, shape, norm of the gradient, the share of its numbers that
      move, and how far on average.
    """

    rate: float
    groups: list[tuple[str, tuple[int, ...], float, float, float]]
    loss_before: float
    loss_after: float


def follow(model: TrainedModel, source: str, target: str, layer: int, head: int) -> Pass:
    """Follows a head of a decoder layer, both from 1; UserError if the model lacks it."""
    config = model.config.model
    if config.family != "transformer":
        raise UserError(
            f"{model.workdir} has a model of the family {config.family}; the walk-through follows "
            "a Transformer"
        )
    if config.words_per_position > 1:
        raise UserError(
            f"{model.workdir} has {config.words_per_position} words at each position; the "
            "walk-through follows a model with one"
        )
    of_2017 = {"positions": ("sinusoidal", "learned"), "norm": ("post", "pre")}
    of_2017 |= {"feed_forward": ("plain",), "qk_norm": (False,), "logit_soft_cap": (0,)}
    of_2017 |= {"normalization": ("layer_norm",), "feed_forward_bias": (True,)}
    of_2017["scale_outputs"] = of_2017["starts_with_eos"] = (False,)
    of_2017["num_key_value_heads"] = 0, config.num_heads
    config.check_without(of_2017, f"a walk-through, here of {model.workdir},")
    for name, number, most in (
        ("layer", layer, config.num_decoder_layers),
        ("head", head, config.num_heads),
    ):
        if not 1 <= number <= most:
            raise UserError(f"{name} {number} is asked for; the decoder has 1 to {most}")
    (found,) = attentions(model, [(source, target)])
    src_tokens, out_tokens = model.task.tokenizers
    src_ids = [*src_tokens.encode(source), EOS]
    tgt_out = [*out_tokens.encode(target), EOS]
    tgt_in = [BOS, *tgt_out[:-1]]
    src_BS, tgt_BT, out_BT = (jnp.array([ids]) for ids in (src_ids, tgt_in, tgt_out))
    ones_BS, ones_BT = jnp.ones_like(src_BS), jnp.ones_like(tgt_BT)
    positions_T = jnp.arange(len(tgt_in))
    self_mask, memory_mask = Mask(ones_BT, ones_BT, positions_T), Mask(ones_BT, ones_BS)

    smoothing, h = model.config.training.label_smoothing, head - 1

    @jax.jit
    def values(params: Params, extra: dict[str, Any]) -> dict[str, jax.Array]:
        # 1. From tokens to the layer.
        bound = model.task.model.bind(params, extra)
        memory_BSD = bound.encode(src_BS)
        embedded_BTD = bound.target_embedding.embed(tgt_BT)
        x_BTD = layer_input_BTD = bound._embed_target(tgt_BT, positions_T[None], None)
        for earlier in bound.decoder_layers[: layer - 1]:
            key_values = earlier.cross_attention.key_values(memory_BSD)
            layer_input_BTD, _ = earlier(layer_input_BTD, key_values, self_mask, memory_mask)

        # 2. Masked self-attention.
        own = bound.decoder_layers[layer - 1]
        mha = own.self_attention
        normed_BTD = own.self_attention_norm.before(layer_input_BTD)
        query_BHTK, kv = mha.inputs_within(normed_BTD, self_mask)
        scores_BHTT = multiply("BHTK,BHSK->BHTS", query_BHTK, kv.key_BHSK, query_BHTK.dtype)
        heads_BHTU, weights_BHTT = attention(query_BHTK, kv, self_mask, return_weights=True)
        joined_BTX = heads_BHTU.swapaxes(1, 2).reshape(*x_BTD.shape[:2], -1)
        attended_BTD, _, _ = mha.attend_within(normed_BTD, self_mask)
        after_self_BTD = own.self_attention_norm.after(layer_input_BTD, attended_BTD, None)

        # 3. Attention to the source, and the feed-forward network.
        memory = own.cross_attention.key_values(memory_BSD)
        normed_BTD = own.cross_attention_norm.before(after_self_BTD)
        crossed_BTD, cross_BHTS = own.cross_attention(
            normed_BTD, memory, memory_mask, return_weights=True
        )
        after_cross_BTD = own.cross_attention_norm.after(after_self_BTD, crossed_BTD, None)
        network, normed_BTD = own.feed_forward, own.feed_forward_norm.before(after_cross_BTD)
        hidden_BTF = ACTIVATIONS[config.activation](network.hidden(normed_BTD))
        transformed_BTD = network(normed_BTD)
        y_BTD = after_BTD = own.feed_forward_norm.after(after_cross_BTD, transformed_BTD, None)

        # 4. The other layers, logits and loss.
        for later in bound.decoder_layers[layer:]:
            key_values = later.cross_attention.key_values(memory_BSD)
            y_BTD, _ = later(y_BTD, key_values, self_mask, memory_mask)
        y_BTD = bound.decoder_norm(y_BTD)
        logits_BTV = bound.logits_of(y_BTD)

        def loss_of(position: jax.Array) -> Any:
            return cross_entropy(logits_BTV, out_BT, (positions_T == position)[None], smoothing)

        losses = jax.vmap(loss_of)(positions_T)
        scaled_TT = scores_BHTT[0, h].astype(jnp.float32) * config.key_size**-0.5
        return {
            "embedding_TD": bound.target_embedding.table_VD[...][tgt_BT[0]],
            "embedded_TD": embedded_BTD[0],
            "x_TD": x_BTD[0],
            "layer_input_TD": layer_input_BTD[0],
            "query_TK": query_BHTK[0, h],
            "key_TK": kv.key_BHSK[0, h],
            "value_TU": kv.value_BHSU[0, h],
            "scores_TT": scores_BHTT[0, h],
            "masked_TT": jnp.where(self_mask.dense()[0], scaled_TT, -jnp.inf),
            "weights_TT": weights_BHTT[0, h],
            "head_TU": heads_BHTU[0, h],
            "joined_TX": joined_BTX[0],
            "attended_TD": attended_BTD[0],
            "after_self_TD": after_self_BTD[0],
            "cross_TS": cross_BHTS[0, h],
            "after_cross_TD": after_cross_BTD[0],
            "hidden_TF": hidden_BTF[0],
            "transformed_TD": transformed_BTD[0],
            "after_feed_forward_TD": after_BTD[0],
            "y_TD": y_BTD[0],
            "logits_TV": logits_BTV[0],
            "nll_T": losses.nll,
            "smoothed_T": losses.loss,
        }

    arrays = values(model.params, model.extra)
    return Pass(
        src_ids=src_ids,
        tgt_in=tgt_in,
        tgt_out=tgt_out,
        src=[token.text for token in found.source],
        inputs=[token.text for token in found.inputs],
        outputs=[token.text for token in found.target],
        **{name: np.asarray(x, np.float32) for name, x in arrays.items()},
    )


def batch_of(one: Pass) -> Batch:
    """The pair as a batch of one row."""
    src, tgt_in, tgt_out = (np.array([ids]) for ids in (one.src_ids, one.tgt_in, one.tgt_out))
    return Batch(src, np.ones_like(src), tgt_in, tgt_out, np.ones_like(tgt_in))


def update(model: TrainedModel, one: Pass) -> Update:
    """A step with the run's optimizer and the learning rate of its first step."""
    config, batch = model.config, batch_of(one)
    rate = make_schedule(config.optimizer, config.model.d_model)(1)
    optimizer = make_optimizer(config.optimizer, lambda step: rate)

    @jax.jit
    def step(params: Params) -> tuple[Any, ...]:
        def mean(params: Params) -> jax.Array:
            bound = model.task.model.bind(params, model.extra)
            loss = bound.loss(batch, None, config.training.label_smoothing)
            return loss.loss / loss.tokens

        before, gradient = jax.value_and_grad(mean)(params)
        changes, _ = optimizer.update(gradient, optimizer.init(params), params, apply=True)
        return before, mean(jax.tree.map(jnp.add, params, changes)), gradient, changes

    before, after, gradient, changes = jax.device_get(step(model.params))
    groups = [
        (
            name_of(path),
            grad.shape,
            float(np.linalg.norm(grad)),
            float((change != 0).mean()),
            float(np.abs(change).mean()),
        )
        for (path, grad), change in zip(
            jax.tree_util.tree_leaves_with_path(gradient), jax.tree.leaves(changes), strict=True
        )
    ]
    return Update(float(rate), groups, float(before), float(after))
