"""The decoder-only Transformer: one sequence, cached decoding, packing, counts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_configs import sizes_of
from stepwise import stepwise

from configs import t_dmca
from transformer.data.batches import Batch
from transformer.data.vocabulary import BOS, EOS
from transformer.models.decoder_only.decoder_only import (
    DecoderOnlyConfig,
    one_sequence,
)
from transformer.models.family import build_model, find_family
from transformer.models.functional import num_params
from transformer.models.numerics import DropoutRngs
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, state_sharding

V = 23
PAPER = DecoderOnlyConfig(**t_dmca.get_model().to_dict())
CONFIG = dataclasses.replace(
    PAPER,
    layers="LMF",
    d_model=14,
    d_ff=11,
    num_heads=2,
    dropout=0.0,
    block_length=5,
    num_experts=4,
    expert_d_ff=7,
)
T2T = {"local_attention": "tensor2tensor", "compressed_attention": "tensor2tensor"}
VARIANTS = {
    "paper": {},
    "tensor2tensor": {**T2T, "norm": "pre", "share_embeddings": "none"},
    "experts": {"layers": "FM", "expert_layer": 2},
}


def model_of(**changes):
    return build_model(dataclasses.replace(CONFIG, **changes), sizes_of(V))


@pytest.fixture(
    scope="module",
    params=["paper", "tensor2tensor", pytest.param("experts", marks=pytest.mark.slow)],
)
def trained(request, random_params):
    """A model and its parameters; jitted, since op by op each operation is compiled."""
    model = model_of(**VARIANTS[request.param])
    return model, random_params(model)


def pairs(source_lengths, target_length, width=13, seed=0):
    """Sources with EOS and padding, and targets that begin with BOS."""
    rng = np.random.default_rng(seed)
    src_BS = np.zeros((len(source_lengths), width), np.int32)
    for row, length in zip(src_BS, source_lengths):
        row[:length] = rng.integers(4, V, length)
        row[length] = EOS
    tgt_BT = rng.integers(4, V, (len(src_BS), target_length), dtype=np.int32)
    tgt_BT[:, 0] = BOS
    return src_BS, tgt_BT


def test_one_sequence():
    """m d y m d y of a row with two pairs; EOS and padding stand at the end."""
    src = np.array([[7, 8, EOS, 9, EOS, 0]])
    order, segments = one_sequence(
        jnp.array(src), jnp.array([[1, 1, 1, 2, 2, 0]]), jnp.array([[1, 1, 2, 2, 0]])
    )
    tokens = np.concatenate([src, [[BOS, 5, BOS, 6, 0]]], axis=1)
    np.testing.assert_array_equal(tokens[0][order[0]], [7, 8, BOS, 5, 9, BOS, 6, EOS, EOS, 0, 0])
    np.testing.assert_array_equal(segments[0], [1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0])


def test_cached_decoding_is_the_full_forward(trained):
    """Sources of 0, 1 and 2 tokens more than blocks of 3, and on both sides of blocks of 5."""
    model, params = trained
    src_BS, tgt_BT = pairs([12, 11, 10, 9, 5, 4, 1, 0], 12)

    tokens_NT = np.repeat(tgt_BT, 2, axis=0)

    @jax.jit
    def run(params):
        bound = model.bind(params)
        return stepwise(bound, src_BS, tokens_NT)[0], bound(src_BS, tgt_BT)

    logits_NTV, full_BTV = run(params)
    for first in (0, 1):  # of two hypotheses
        np.testing.assert_allclose(logits_NTV[first::2], full_BTV, rtol=2e-4, atol=2e-5)


LENGTHS = 7, 11, 4  # of sources


def packed_and_not():
    src_BS, tgt_BT = pairs(LENGTHS, 6, width=12)
    tgt_out_BT = np.roll(tgt_BT, -1, axis=1)
    tgt_out_BT[:, -1] = EOS
    alone = Batch(src_BS, (src_BS > 0).astype(int), tgt_BT, tgt_out_BT, np.ones_like(tgt_BT))
    sources = [row[row > 0] for row in src_BS]
    numbers = np.repeat([1, 2, 3], [len(x) for x in sources])
    together = Batch(
        np.concatenate(sources)[None],
        numbers[None],
        tgt_BT.reshape(1, -1),
        tgt_out_BT.reshape(1, -1),
        np.repeat([1, 2, 3], 6)[None],
    )
    return alone, together


def test_the_loss_over_all_tokens_of_packed_rows(random_params):
    """Each token but the first: of the source, the separator, and the target."""
    model = model_of(loss_over="all")
    alone, together = packed_and_not()
    tokens_BX, labels_BX = np.zeros((2, 3, 17), int)
    for row, length in enumerate(LENGTHS):
        m_d = [*alone.src_BS[row, :length], BOS]
        # The source as the target of nothing, without its first token, which is a start there.
        tokens_BX[row, : length + 6] = [*m_d[:-1], *alone.tgt_in_BT[row]]
        labels_BX[row, : length + 6] = [*m_d[1:], *alone.tgt_out_BT[row]]

    @jax.jit
    def run(params):
        bound = model.bind(params)
        y_BXD, *_ = bound._forward(tokens_BX, (tokens_BX > 0).astype(int), None)
        logits_BXV = bound._output.logits(y_BXD)
        return bound.loss(together, None, 0.0), jax.nn.log_softmax(logits_BXV)

    found, log_probs_BXV = jax.tree.map(np.asarray, run(random_params(model)))
    nll_BX = -np.take_along_axis(log_probs_BXV, labels_BX[..., None], axis=2)[..., 0]
    of_source = sum(row[:length].sum() for row, length in zip(nll_BX, LENGTHS))
    of_target = sum(row[length : length + 6].sum() for row, length in zip(nll_BX, LENGTHS))
    np.testing.assert_allclose(found.loss, of_source + of_target, rtol=1e-5)
    np.testing.assert_allclose(found.nll, of_target, rtol=1e-5)
    np.testing.assert_allclose(found.terms["source"], of_source, rtol=1e-5)
    assert found.tokens == 18


@pytest.mark.slow
def test_dropout_and_the_balance_of_experts(random_params):
    model = model_of(layers="FM", expert_layer=2, dropout=0.3, attention_dropout=0.3)
    params = random_params(model)
    batch, _ = packed_and_not()
    streams = [*(DropoutRngs(jax.random.key(i), np.arange(3)) for i in (0, 1)), None]

    @jax.jit
    def losses(params):
        return [model.bind(params).loss(batch, rngs, 0.0) for rngs in streams]

    one, other, none = losses(params)
    assert len({float(x.loss) for x in (one, other, none)}) == 3
    weight = CONFIG.balance_weight
    assert 1.0 <= none.terms["balance"] / none.tokens / weight <= CONFIG.num_experts


def test_parameters():
    d, f = 14, 11
    layer = 4 * d * d + 2 * d * f + f + d + 4 * d
    assert num_params(model_of(layers="FLF").abstract_params()) == V * d + 3 * layer
    paper, t2t = (num_params(model_of(**changes).abstract_params()) for changes in ({}, T2T))
    assert paper - (V * d + 3 * layer) == 2 * (3 * d * d + d)
    assert t2t - (V * d + 3 * layer) == 3 * d * d + d
    experts = num_params(model_of(layers="FFF", expert_layer=3).abstract_params())
    assert experts == V * d + 3 * layer - (2 * d * f + f + d) + 4 * (d + 2 * d * 7 + 7 + d)


def test_every_parameter_has_one_row_of_the_table():
    model = model_of(layers="LMF", expert_layer=3, attention_bias=True, **T2T)
    state_sharding(data_mesh(), model.abstract_params(), model.sharding)
    assert find_family("decoder_only").packs


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": "LXL"}, r"model\.layers is 'LXL'; give a letter"),
        ({"layers": ""}, r"model\.layers is ''"),
        ({"loss_over": "y"}, r"model\.loss_over is 'y'; it must be one of: all, target"),
        ({"block_length": 0}, r"model\.block_length is 0"),
        ({"compression": 1}, r"model\.compression is 1"),
        ({"expert_layer": 4}, r"model\.expert_layer is 4"),
        ({"experts_per_token": 5}, r"model\.experts_per_token is 5"),
        ({"compressed_attention": "t2t"}, r"one of: paper, tensor2tensor"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(CONFIG, **changes)


def test_two_vocabularies_are_refused():
    with pytest.raises(UserError, match=r"set tokenizer\.joint to True"):
        build_model(CONFIG, sizes_of(V, V - 1))


def test_alignments_are_refused(random_params):
    model = model_of()
    bound = model.bind(random_params(model))
    with pytest.raises(UserError, match="leave coverage penalty and alignments out"):
        bound.decode_step(jnp.array([BOS]), {"attention": None})
