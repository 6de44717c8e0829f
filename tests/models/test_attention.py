import dataclasses
import functools
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from processes import on_devices
from small_configs import MODEL

import transformer.models.attention
from transformer.models.attention import (
    KeyValues,
    Mask,
    MultiHeadAttention,
    attention,
    dot_product_attention,
    seeing_something,
)
from transformer.models.cache import CachedKeyValues, attend_to_cache, widened, write_key_values
from transformer.models.numerics import DropoutRngs
from transformer.system.sharding import data_mesh, split_rows

F32 = jnp.dtype("float32")


plain = jax.jit(lambda query, memory, mask: dot_product_attention(query, memory, mask)[0])
dense = jax.jit(lambda mask: mask.dense())


def attend(query, key, mask, value=None):
    """One head, one sentence: the values default to the identity, so that weights come out."""
    key = jnp.asarray(key, F32)
    value = np.eye(len(key), dtype=F32) if value is None else np.asarray(value, F32)
    memory = KeyValues(key[None, None], value[None, None])
    query = jnp.asarray(query, F32)[None, None]
    y_BHTU = plain(query, memory, np.asarray(mask)[None])
    return y_BHTU[0, 0] if isinstance(y_BHTU, jax.core.Tracer) else np.asarray(y_BHTU)[0, 0]


def test_scores_are_divided_by_the_root_of_d_k():
    found = attend([[1, 0]], np.eye(2), [[True, True]])
    np.testing.assert_allclose(found, [[0.6697615, 0.3302385]], atol=1e-7)
    # d_k = 4: products 2, 4, 6, 8, halved.
    key = np.zeros((4, 4))
    key[:, 0] = [1, 2, 3, 4]
    found = attend([[2, 5, 7, 11]], key, [[True] * 4])
    expected = np.exp([1, 2, 3, 4]) / np.exp([1, 2, 3, 4]).sum()
    np.testing.assert_allclose(found, [expected], atol=1e-7)


@pytest.mark.parametrize(
    ("keys", "mask", "weights"),
    [
        ([1, 2, 7], [True, True, False], [0.26894142, 0.73105858, 0]),
        ([7, 1, 2], [False, True, True], [0, 0.26894142, 0.73105858]),
        ([-1e9, 0, -1e9], [True, False, True], [0.5, 0, 0.5]),  # beside however small scores
        ([0, 0, 1e30], [True, True, False], [0.5, 0.5, 0]),
    ],
)
def test_masked_keys_have_no_weight(keys, mask, weights):
    keys = [[key] for key in keys]
    found = attend([[1]], keys, [mask])
    np.testing.assert_allclose(found, [weights], atol=1e-7)
    assert found[0, mask.index(False)] == 0
    # Nor do their values leak, however large.
    value = np.where(np.array(mask)[:, None], 1.5, 1e38)
    np.testing.assert_allclose(attend([[1]], keys, [mask], value), [[1.5]], rtol=1e-6)


def test_a_query_with_nothing_to_attend_to_stays_finite():
    value = np.array([[1.0], [2.0], [6.0]])

    def mean(query, key):
        return attend(query, key, [[False] * 3], value).sum()

    query, key = np.float32([[3.0]]), np.float32([[1.0], [2.0], [7.0]])
    found, gradients = jax.jit(jax.value_and_grad(mean, argnums=(0, 1)))(query, key)
    assert found == pytest.approx(3)
    assert not any(np.any(g) for g in gradients)


def test_queries_of_padding_see_all_where_cudnn_would_make_nan():
    segments = np.array([[1, 1, 2, 0, 0], [1, 0, 0, 0, 0]])
    mask_BTS = np.asarray(dense(Mask(segments, segments, np.arange(5))))
    found = np.asarray(jax.jit(seeing_something)(mask_BTS))
    real = segments > 0
    np.testing.assert_array_equal(found[real], mask_BTS[real])
    assert found[~real].all()


def test_large_scores_do_not_overflow():
    found = attend([[1e4]], [[1e4], [1e4 - 1e-3], [-1e4]], [[True] * 3])
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-6)


def test_bfloat16_scores_are_float32():
    # d_k = 4, scores (32 * 16 + 2) / 2 = 257 and 256; bfloat16 rounds 257 to 256.
    key = np.array([[[[16, 1, 0, 0], [16, 0, 0, 0]]]], jnp.bfloat16)
    query = np.array([[[[32, 2, 0, 0]]]], jnp.bfloat16)
    memory = KeyValues(key, np.eye(2, dtype=jnp.bfloat16)[None, None])
    found = plain(query, memory, np.ones((1, 1, 2), bool))
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(found), [[[[0.7310586, 0.2689414]]]], atol=2e-3)


# ---- Blocks of queries ----


B, H, T, S, K, U = 2, 3, 11, 13, 5, 7


@pytest.fixture
def blocks_of_three(monkeypatch):
    """11 queries then make 4 blocks, the last filled up with one query."""
    monkeypatch.setattr("transformer.models.attention.MAX_QUERIES", 3)


def drawn_tensors(dtype=F32):
    rng = np.random.default_rng(2)
    shapes = (B, H, T, K), (B, H, S, K), (B, H, S, U), (B, H, T, U)
    query, key, value, weight = (np.asarray(rng.normal(size=s), dtype) for s in shapes)
    return query, KeyValues(key, value), weight


def drawn_segments():
    rng = np.random.default_rng(3)
    queries, keys = rng.integers(0, 3, (B, T)), rng.integers(0, 3, (B, S))
    queries[0, 4], queries[1, 5] = 0, 7  # these attend to nothing
    return queries.astype(np.int32), keys.astype(np.int32)


def value_and_gradients(attend, query, memory, weight):
    """The output of attend(query, memory), and gradients of its sum weighted at random."""

    def weighted(query, memory):
        y_BHTU = attend(query, memory)
        return (y_BHTU * weight).sum(), y_BHTU

    gradients, y_BHTU = jax.grad(weighted, (0, 1), has_aux=True)(query, memory)
    return [y_BHTU, *jax.tree.leaves(gradients)]


MASKS = {
    "segments": Mask(*drawn_segments()),
    "packed and causal": Mask(*drawn_segments(), np.arange(T)),
    "at later positions": Mask(*drawn_segments(), np.arange(T) + 2),
    "one row of segments": Mask(*(x[:1] for x in drawn_segments())),
    "one query segment": Mask(np.ones((1, 1), np.int32), drawn_segments()[1]),
}


@jax.jit  # once for all masks of a shape
def of_all_forms(query, memory, weight, mask):
    def in_blocks(query, memory):
        return attention(query, memory, mask)[0]

    def plain(query, memory):
        return dot_product_attention(query, memory, mask.dense())[0]

    # A training step may recompute a layer, too.
    forms = plain, in_blocks, jax.checkpoint(in_blocks)
    return [value_and_gradients(form, query, memory, weight) for form in forms]


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
def test_blocks_equal_the_plain_form(mask, blocks_of_three):
    expected, *others = of_all_forms(*drawn_tensors(), mask)
    for found in others:
        for x, y in zip(found, expected, strict=True):
            np.testing.assert_allclose(x, y, atol=2e-6)


@functools.partial(jax.jit, static_argnums=0)
def with_weights(most, query, memory, mask):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformer.models.attention.MAX_QUERIES", most)
        y_BHTU, weights_BHTS = attention(query, memory, mask, return_weights=True)
        return y_BHTU, attention(query, memory, mask)[0], weights_BHTS, mask.dense()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("most", [3, 256], ids=["blocks", "plain"])
def test_returned_weights(mask, most):
    """Those that the output is the sum of, and exactly 0 where the mask is False."""
    query, memory, _ = drawn_tensors()
    y_BHTU, without, weights_BHTS, mask_BTS = map(
        np.asarray, with_weights(most, query, memory, mask)
    )
    np.testing.assert_allclose(y_BHTU, without, atol=1e-6)
    may_attend = np.broadcast_to(mask_BTS[:, None], weights_BHTS.shape)
    assert weights_BHTS.shape == (B, H, T, S)
    assert (weights_BHTS[may_attend] > 0).all()
    assert (weights_BHTS[~may_attend] == 0).all()
    sees = may_attend.any(axis=-1)
    np.testing.assert_allclose(weights_BHTS.sum(-1), sees, atol=1e-6)
    np.testing.assert_allclose(y_BHTU[sees], (weights_BHTS @ memory.value_BHSU)[sees], atol=1e-6)


def test_weights_cost_nothing_unless_asked_for(monkeypatch):
    query, memory, _ = drawn_tensors()

    def program(return_weights):
        def output(query, memory):
            return attention(query, memory, MASKS["segments"], return_weights=return_weights)[0]

        return jax.jit(output).trace(query, memory)

    # Asked for and not used, they leave the program that does not ask.
    assert program(True).lower().as_text() == program(False).lower().as_text()
    # A loop would write what it returns: without the argument it returns the output alone.
    monkeypatch.setattr("transformer.models.attention.MAX_QUERIES", 3)
    loops = [eqn for eqn in program(False).jaxpr.eqns if eqn.primitive.name == "scan"]
    assert [x.aval.shape for eqn in loops for x in eqn.outvars] == [(4, B, H, 3, U)]


def test_few_queries_are_one_block(monkeypatch):
    def has_loop(most):
        monkeypatch.setattr("transformer.models.attention.MAX_QUERIES", most)
        query, memory, _ = drawn_tensors()
        # A function of its own each time, since JAX keeps what it has traced.
        program = jax.make_jaxpr(lambda *x: attention(*x, MASKS["segments"])[0])(query, memory)
        return "scan" in str(program)

    assert not has_loop(T)
    assert has_loop(T - 1)


def test_dropout_in_blocks(blocks_of_three):
    query, memory, weight = drawn_tensors()
    mask, rate = Mask(np.ones((B, T), np.int32), np.ones((B, S), np.int32)), 0.25

    def dropped(query, memory, rows=np.arange(2)):  # noqa: B008
        rngs = DropoutRngs(jax.random.key(5), rows)
        return attention(query, memory, mask, rate, rngs)[0]

    run = jax.jit(dropped)
    # With the identity for values the weights come out, and what was dropped is seen.
    scores_BHTS = query @ memory.key_BHSK.swapaxes(2, 3) / K**0.5
    weights_BHTS = np.exp(scores_BHTS) / np.exp(scores_BHTS).sum(axis=-1, keepdims=True)
    identity = np.broadcast_to(np.eye(S, dtype=F32), (B, H, S, S))
    scale_BHTS = np.asarray(run(query, memory._replace(value_BHSU=identity))) / weights_BHTS
    is_kept = scale_BHTS != 0
    np.testing.assert_allclose(scale_BHTS[is_kept], 1 / (1 - rate), rtol=1e-4)
    n = is_kept.size
    assert abs(is_kept.sum() - (1 - rate) * n) < 4 * (n * rate * (1 - rate)) ** 0.5
    assert rows_and_blocks_differ(is_kept)

    # The backward pass, which draws again, draws the same.
    def reference(query, memory):
        scores_BHTS = jnp.einsum("BHTK,BHSK->BHTS", query, memory.key_BHSK) / K**0.5
        weights_BHTS = jax.nn.softmax(scores_BHTS) * jnp.where(is_kept, 1 / (1 - rate), 0)
        return jnp.einsum("BHTS,BHSU->BHTU", weights_BHTS, memory.value_BHSU)

    forms = jax.jit(lambda *x: [value_and_gradients(f, *x) for f in (dropped, reference)])
    for found, expected in zip(*forms(query, memory, weight), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6)

    # A row's draw is its own, whatever the rows beside it.
    swapped = run(*jax.tree.map(lambda x: x[::-1], (query, memory)), rows=np.array([1, 0]))
    np.testing.assert_allclose(swapped[::-1], run(query, memory, np.arange(2)), atol=1e-6)
    # And with one key for all rows at a time, which `nnx.Rngs` gives.
    memory = memory._replace(value_BHSU=identity)
    weights_BHTS, _ = jax.jit(lambda: attention(query, memory, mask, rate, nnx.Rngs(dropout=0)))()
    assert rows_and_blocks_differ(np.asarray(weights_BHTS) != 0)


def rows_and_blocks_differ(is_kept):
    return (is_kept[0] != is_kept[1]).any() and (is_kept[:, :, :3] != is_kept[:, :, 3:6]).any()


def test_gradients_of_bfloat16_memory_are_summed_in_float32(monkeypatch):
    monkeypatch.setattr("transformer.models.attention.MAX_QUERIES", 2)
    n = 1024  # 512 blocks of 2; in bfloat16, 512 + 2 is 512
    query = jnp.zeros((1, 1, n, 1), jnp.bfloat16)
    memory = KeyValues(*jnp.ones((2, 1, 1, 1, 1), jnp.bfloat16))
    mask = Mask(jnp.ones((1, n), int), jnp.ones((1, 1), int))
    _, _, _, by_value = jax.jit(
        lambda *x: value_and_gradients(lambda *y: attention(*y, mask)[0], *x, F32.type(1))
    )(query, memory)
    assert by_value.dtype == jnp.bfloat16
    assert by_value.item() == n


def temporary_bytes(n):
    """What the gradient of self-attention of one row of n needs beside arguments and results."""
    mask = Mask(jnp.ones((1, n), int), jnp.ones((1, n), int), jnp.arange(n))

    def summed(query, memory):
        return attention(query, memory, mask)[0].sum()

    x = jax.ShapeDtypeStruct((1, 2, n, 8), F32)
    compiled = jax.jit(jax.grad(summed, (0, 1))).lower(x, KeyValues(x, x)).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_memory_grows_linearly_with_length(monkeypatch):
    assert temporary_bytes(4096) < 2.1 * temporary_bytes(2048)
    monkeypatch.setattr("transformer.models.attention.MAX_QUERIES", 4096)
    assert temporary_bytes(4096) > 3.9 * temporary_bytes(2048)


def test_rows_over_devices_in_blocks():
    """Each device works on its own rows, with nothing sent, and the results are the same."""
    subprocess.run([sys.executable, __file__], env=on_devices(2), check=True, timeout=300)


def compare_one_and_two_devices():
    transformer.models.attention.MAX_QUERIES = 3
    query, memory, weight = drawn_tensors()

    def weighted(query, memory, weight, rows_B):
        rngs = DropoutRngs(jax.random.key(5), rows_B)
        y_BHTU, _ = attention(query, memory, MASKS["packed and causal"], 0.25, rngs)
        return (y_BHTU * weight).sum()

    gradients, arguments = jax.grad(weighted, (0, 1)), (query, memory, weight, jnp.arange(B))
    expected = jax.jit(gradients)(*arguments)
    assert len(jax.devices()) == 2
    rows = split_rows(data_mesh(), axis=0)
    step = jax.jit(gradients, in_shardings=rows, out_shardings=rows).lower(*arguments).compile()
    for collective in ("all-gather", "all-reduce", "all-to-all", "collective-permute"):
        assert collective not in step.as_text()
    found = step(*(jax.device_put(x, rows) for x in arguments))
    for one, two in zip(jax.tree.leaves(expected), jax.tree.leaves(found)):
        np.testing.assert_allclose(one, two, atol=1e-6)


# ---- Multi-head attention ----


def layer_of(**changes):
    sizes = dict(d_model=7, num_heads=3, d_k=5, d_v=2)
    return MultiHeadAttention(dataclasses.replace(MODEL, **sizes, **changes), nnx.Rngs(0))


def test_projections_have_biases_only_if_asked():
    def shapes(**changes):
        return jax.tree.map(jnp.shape, nnx.to_pure_dict(nnx.state(layer_of(**changes))))

    kernels = {"query": (7, 15), "key": (7, 15), "value": (7, 6), "output": (6, 7)}
    assert shapes() == {name: {"kernel": shape} for name, shape in kernels.items()}
    assert shapes(attention_bias=True) == {
        name: {"kernel": shape, "bias": shape[1:]} for name, shape in kernels.items()
    }


@pytest.mark.parametrize(("platform", "barriers"), [("cuda", 2), ("cpu", 0)])
def test_products_of_keys_and_values_are_not_merged_on_a_gpu(platform, barriers):
    def key_values(x_BSD):
        return layer_of().key_values(x_BSD)

    traced = jax.jit(key_values).trace(jnp.ones((2, 3, 7)))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("optimization_barrier") == barriers


def test_attention_dropout_needs_a_rate_and_rngs():
    x, mask = np.ones((1, 5, 7), F32), Mask(*np.ones((2, 1, 5), np.int32))
    off, on = layer_of(), layer_of(attention_dropout=0.5)

    @jax.jit
    def run(x):
        memory, rngs = off.key_values(x), lambda: nnx.Rngs(dropout=0)
        return [
            off(x, memory, mask, None, True),
            (off(x, memory, mask, rngs())[0], on(x, memory, mask)[0]),
            on(x, memory, mask, rngs(), True),
        ]

    (plain, weights), same, (dropped, weights_before) = run(x)
    for found in same:
        np.testing.assert_array_equal(found, plain)
    assert np.any(dropped != plain)
    np.testing.assert_array_equal(weights_before, weights)


def test_widened_places_hold_the_same_numbers():
    def random(*shape):
        return np.random.default_rng(math.prod(shape)).normal(size=shape).astype(jnp.bfloat16)

    B, H, M, K, U, L = 2, 3, 4, 8, 5, 6
    query, mask = random(B, H, M, K), np.ones((B, M, L * M), bool)

    @jax.jit
    def both(key_values, new):
        wide = widened({"key_values": [key_values]})["key_values"][0]
        written = [write_key_values(x, new, jnp.array(2)) for x in (key_values, wide)]
        return written, [attend_to_cache(query, [(x, mask)]) for x in written]

    key_values = CachedKeyValues(random(B, H, K, L * M), random(B, H, L * M, U))
    new = CachedKeyValues(random(B, H, K, M), random(B, H, M, U))
    (narrow, wide), results = both(key_values, new)
    for a, b in zip(narrow, wide, strict=True):
        assert (a.dtype, b.dtype) == (jnp.bfloat16, jnp.float32)
        np.testing.assert_array_equal(np.float32(a), b)
    (y, (weights,)), (of_wide, (weights_of_wide,)) = results
    assert of_wide.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.float32(weights), np.float32(weights_of_wide), rtol=1e-4)
    np.testing.assert_allclose(np.float32(y), np.float32(of_wide), rtol=0.01)


if __name__ == "__main__":
    compare_one_and_two_devices()


def drawn(*rows):
    """A mask from its picture: x where a query (row) may attend to a key (column)."""
    return np.array([[mark == "x" for mark in row] for row in rows])


def test_causal_mask():
    one = np.ones((1, 3), np.int32)
    mask = dense(Mask(one, one, np.arange(3)))
    assert mask.dtype == bool
    np.testing.assert_array_equal(mask, [drawn("x..", "xx.", "xxx")])
    # A decoding step: one query, whose position is its step.
    np.testing.assert_array_equal(dense(Mask(one[:, :1], one, np.array([1]))), [drawn("xx.")])


def test_padding_mask_wherever_the_padding_stands():
    queries, keys = [[1, 1], [1, 0], [0, 0]], [[1, 1, 0], [0, 1, 1], [1, 0, 1]]
    mask = dense(Mask(np.array(queries), np.array(keys)))
    assert mask.dtype == bool
    expected = [drawn("xx.", "xx."), drawn(".xx", "..."), drawn("...", "...")]
    np.testing.assert_array_equal(mask, expected)


def test_packed_sentences_do_not_see_one_another():
    queries = np.array([[1, 2, 2, 0, 3, 4]])
    keys = np.array([[1, 1, 2, 0, 0, 3, 3]])
    expected = drawn(
        "xx.....",
        "..x....",
        "..x....",
        ".......",
        ".....xx",
        ".......",  # nothing of this sentence is among the keys
    )
    np.testing.assert_array_equal(dense(Mask(queries, keys)), [expected])


def test_packed_causal_mask():
    segments = np.array([[1, 1, 1, 2, 2, 0, 0]])
    expected = drawn(
        "x......",
        "xx.....",
        "xxx....",
        "...x...",
        "...xx..",
        ".......",
        ".......",
    )
    mask = dense(Mask(segments, segments, np.arange(7)))
    np.testing.assert_array_equal(mask, [expected])
