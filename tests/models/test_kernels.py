import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_configs import sizes_of

from configs import base
from transformer.models import fused_norm, kernels
from transformer.models.attention import KeyValues, Mask, fast_attention
from transformer.models.family import build_model
from transformer.models.loss import OutputLayer, output_loss
from transformer.models.numerics import DropoutRngs, dropout, row_keys
from transformer.runs.run_config import Config
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh

H200 = SimpleNamespace(platform="gpu", compute_capability="9.0")


def model_config(**changes):
    config = base.get_config()
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "d_model": 32, "num_heads": 2}
    config.model.update(sizes | {"d_ff": 11} | changes)
    return Config.from_dict(config.to_dict()).model


def normal(number, *shape):
    return np.random.default_rng(number).normal(size=shape).astype(np.float32)


@functools.partial(jax.jit, static_argnums=0)
def result_and_gradients(function, direction, *arguments):
    result, pull_back = jax.vjp(function, *arguments)
    return [result, *pull_back(direction)]


@functools.cache
def plain_result(name, config):
    case = functools.partial(kernels.CASES[name], config, False, False, jnp.float32)
    return jax.device_get(jax.jit(case)())


def disagreement(name, config, **options):
    """That of `kernels`; the plain form is compiled once for all that is compared with it."""
    plain, case = plain_result(name, config), kernels.CASES[name]

    def kept(config, interpret, fast, dtype):
        return case(config, interpret, fast, dtype) if fast else plain

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(kernels.CASES, name, kept)
        return kernels.disagreement(name, config, **options)


@pytest.mark.parametrize(("rate", "T"), [(0.3, 24), (0.0, 7)])
def test_norm_kernel_in_float64(rate, T):
    """Result and gradients of the kernel, interpreted, against the formula."""
    B, D = 3, 32
    x, y, direction = (normal(i, B, T, D) for i in range(3))
    scale_D, bias_D = normal(3, D), normal(4, D)

    def rngs():
        return DropoutRngs(jax.random.key(7), jnp.arange(B))

    def kernel(x, y, scale_D, bias_D):
        keys = row_keys(rngs(), B) if rate else None
        settings = fused_norm.Settings(rate, 1e-6, interpret=True)
        return fused_norm.add_and_norm(x, y, keys, scale_D, bias_D, settings)

    with jax.enable_x64(True):

        def formula(x, y, scale_D, bias_D):
            z = jnp.float64(x) + jnp.float64(dropout(y, rate, rngs()))
            z -= z.mean(-1, keepdims=True)
            z /= jnp.sqrt((z**2).mean(-1, keepdims=True) + 1e-6)
            return z * scale_D[None, None] + bias_D[None, None]

        expected = result_and_gradients(formula, np.float64(direction), x, y, scale_D, bias_D)
    found = result_and_gradients(kernel, direction, x, y, scale_D, bias_D)
    for ours, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, wanted, atol=2e-5)


def test_blocked_loss_in_float64():
    B, T, D, V = 3, 7, 16, 37  # blocks of 2, 2, 2 and 1 positions
    with jax.enable_x64(True):
        arrays = [np.float64(x) for x in (normal(0, B, T, D), normal(1, V, D), normal(2, V))]
        labels_BT = np.random.default_rng(0).integers(0, V, (B, T))
        real_BT = np.arange(T)[None] < np.array([T, 3, 0])[:, None]

        def found(blocked):
            def loss(hidden_BTD, output_VD, bias_V):
                layer = OutputLayer(output_VD, bias_V, jnp.float64, blocked)
                sums = output_loss(hidden_BTD, layer, labels_BT, real_BT, 0.1)
                return 3 * sums.loss, sums

            return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*arrays)

        (plain, plain_gradients), (ours, gradients) = found(False), found(True)
    for a, b in zip(jax.tree.leaves((ours, gradients)), jax.tree.leaves((plain, plain_gradients))):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_logits_of_any_size():
    """The sum of exponentials neither overflows nor vanishes."""

    @jax.jit
    def loss(output_VD):
        layer = OutputLayer(output_VD, None, jnp.float32, blocked=True)
        real_BT = np.ones((1, 1), bool)
        return output_loss(jnp.ones((1, 1, 1)), layer, np.array([[1]]), real_BT, 0.0)

    for factor in (1e4, -1e4):
        sums = loss(np.float32([[factor], [factor / 2], [0.0]]))
        assert float(sums.nll) == pytest.approx(5000)


def test_a_kernel_is_tried():
    config = model_config(dtype="bfloat16")
    assert disagreement("triton_norm", config, interpret=True) == ""


def test_a_wrong_kernel_is_found(monkeypatch):
    # No other test has this epsilon, nor traced the right kernel with it.
    config = model_config(dtype="bfloat16", norm_epsilon=3e-6)
    right = fused_norm.threshold_of
    monkeypatch.setattr(fused_norm, "threshold_of", lambda rate: right(rate) + 2**26)  # 1.6 %
    found = disagreement("triton_norm", config, interpret=True)
    assert found.startswith("its result 0 is ")


def test_the_mask_reaches_cudnn(monkeypatch):
    """Without it, sentences of a row would see each other. JAX's own form stands for cuDNN's."""
    attend = jax.nn.dot_product_attention

    def with_mask(*arrays, mask, implementation):
        assert implementation == "cudnn"
        return attend(*arrays, mask=mask)

    config = model_config(dtype="bfloat16")
    monkeypatch.setattr(jax.nn, "dot_product_attention", with_mask)
    assert disagreement("cudnn_attention", config) == ""
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *x, **options: attend(*x))
    assert disagreement("cudnn_attention", config).startswith("its result 0 is ")


def test_nan_in_gradients_of_queries_with_low_scores_is_found(monkeypatch):
    """As cuDNN's of rows of 64, 192, ... tokens, whose results are right."""
    attend = jax.nn.dot_product_attention

    def overflowing(query, key, value, mask, implementation):
        result = attend(query, key, value, mask=mask)
        scores = jnp.einsum("BTHK,BSHK->BTHS", query, key, preferred_element_type=jnp.float32)
        inverse = jnp.exp(-scores.max(-1, keepdims=True) * query.shape[-1] ** -0.5)
        return jnp.where(True, result, (result * inverse).astype(result.dtype))

    monkeypatch.setattr(jax.nn, "dot_product_attention", overflowing)
    config = model_config(dtype="bfloat16")
    found = disagreement("cudnn_attention", config)
    assert found.startswith("its result 1 is nan from")


@pytest.mark.parametrize("T", [2, 33, 64, 96, 128])
@pytest.mark.parametrize("S", [48, 320])
def test_lengths_that_cudnn_gets(monkeypatch, T, S):
    calls = []

    def counted(query, *others, mask, implementation):
        calls.append(implementation)
        return query

    monkeypatch.setattr(jax.nn, "dot_product_attention", counted)
    query, key = (jax.ShapeDtypeStruct((1, 1, x, 8), jnp.bfloat16) for x in (T, S))
    mask = Mask(np.ones((1, T), int), np.ones((1, S), int))
    jax.eval_shape(lambda query, key: fast_attention(query, KeyValues(key, key), mask), query, key)
    assert calls == ["cudnn"] * (T not in (33, 64) and S != 320)


def test_a_kernel_may_fail_without_a_word(monkeypatch):
    def fails(*arguments):
        raise NotImplementedError

    monkeypatch.setitem(kernels.CASES, "triton_norm", fails)
    found = kernels.disagreement("triton_norm", model_config())
    assert found == "it fails (NotImplementedError: )"


def test_what_fails_is_not_used(capsys):
    config = model_config(kernels="triton_norm,blocked_loss")
    config = kernels.proven(config, data_mesh())
    assert config.kernels == "blocked_loss"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("warning  triton_norm is not used: it fails (ValueError: ")
    assert lines[1] == "kernels  blocked_loss; tried on this device"


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("cudnn_attention", {"dtype": "float32"}, "it is for model.dtype=bfloat16"),
        ("cudnn_attention", {"d_k": 12}, "keys and values must have one size, 8, 16, ... or 128"),
        ("cudnn_attention", {"d_model": 1024}, "keys and values must have one size, 8, 16, "),
        ("cudnn_packed", {"dtype": "float32"}, "it is for model.dtype=bfloat16"),
        ("cudnn_packed", {"attention_dropout": 0.1}, "it has no model.attention_dropout"),
        ("triton_norm", {"norm": "pre"}, "it is for post-LN, with layer_norm"),
        ("triton_norm", {"d_model": 24}, "model.d_model = 24 is no power of 2 from 16 to 8192"),
    ],
)
def test_what_a_kernel_cannot_take(name, changes, why, capsys):
    """Its plain form would take its place and agree with itself."""
    config = model_config(**{"dtype": "bfloat16", "kernels": name} | changes)
    assert kernels.proven(config, data_mesh()).kernels == "plain"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"warning  {name} is not used: {why}")
    auto = dataclasses.replace(config, kernels="auto")
    assert name not in kernels.chosen(auto, H200).kernels.split(",")


def test_choices():
    config = model_config()
    assert config.kernels == "auto"
    assert kernels.chosen(config, jax.devices()[0]).kernels == "plain"
    assert kernels.chosen(config, H200).kernels == "triton_norm,blocked_loss"
    bfloat16 = dataclasses.replace(config, dtype="bfloat16")
    before_hopper = "cudnn_attention,triton_norm,blocked_loss"
    assert kernels.chosen(bfloat16, H200).kernels == f"cudnn_packed,{before_hopper}"
    a100 = SimpleNamespace(platform="cuda", compute_capability="8.0")
    assert kernels.chosen(bfloat16, a100).kernels == before_hopper
    assert not config.uses("blocked_loss")
    with pytest.raises(UserError, match="must be auto, plain, or some of cudnn_packed,cudnn_"):
        model_config(kernels="flash")


def test_models_agree(random_params, monkeypatch):
    """The whole model with both kernels, packed rows and dropout, against the plain one."""
    call = fused_norm.add_and_norm
    monkeypatch.setattr(
        fused_norm,
        "add_and_norm",
        lambda *args: call(*args[:-1], args[-1]._replace(interpret=True)),
    )
    from transformer.data.batches import Batch

    segments = np.array([[1, 1, 2, 2, 2, 3, 0, 0], [1, 1, 1, 1, 2, 2, 2, 2]])
    words = np.random.default_rng(1).integers(3, 37, (2, 8))
    batch = Batch(words, segments, words, words, segments)

    def loss(names):
        model = build_model(model_config(kernels=names), sizes_of(37))

        def loss(params):
            rngs = DropoutRngs(jax.random.key(2), jnp.arange(2))
            return model.bind(params).loss(batch, rngs, 0.1)

        return jax.jit(loss)(random_params(model))

    plain, fast = loss("plain"), loss("triton_norm,blocked_loss")
    for ours, wanted in zip(jax.tree.leaves(fast), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5)
