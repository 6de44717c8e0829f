import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_configs import MODEL, sizes_of
from stepwise import stepwise

from configs import base, big
from transformer.data.batches import Batch
from transformer.models import numerics
from transformer.models.attention import Mask
from transformer.models.family import build_model
from transformer.models.functional import FunctionalModel, num_params
from transformer.models.loss import cross_entropy
from transformer.models.numerics import DropoutRngs
from transformer.models.transformer import Transformer, TransformerConfig
from transformer.models.weight_layout import WeightLayout, multiply_int8, quantized
from transformer.system.errors import UserError

SOURCE_VOCABULARY, TARGET_VOCABULARY = 19, 23
SMALL = dataclasses.asdict(MODEL) | dict(
    num_encoder_layers=2,
    num_decoder_layers=2,
    d_model=13,
    d_ff=17,
    num_heads=3,
    d_k=5,
    d_v=2,
    max_positions=11,
    share_embeddings="none",
)
ONE_LAYER = dict(num_encoder_layers=1, num_decoder_layers=1)


def small(**changes) -> FunctionalModel:
    config = TransformerConfig(**{**SMALL, **changes})
    joint = config.share_embeddings == "all"
    source = TARGET_VOCABULARY if joint else SOURCE_VOCABULARY
    return build_model(config, sizes_of(source, TARGET_VOCABULARY))


def call(model, params, *arguments):
    run = jax.jit(lambda params: model.bind(params)(*arguments))
    return jax.tree.map(np.asarray, run(params))


def test_learned_positions_past_the_table_share_its_last_row(random_params):
    model = small(**ONE_LAYER, positions="learned", max_positions=3)
    params, src = random_params(model), jnp.array([[5, 5, 5, 5, 5]])
    memory = np.asarray(jax.jit(lambda params: model.bind(params).encode(src))(params))[0]
    for position, same in ((0, False), (1, False), (3, True), (4, True)):
        assert np.allclose(memory[position], memory[2], atol=1e-6) == same


# ---- Loss and attention weights ----


def packed_batch():
    """Rows of several sentences with padding between them, and one row of padding."""
    rng = np.random.default_rng(5)
    src_segments = np.array([[1, 1, 1, 0, 2, 2, 2], [0, 0, 1, 1, 1, 1, 1], [0] * 7])
    tgt_segments = np.array([[1, 1, 2, 2, 2, 0, 3], [1, 1, 1, 1, 1, 0, 0], [0] * 7])
    src = rng.integers(1, SOURCE_VOCABULARY, (3, 7)) * (src_segments > 0)
    tgt_in, tgt_out = rng.integers(1, TARGET_VOCABULARY, (2, 3, 7)) * (tgt_segments > 0)
    return Batch(src, src_segments, tgt_in, tgt_out, tgt_segments)


def test_the_loss_is_the_cross_entropy_of_the_logits(random_params):
    """Its gradient is finite, although there is a row of padding."""
    model, batch = small(**ONE_LAYER, norm="pre"), packed_batch()

    def both(params):
        bound = model.bind(params)
        inputs = batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT
        real_BT = batch.tgt_segments_BT > 0
        expected = cross_entropy(bound(*inputs), batch.tgt_out_BT, real_BT, 0.1)
        found = bound.loss(batch, None, 0.1)
        return found.loss, (found, expected)

    run = jax.jit(jax.value_and_grad(both, has_aux=True))
    (_, (found, expected)), gradients = run(random_params(model))
    assert found.tokens == expected.tokens == 11
    np.testing.assert_allclose(found[:2], expected[:2], rtol=1e-6)
    assert found.terms == {}
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


def test_attention_weights_of_all_layers_and_heads(random_params):
    model, batch = small(num_encoder_layers=1), packed_batch()
    inputs = batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT
    _, weights = call(model, random_params(model), *inputs, None, True)
    assert [len(layers) for layers in weights] == [1, 2, 2]
    src, tgt = batch.src_segments_BS, batch.tgt_segments_BT
    masks = Mask(src, src), Mask(tgt, tgt, np.arange(7)), Mask(tgt, src)
    masks = jax.jit(lambda: [mask.dense() for mask in masks])()
    for layers, mask_BTS in zip(weights, map(np.asarray, masks), strict=True):
        may_attend = np.broadcast_to(mask_BTS[:, None], (3, 3, 7, 7))
        for weights_BHTS in layers:
            np.testing.assert_array_equal(weights_BHTS > 0, may_attend)
            np.testing.assert_allclose(weights_BHTS.sum(-1), may_attend.any(-1), atol=1e-6)
        # No two layers, and no two heads, are the same.
        heads = np.concatenate([x.swapaxes(0, 1) for x in layers])
        assert len(np.unique(heads.reshape(len(heads), -1), axis=0)) == 3 * len(layers)


# ---- Decoding ----


def test_cached_decoding_equals_the_full_forward_pass(random_params):
    """Three hypotheses of each of two sentences share that sentence's memory.

    Post-LN with sinusoids is in test_encoder_decoder.py.
    """
    model = small(**ONE_LAYER, norm="pre", positions="learned", max_positions=5)
    M, longest = 3, 7
    rng = np.random.default_rng(1)
    src = np.array([[3, 0, 5, 7, 0], [2, 4, 6, 8, 9]])
    tokens = rng.integers(1, TARGET_VOCABULARY, (2 * M, longest))

    @jax.jit
    def both(params):
        bound = model.bind(params)
        full = bound(np.repeat(src, M, axis=0), tokens)
        layout = WeightLayout.FEW_ROWS
        laid_out = model.bind(model.in_layout(params, {}, layout), weight_layout=layout)
        return *stepwise(bound, src, tokens), stepwise(laid_out, src, tokens)[0], full

    logits, cache, laid_out, full = both(random_params(model))
    for found in (logits, laid_out):
        np.testing.assert_allclose(found, full, atol=1e-5)
    assert set(cache) == {"step", "sentence", "hypothesis", "key_values"}
    assert cache["step"] == longest
    assert {len(x) for x in jax.tree.leaves(cache["sentence"])} == {2}
    assert {len(x) for x in jax.tree.leaves(cache["key_values"])} == {2}
    assert {len(x) for x in jax.tree.leaves(cache["hypothesis"])} == {2 * M}


# ---- Parameters ----


def formula(*, V, N=6, d_model=512, d_ff=2048, h=8, d_k=64, d_v=64):
    """The sizes of Section 3 added up: one embedding, no attention biases, post-LN."""
    attention = 2 * d_model * h * d_k + 2 * d_model * h * d_v
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return V * d_model + N * (encoder_layer + decoder_layer)


def count(*, V, N=None, h=None, config=base, **changes):
    """The number of parameters of a whole model, which is never made."""
    fields = config.get_config().model.to_dict() | changes
    if N is not None:
        fields |= {"num_encoder_layers": N, "num_decoder_layers": N}
    if h is not None:
        fields["num_heads"] = h
    model = build_model(TransformerConfig(**fields), sizes_of(V))
    return num_params(model.abstract_params())


def test_table_3():
    """41,000 tokens give every row of the base family as it is printed, in millions."""
    rows = [
        (dict(), 65),
        (dict(h=1, d_k=512, d_v=512), 65),
        (dict(h=4, d_k=128, d_v=128), 65),
        (dict(h=16, d_k=32, d_v=32), 65),
        (dict(h=32, d_k=16, d_v=16), 65),
        (dict(d_k=16), 58),
        (dict(d_k=32), 60),
        (dict(N=2), 36),
        (dict(N=4), 50),
        (dict(N=8), 80),
        (dict(d_model=256, d_k=32, d_v=32), 28),
        (dict(d_model=1024, d_k=128, d_v=128), 168),
        (dict(d_ff=1024), 53),
        (dict(d_ff=4096), 90),
    ]
    for row, millions in rows:
        assert abs(formula(V=41_000, **row) / 1e6 - millions) < 0.52, row  # 52.5 is printed as 53
        one_layer = {"N": 1} | {name: size for name, size in row.items() if name != "N"}
        assert count(V=41_000, **one_layer) == formula(V=41_000, **one_layer), row


def test_base_and_big():
    found = {config: count(V=37_000, config=config) for config in (base, big)}
    assert found[base] == formula(V=37_000)
    assert round(found[base] / 1e6, 2) == 63.05
    # Table 3 leaves out the big model's d_k; it is 64, as in the base model.
    assert found[big] == formula(V=37_000, d_model=1024, d_ff=4096, h=16)
    assert round(found[big] / 1e6, 2) == 214.17


def test_parameters_of_the_choices_the_paper_leaves_open():
    plain = small(share_embeddings="all").abstract_params()
    assert set(plain) == {"target_embedding", "encoder_layers", "decoder_layers"}
    tables = {"source": SOURCE_VOCABULARY * 13, "output": TARGET_VOCABULARY * 13}
    for changes, more, size in (
        (dict(share_embeddings="decoder"), {"source_embedding"}, tables["source"]),
        (
            dict(share_embeddings="none"),
            {"source_embedding", "output_embedding"},
            tables["source"] + tables["output"],
        ),
        (
            dict(share_embeddings="all", positions="learned"),
            {"source_positions", "target_positions"},
            2 * 11 * 13,
        ),
        (
            dict(share_embeddings="all", norm="pre"),
            {"encoder_norm", "decoder_norm"},
            2 * 2 * 13,
        ),
    ):
        params = small(**changes).abstract_params()
        assert set(params) - set(plain) == more
        assert num_params(params) - num_params(plain) == size


def test_d_k_and_d_v_default_to_d_model_over_heads():
    layer = small(d_model=15, d_k=0, d_v=0).abstract_params()["encoder_layers"][0]
    shapes = {name: x["kernel"].shape for name, x in layer["self_attention"].items()}
    assert set(shapes.values()) == {(15, 15)}
    layer = small(d_model=15, d_k=0, d_v=7).abstract_params()["encoder_layers"][0]
    shapes = {name: x["kernel"].shape for name, x in layer["self_attention"].items()}
    assert shapes == {"query": (15, 15), "key": (15, 15), "value": (15, 21), "output": (21, 15)}


def test_init():
    sizes = dict(d_model=12, d_ff=12, num_heads=3, d_k=4, d_v=4)  # one shape, compiled once
    model = small(**ONE_LAYER, **sizes, dtype="bfloat16")
    params, abstract = model.init(jax.random.key(3)), model.abstract_params()
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, abstract)
    assert {x.dtype for x in jax.tree.leaves((params, abstract))} == {jnp.dtype("float32")}
    again, other = model.init(jax.random.key(3)), model.init(jax.random.key(4))
    jax.tree.map(np.testing.assert_array_equal, params, again)
    # No two matrices, of one model or of two, are drawn alike.
    matrices = [x for tree in (params, other) for x in jax.tree.leaves(tree) if x.ndim == 2]
    assert len(matrices) == 2 * (3 + 6 + 10)
    assert len({float(np.asarray(x)[0, 0]) for x in matrices}) == len(matrices)


# ---- NNX ----


def test_the_module_holds_parameters_alone():
    config = TransformerConfig(**{**SMALL, **ONE_LAYER, "positions": "learned", "dropout": 0.5})
    sizes = sizes_of(SOURCE_VOCABULARY, TARGET_VOCABULARY)
    module = nnx.eval_shape(lambda: Transformer(config, sizes, rngs=nnx.Rngs(0)))
    _, state = nnx.split(module, nnx.Param)  # raises if there is anything else
    assert nnx.to_pure_dict(state) == build_model(config, sizes).abstract_params()


# ---- Types and dropout ----


def test_bfloat16(random_params):
    half, full = (small(**ONE_LAYER, dtype=x, norm="pre") for x in ("bfloat16", "float32"))
    params = random_params(full)
    rng = np.random.default_rng(2)
    src, tgt = (
        rng.integers(1, SOURCE_VOCABULARY, (5, 7)),
        rng.integers(1, TARGET_VOCABULARY, (5, 11)),
    )
    found, expected = call(half, params, src, tgt), call(full, params, src, tgt)
    assert found.dtype == expected.dtype == jnp.float32
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    # bfloat16 has 8 bits; not exactly float32's, or it was not used.
    assert 1e-4 < error < 0.03


@pytest.mark.parametrize(
    ("dtype", "native", "weight_layout"),
    [
        ("float32", True, WeightLayout.FEW_ROWS),
        ("bfloat16", True, WeightLayout.MANY_ROWS),
        ("bfloat16", False, WeightLayout.FEW_ROWS),
    ],
)
def test_matrices_in_layouts(random_params, monkeypatch, dtype, native, weight_layout):
    monkeypatch.setattr(numerics, "multiplies_bfloat16", lambda: native)
    model = small(**ONE_LAYER, dtype=dtype)
    params = random_params(model)
    laid_out = jax.jit(lambda params: model.in_layout(params, {}, weight_layout))(params)
    is_turned = dtype == "float32" and weight_layout is WeightLayout.FEW_ROWS
    expected = jnp.dtype("bfloat16" if dtype == "bfloat16" and native else "float32")
    for name in ("hidden", "output"):
        own, given = (x["decoder_layers"][0]["feed_forward"][name] for x in (laid_out, params))
        assert own["kernel"].dtype == expected
        found = np.asarray(own["kernel"])
        kernel = np.asarray(given["kernel"]).astype(expected)
        np.testing.assert_array_equal(found.T if is_turned else found, kernel)
        assert own["bias"].dtype == jnp.float32
    table_VD = laid_out["target_embedding"]["table_VD"]
    np.testing.assert_array_equal(table_VD, params["target_embedding"]["table_VD"])
    assert ("output_DV" in laid_out["target_embedding"]) == (dtype == "bfloat16")
    x_BTD = np.random.default_rng(0).normal(size=(1, 3, table_VD.shape[1])).astype(dtype)

    @jax.jit
    def logits(params, laid_out):
        bound = model.bind(params), model.bind(laid_out, weight_layout=weight_layout)
        return [x.target_embedding.logits(x_BTD) for x in bound]

    np.testing.assert_allclose(*logits(params, laid_out), atol=1e-5)


def test_int8_by_hand():
    matrix = np.float32([[254.0, 0.0], [-127.0, 0.0], [3.0, 0.0]])
    matrix, scale = jax.jit(lambda matrix: quantized(matrix, axis=0))(matrix)
    assert matrix.dtype == jnp.int8
    np.testing.assert_array_equal(matrix, [[127, 0], [-64, 0], [2, 0]])  # halves to even
    np.testing.assert_allclose(scale, [[2, 1 / 127]])
    x_BTI = np.float32([[[1.0, 0.51, 0.0], [0.0, 0.0, 0.0]]])  # becomes 127, 65, 0 over 127
    multiply = jax.jit(multiply_int8)
    y_BTO = multiply(x_BTI, matrix, scale)
    np.testing.assert_allclose(y_BTO, [[[2 * (127 * 127 - 65 * 64) / 127, 0], [0, 0]]], rtol=1e-6)
    x_BTI[0, 0, 0] = np.nan
    assert np.isnan(np.asarray(multiply(x_BTI, matrix, scale))[0, 0]).all()


def test_int8_matrices(random_params):
    """Rounded to halves of a 127th of their columns' largest numbers.

    How little scores change is in test_translation.py.
    """
    model = small(**ONE_LAYER, dtype="bfloat16")
    params = random_params(model)
    laid_out = jax.jit(lambda params: model.in_layout(params, {}, WeightLayout.INT8))(params)
    laid_out, params = jax.tree.map(np.asarray, (laid_out, params))
    given, own = (x["decoder_layers"][0]["feed_forward"]["hidden"] for x in (params, laid_out))
    assert own["kernel"].dtype == jnp.int8
    errors_IO = np.abs(own["kernel"] * own["scale_1O"] - given["kernel"])
    assert np.all(errors_IO <= 0.501 * own["scale_1O"])
    np.testing.assert_array_equal(own["bias"], given["bias"])


@pytest.mark.parametrize(
    ("place", "draws"),
    [
        # Both sums of embeddings and positions; 2 or 3 sublayers in each layer.
        ("dropout", 2 + 2 + 3),
        ("attention_dropout", 1 + 2),
        ("activation_dropout", 1 + 1),
    ],
)
def test_places_of_dropout(place, draws):
    """Each place draws once, from a stream that never gives the same mask twice."""
    model, drawn = small(**ONE_LAYER, **{place: 0.1}), []

    def draw(params, key):
        rngs = DropoutRngs(key, np.arange(1))
        model.bind(params)(np.array([[1, 2, 3]]), np.array([[1, 2]]), rngs=rngs)
        drawn.append(rngs._count)

    # Traced as in training.
    jax.eval_shape(draw, model.abstract_params(), jax.random.key(0))
    assert drawn == [draws]


# ---- Wrong input ----


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("activation", "tanh", "relu, gelu, gelu_exact, elu, swish"),
        ("norm", "none", "post, pre, sandwich, deepnorm, rezero"),
        ("normalization", "batch_norm", "layer_norm, rms_norm"),
        ("norm_epsilon", 0.0, "at least 1e-12 and below 1"),
        (
            "positions",
            "rope",
            "sinusoidal, learned, none, rotary, relative, relative_keys, t5, alibi",
        ),
        ("share_embeddings", True, "all, decoder, none"),
        ("dtype", "float16", "float32, bfloat16, float64"),
        ("num_encoder_layers", 0, "at least 1"),
        ("d_ff", -1, "at least 1"),
        ("d_k", -1, "at least 0"),
        ("dropout", 1.0, "at least 0 and below 1"),
        ("activation_dropout", float("nan"), "at least 0 and below 1"),
    ],
)
def test_wrong_values(field, value, allowed):
    with pytest.raises(UserError) as error:
        TransformerConfig(**{**SMALL, field: value})
    message = str(error.value)
    assert "\n" not in message
    assert f"model.{field} is {value!r}; it must be " in message
    assert allowed in message


def test_d_model_must_be_divisible_by_heads_unless_told_d_k_and_d_v():
    for sizes in (dict(d_k=0), dict(d_v=0)):
        with pytest.raises(UserError) as error:
            TransformerConfig(**{**SMALL, **sizes})
        assert str(error.value) == (
            "model.d_model = 13 is not divisible by model.num_heads = 3; change one of them, or "
            "set model.d_k and model.d_v"
        )


def test_float64_needs_the_jax_that_has_it():
    fields = {**SMALL, "dtype": "float64"}
    with pytest.raises(UserError, match=r"^model\.dtype is 'float64', .*JAX_ENABLE_X64=1$"):
        TransformerConfig(**fields)
    with jax.enable_x64(True):
        assert TransformerConfig(**fields).dtype == "float64"


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        (dict(share_embeddings="all"), sizes_of(SOURCE_VOCABULARY, TARGET_VOCABULARY)),
        (dict(share_embeddings="all"), sizes_of(TARGET_VOCABULARY)._replace(joint=False)),
        (dict(positions="learned"), sizes_of(TARGET_VOCABULARY)._replace(max_target_length=7)),
    ],
)
def test_configs_that_do_not_fit_the_data(changes, sizes):
    messages = {
        "share_embeddings": "model.share_embeddings is 'all', but the source and target "
        "vocabularies differ; set it to 'decoder' or 'none', or set tokenizer.joint to True",
        "positions": "model.max_positions = 11, but training would never reach the last of these: "
        "data.max_source_length is 997 and data.max_target_length 7; set it to 7 or less",
    }
    with pytest.raises(UserError) as error:
        build_model(TransformerConfig(**{**SMALL, **changes}), sizes)
    assert str(error.value) == messages[next(iter(changes))]
