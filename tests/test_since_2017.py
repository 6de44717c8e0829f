"""Options that came after 2017: numbers of the papers, other families, and what cannot be.

test_paper.py has transcriptions of all of them, inside of the Transformer.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_batches import SENTENCES, packed
from small_bert import CONFIG as BERT
from small_configs import MODEL, SINCE_2017, model_config, sizes_of
from stepwise import stepwise
from test_paper import bucket

from configs import t_dmca, universal_base
from transformer.models import kernels
from transformer.models.decoder_only.decoder_only import DecoderOnlyConfig
from transformer.models.family import build_model
from transformer.models.functional import num_params
from transformer.models.positions.alibi import slopes
from transformer.models.positions.t5 import T5
from transformer.models.universal.universal_steps import UniversalConfig
from transformer.system.errors import UserError

V, D, F, H, K, U = 23, 12, 11, 4, 6, 5
SMALL = {"d_model": D, "d_ff": F, "num_heads": H, "d_k": K, "d_v": U, "dropout": 0.0}
SMALL |= {"attention_dropout": 0.0, "activation_dropout": 0.0}
BASE = dataclasses.replace(MODEL, **SMALL, num_encoder_layers=2, num_decoder_layers=1)
CONFIGS = {
    "transformer": BASE,
    "universal": model_config(
        *(UniversalConfig, universal_base), **SMALL, encoder_steps=2, decoder_steps=2
    ),
    "decoder_only": model_config(DecoderOnlyConfig, t_dmca, **SMALL, layers="FF"),
    "bert": dataclasses.replace(BERT.model, **SMALL, num_layers=2, head="masked_lm"),
}


@pytest.mark.parametrize("family", ["transformer", "universal", "decoder_only"])
def test_outputs_are_scaled_in_training_too(family, random_params):
    config = dataclasses.replace(CONFIGS[family], scale_outputs=True)
    model, batch = build_model(config, sizes_of(V, V)), packed(V, V)
    inputs = batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT

    def both(params):
        bound = model.bind(params)
        return bound.loss(batch, None, label_smoothing=0.0), bound(*inputs)

    loss, logits_BTV = jax.jit(both)(random_params(model))
    log_probs_BTV = np.asarray(jax.nn.log_softmax(logits_BTV))
    picked_BT = np.take_along_axis(log_probs_BTV, batch.tgt_out_BT[..., None], -1)[..., 0]
    nll = -picked_BT[batch.tgt_segments_BT > 0].sum()
    np.testing.assert_allclose(loss.nll, nll, rtol=1e-5)


# --- Numbers of the papers ----------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_buckets(causal):
    """Those of T5's code, of every distance; and every bucket has one."""
    distances = np.arange(-300, 1 if causal else 301)
    positions = T5(dataclasses.replace(BASE, positions="t5"), causal, nnx.Rngs(0))
    positions.bias_RH[...] = jnp.arange(32.0 * H).reshape(32, H)
    found = np.asarray(jax.jit(lambda: positions.scoring(distances).bias_RH)())
    expected = [bucket(int(d), causal) for d in distances]
    np.testing.assert_array_equal(found[:, 0], H * np.array(expected))
    np.testing.assert_array_equal(found[:, 1], found[:, 0] + 1)
    assert set(expected) == set(range(32)) - (set() if causal else {16})


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [8]),
        (8, [1, 2, 3, 4, 5, 6, 7, 8]),
        (16, np.arange(1, 17) / 2),
        (12, [1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5]),
        (3, [4, 8, 2]),
    ],
)
def test_slopes(heads, exponents):
    """As in the authors' code, `get_slopes`."""
    np.testing.assert_allclose(slopes(heads), 2.0 ** -np.array(exponents))


def test_deepnorm_of_published_depths():
    """Figure 2 of the paper, and what it makes of initial values."""
    both = dataclasses.replace(BASE, num_encoder_layers=6, num_decoder_layers=6)
    one = dataclasses.replace(BERT.model, num_layers=100)
    np.testing.assert_allclose(both.deepnorm(False), [1.417938, 0.496989], rtol=1e-5)
    np.testing.assert_allclose(both.deepnorm(True), [2.059767, 0.343295], rtol=1e-5)
    np.testing.assert_allclose(one.deepnorm(False), [3.760603, 0.188030], rtol=1e-5)
    same = {"d_k": D // H, "d_v": D // H, "d_ff": D}  # one shape, compiled once
    config = dataclasses.replace(BASE, feed_forward="swiglu", **same)
    plain, deep = (
        build_model(dataclasses.replace(config, norm=norm), sizes_of(V)).init(0)
        for norm in ("post", "deepnorm")
    )
    for side, causal in (("encoder_layers", False), ("decoder_layers", True)):
        _, beta = config.deepnorm(causal)
        for attention in ("self_attention", "cross_attention")[: 1 + causal]:
            for part, scale in {"query": 1, "key": 1, "value": beta, "output": beta}.items():
                one, other = (x[side][0][attention][part]["kernel"] for x in (plain, deep))
                np.testing.assert_allclose(other, scale * np.asarray(one), rtol=1e-6)
        for part in ("hidden", "gate", "output"):
            one, other = (x[side][0]["feed_forward"][part]["kernel"] for x in (plain, deep))
            np.testing.assert_allclose(other, beta * np.asarray(one), rtol=1e-6)


def test_parameters():
    """By formula."""
    N, M = BASE.depths

    def formula(config):
        G = config.num_key_value_heads or H
        attention = D * (H + G) * (K + U) + config.qk_norm * 2 * K
        attention += config.attention_bias * (H * K + G * (K + U) + D)
        hidden = 1 + (config.feed_forward != "plain")
        feed_forward = (hidden + 1) * D * F + config.feed_forward_bias * (hidden * F + D)
        norm = D if config.normalization == "rms_norm" else 2 * D
        sublayers = {"sandwich": 2 * norm, "rezero": 1}.get(config.norm, norm)
        vectors = 2 * config.max_distance + 1
        positions = {
            "relative": (N + M) * vectors * (K + U),
            "relative_keys": (N + M) * vectors * K,
            "t5": 2 * 32 * H,
        }
        return (
            V * D
            + (N + 2 * M) * attention
            + (N + M) * feed_forward
            + (2 * N + 3 * M) * sublayers
            + 2 * norm * (config.norm in ("pre", "sandwich"))
            + positions.get(config.positions, 0)
        )

    for name, changes in SINCE_2017.items():
        config = dataclasses.replace(BASE, **changes)
        model = build_model(config, sizes_of(V))
        assert num_params(model.abstract_params()) == formula(config), name


# --- Other families -----------------------------------------------------------------------

OTHERS = "universal", "decoder_only", "bert"
QUICK = [("decoder_only", "relative"), ("bert", "t5")]
SLOW = [(x, y) for x in OTHERS for y in SINCE_2017 if (x, y) not in QUICK]


@pytest.mark.parametrize(
    ("family", "name"), [*QUICK, *(pytest.param(*x, marks=pytest.mark.slow) for x in SLOW)]
)
def test_packed_rows_and_steps_are_single_sentences(family, name, random_params):
    """Each sentence by itself, in a row with padding; and a decoder's tokens one by one."""
    model = build_model(dataclasses.replace(CONFIGS[family], **SINCE_2017[name]), sizes_of(V))
    batch = packed(V, V)
    rows, segments = np.transpose(SENTENCES)

    def alone(tokens, own):
        """The sentences in rows of their own."""
        made = np.zeros((len(rows), tokens.shape[1]), int)
        for to, row, segment in zip(made, rows, segments):
            sentence = tokens[row][own[row] == segment]
            to[: len(sentence)] = np.where(sentence == 2, 3, sentence)  # EOS is not always read
        return made

    src = np.where(batch.src_BS == 2, 3, batch.src_BS)
    tgt = np.where(batch.tgt_in_BT == 2, 3, batch.tgt_in_BT)
    src_alone = alone(batch.src_BS, batch.src_segments_BS)
    tgt_alone = alone(batch.tgt_in_BT, batch.tgt_segments_BT)

    @jax.jit
    def both(params):
        bound = model.bind(params)
        if family == "bert":
            types = np.zeros_like(src)
            together = bound.encode(src, types, batch.src_segments_BS)[0]
            return together, bound.encode(src_alone, np.zeros_like(src_alone))[0]
        together = bound(src, tgt, batch.src_segments_BS, batch.tgt_segments_BT)
        return together, bound(src_alone, tgt_alone), stepwise(bound, src_alone, tgt_alone)[0]

    together, single, *steps = jax.tree.map(np.asarray, both(random_params(model)))
    own = batch.src_segments_BS if family == "bert" else batch.tgt_segments_BT
    lengths = [int((own[row] == segment).sum()) for row, segment in SENTENCES]
    for number, (row, segment) in enumerate(SENTENCES):
        expected = single[number, : lengths[number]]
        assert np.ptp(expected) > 0.1
        np.testing.assert_allclose(together[row][own[row] == segment], expected, atol=2e-4)
        for found in steps:
            np.testing.assert_allclose(found[number, : lengths[number]], expected, atol=2e-4)


# --- What cannot be -----------------------------------------------------------------------


REFUSED = {
    "transformer": [
        ({"num_key_value_heads": 8}, "model.num_heads = 4 is not divisible by model.num_ke"),
        ({"num_key_value_heads": 3}, "model.num_key_value_heads = 3; change one of them"),
        ({"num_key_value_heads": -1}, "model.num_key_value_heads is -1; it must be at lea"),
        ({"positions": "rotary", "d_k": 7}, "of channels, and keys have 7; set model.d_k to"),
        ({"positions": "rope"}, "'rope'; it must be one of: sinusoidal, learned, none, rot"),
        ({"max_distance": 9}, "model.max_distance is 9, but model.positions is 'sinusoidal'"),
        ({"positions": "t5", "max_distance": 16}, "model.max_distance is 16, but nearer"),
        ({"feed_forward": "silu"}, "'silu'; it must be one of: plain, glu, reglu, geglu, sw"),
        ({"logit_soft_cap": -1.0}, "model.logit_soft_cap is -1.0; it must be at least 0"),
        ({"norm": "rms"}, "'rms'; it must be one of: post, pre, sandwich, deepnorm, rezero"),
    ],
    "bert": [({"positions": "sinusoidal"}, "one of: learned, none, rotary, relative, relative_")],
    "universal": [
        ({"positions": "learned"}, "one of: sinusoidal, none, rotary, relative, rela"),
        (
            {"positions": "alibi", "count_from": "both_ends"},
            "model.count_from is 'both_ends', which model.positions=alibi cannot have; it must be ",
        ),
        (
            {"feed_forward": "glu", "transition": "separable_convolution"},
            "model.feed_forward is 'glu', which model.transition=separable_convolution cannot have",
        ),
    ],
    "decoder_only": [
        (
            {"positions": "t5", "layers": "LF"},
            "model.positions is 't5', which layers L and M of model.layers=LF cannot have; it must",
        ),
        ({"num_key_value_heads": 2, "layers": "FM"}, "it must be 0 or 4"),
        ({"feed_forward": "reglu", "expert_layer": 1}, "it must be 'plain'"),
    ],
}


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [(family, *case) for family, cases in REFUSED.items() for case in cases],
)
def test_settings_that_cannot_be(family, changes, message):
    with pytest.raises(UserError) as error:
        dataclasses.replace(CONFIGS[family], **changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_kernels_that_do_not_know_an_option():
    config = dataclasses.replace(BASE, dtype="bfloat16", d_k=8, d_v=8)
    of_bert = dataclasses.replace(CONFIGS["bert"], dtype="bfloat16", d_k=8, d_v=8)
    for section, changes, reason in (
        (config, {"positions": "rotary", "num_key_value_heads": 1, "qk_norm": True}, ""),
        (config, {"positions": "t5"}, ""),  # in attention over the memory
        (of_bert, {"positions": "t5"}, "it has no model.positions=t5"),
        (config, {"logit_soft_cap": 9.0}, "it has no model.logit_soft_cap"),
    ):
        assert kernels.cannot("cudnn_attention", dataclasses.replace(section, **changes)) == reason
    deep = dataclasses.replace(config, d_model=16, norm="deepnorm")
    assert kernels.cannot("triton_norm", deep) == "it is for post-LN, with layer_norm"
