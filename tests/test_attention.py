import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from transformer.attention import KeysValues, MultiHeadAttention, dot_product_attention

F32 = jnp.dtype("float32")


def attend(query, key, mask, value=None, **dropout):
    """One head, one sentence: the values default to the identity, so that weights come out."""
    key = jnp.asarray(key, F32)
    value = jnp.eye(len(key)) if value is None else jnp.asarray(value, F32)
    memory = KeysValues(key[None, None], value[None, None])
    query = jnp.asarray(query, F32)[None, None]
    return dot_product_attention(query, memory, jnp.asarray(mask)[None], **dropout)[0, 0]


def test_scores_are_divided_by_the_root_of_d_k():
    found = attend([[1, 0]], np.eye(2), [[True, True]])
    np.testing.assert_allclose(found, [[0.6697615, 0.3302385]], atol=1e-7)
    # d_k = 4: products 2, 4, 6, 8, halved.
    key = np.zeros((4, 4))
    key[:, 0] = [1, 2, 3, 4]
    found = attend([[2, 5, 7, 11]], key, [[True] * 4])
    expected = np.exp([1, 2, 3, 4]) / np.exp([1, 2, 3, 4]).sum()
    np.testing.assert_allclose(found, [expected], atol=1e-7)


def test_masked_keys_have_no_weight():
    found = attend([[1]], [[1], [2], [7]], [[True, True, False]])
    np.testing.assert_allclose(found, [[0.26894142, 0.73105858, 0]], atol=1e-7)
    assert found[0, 2] == 0
    found = attend([[1]], [[7], [1], [2]], [[False, True, True]])
    np.testing.assert_allclose(found, [[0, 0.26894142, 0.73105858]], atol=1e-7)


def test_masked_keys_have_no_weight_beside_however_small_scores():
    found = attend([[1]], [[-1e9], [0], [-1e9]], [[True, False, True]])
    np.testing.assert_allclose(found, [[0.5, 0, 0.5]], atol=1e-7)


def test_masked_values_do_not_leak_however_large():
    value = [[1.0], [2.0], [1e38]]
    found = attend([[0]], [[0], [0], [1e30]], [[True, True, False]], value)
    np.testing.assert_allclose(found, [[1.5]], rtol=1e-6)


def test_a_query_with_nothing_to_attend_to_stays_finite():
    value = jnp.array([[1.0], [2.0], [6.0]])

    def mean(query, key):
        return attend(query, key, [[False] * 3], value).sum()

    query, key = jnp.array([[3.0]]), jnp.array([[1.0], [2.0], [7.0]])
    found, gradients = jax.value_and_grad(mean, argnums=(0, 1))(query, key)
    assert found == pytest.approx(3)
    assert all((g == 0).all() for g in gradients)


def test_large_scores_do_not_overflow():
    found = attend([[1e4]], [[1e4], [1e4 - 1e-3], [-1e4]], [[True] * 3])
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-6)


def test_bfloat16_scores_are_float32():
    # d_k = 4, scores (32 * 16 + 2) / 2 = 257 and 256; bfloat16 rounds 257 to 256.
    key = jnp.array([[16, 1, 0, 0], [16, 0, 0, 0]], jnp.bfloat16)
    query = jnp.array([[32, 2, 0, 0]], jnp.bfloat16)
    memory = KeysValues(key[None, None], jnp.eye(2, dtype=jnp.bfloat16)[None, None])
    found = dot_product_attention(query[None, None], memory, jnp.ones((1, 1, 2), bool))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(found[0, 0].astype(F32), [[0.7310586, 0.2689414]], atol=2e-3)


def test_attention_dropout_acts_on_the_weights():
    n = 1009
    rngs = nnx.Rngs(dropout=0)
    uniform = attend(np.zeros((1, 1)), np.zeros((n, 1)), np.ones((1, n), bool))
    np.testing.assert_allclose(uniform, np.full((1, n), 1 / n), rtol=1e-5)
    dropped = attend(
        np.zeros((1, 1)), np.zeros((n, 1)), np.ones((1, n), bool), dropout_rate=0.5, rngs=rngs
    )
    # Dropped after the softmax: the others are not renormalised, only doubled.
    is_zero = np.asarray(dropped) == 0
    np.testing.assert_allclose(np.asarray(dropped)[~is_zero], 2 / n, rtol=1e-5)
    assert abs(is_zero.sum() - n / 2) < 4 * (n / 4) ** 0.5


def attention(**changes):
    arguments = dict(num_heads=3, d_k=5, d_v=2, dropout_rate=0.0, dtype=F32, rngs=nnx.Rngs(0))
    return MultiHeadAttention(7, **{**arguments, **changes})


def test_projections_have_no_biases():
    shapes = jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(attention())))
    assert shapes == {
        "query": {"kernel": (7, 15)},
        "key": {"kernel": (7, 15)},
        "value": {"kernel": (7, 6)},
        "output": {"kernel": (6, 7)},
    }


def test_multi_head_attention_is_one_attention_a_head():
    layer, rng = attention(), np.random.default_rng(0)
    x_BTD = rng.normal(size=(2, 11, 7)).astype(np.float32)
    y_BSD = rng.normal(size=(2, 13, 7)).astype(np.float32)
    mask = rng.random((2, 11, 13)) < 0.7
    memory = layer.keys_values(y_BSD)
    assert memory.key_BHSK.shape == (2, 3, 13, 5)
    assert memory.value_BHSU.shape == (2, 3, 13, 2)

    w = {name: np.asarray(getattr(layer, name).kernel[...]) for name in ("query", "key", "value")}
    heads = []
    for h in range(3):
        q = x_BTD @ w["query"][:, 5 * h : 5 * h + 5]
        k = y_BSD @ w["key"][:, 5 * h : 5 * h + 5]
        v = y_BSD @ w["value"][:, 2 * h : 2 * h + 2]
        e = np.exp(q @ k.swapaxes(1, 2) / 5**0.5) * mask
        heads.append(e / e.sum(-1, keepdims=True) @ v)
    expected = np.concatenate(heads, axis=-1) @ np.asarray(layer.output.kernel[...])
    np.testing.assert_allclose(layer(x_BTD, memory, jnp.asarray(mask)), expected, atol=1e-5)


def test_a_mask_of_size_one_serves_all_rows_or_queries():
    layer = attention()
    x = jnp.asarray(np.random.default_rng(1).normal(size=(2, 3, 7)), F32)
    memory = layer.keys_values(x)
    mask_B1S = jnp.array([[[True, False, True]], [[True, True, False]]])
    whole = jnp.broadcast_to(mask_B1S, (2, 3, 3))
    np.testing.assert_allclose(layer(x, memory, mask_B1S), layer(x, memory, whole), atol=1e-6)
    mask_1TS = jnp.tril(jnp.ones((1, 3, 3), bool))
    whole = jnp.broadcast_to(mask_1TS, (2, 3, 3))
    np.testing.assert_allclose(layer(x, memory, mask_1TS), layer(x, memory, whole), atol=1e-6)


def test_attention_dropout_needs_a_rate_and_rngs():
    x, mask = jnp.ones((1, 5, 7)), jnp.ones((1, 5, 5), bool)
    off, on = attention(), attention(dropout_rate=0.5)
    memory = off.keys_values(x)
    plain = off(x, memory, mask)
    np.testing.assert_array_equal(off(x, memory, mask, nnx.Rngs(dropout=0)), plain)
    np.testing.assert_array_equal(on(x, memory, mask), plain)
    assert (on(x, memory, mask, nnx.Rngs(dropout=0)) != plain).any()
