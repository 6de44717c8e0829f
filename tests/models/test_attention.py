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
from transformer.models.positions.kind import Scoring
from transformer.system.sharding import data_mesh, split_rows

F32 = jnp.dtype("float32")


# Queries [K], the first number of each key, masks, and weights. K is 4.
WEIGHTS = {
    "divided by the root of d_k": (
        [2, 0, 0, 0],
        [[1], [2], [7]],
        "xx.",
        [0.26894142, 0.73105858, 0],
    ),
    "a mask in front": ([2, 0, 0, 0], [[7], [1], [2]], ".xx", [0, 0.26894142, 0.73105858]),
    "beside however small scores": ([2, 0, 0, 0], [[-1e9], [0], [-1e9]], "x.x", [0.5, 0, 0.5]),
    "beside large scores": ([2, 0, 0, 0], [[0], [0], [1e30]], "xx.", [0.5, 0.5, 0]),
    "no overflow": ([2e4, 0, 0, 0], [[1e4], [-1e4], [-1e4]], "xxx", [1, 0, 0]),
    "nothing to attend to": ([2, 0, 0, 0], [[1], [2], [7]], "...", [1 / 3, 1 / 3, 1 / 3]),
}


def test_scores_and_masks():
    """Equation 1. What is masked has no weight, and its value does not leak, however large."""
    queries, keys, masks, expected = zip(*WEIGHTS.values(), strict=True)
    query_BHTK = np.array(queries, F32)[:, None, None]
    key_BHSK = np.pad(np.array(keys, F32)[:, None], [(0, 0)] * 3 + [(0, 3)])
    mask_BTS = np.array([drawn(mask) for mask in masks])
    large_BHSU = np.where(mask_BTS, 1.5, 1e38).astype(F32).swapaxes(1, 2)[:, None]
    values_BHSU = np.concatenate([np.broadcast_to(np.eye(3), (6, 1, 3, 3)), large_BHSU], axis=-1)

    def attend(query, key):
        y_BHTU = dot_product_attention(query, KeyValues(key, values_BHSU.astype(F32)), mask_BTS)[0]
        return y_BHTU[-1, ..., :3].sum(), y_BHTU[:, 0, 0]

    run = jax.jit(jax.value_and_grad(attend, (0, 1), has_aux=True))
    (_, found_BU), gradients = jax.tree.map(np.asarray, run(query_BHTK, key_BHSK))
    np.testing.assert_allclose(found_BU[:, :3], expected, atol=1e-7)
    sees_B = mask_BTS.any(axis=(1, 2))
    assert (found_BU[:, :3][sees_B] == 0)[~mask_BTS[sees_B, 0]].all()
    np.testing.assert_allclose(found_BU[sees_B, 3], 1.5, rtol=1e-6)
    assert not any(np.any(g) for g in gradients)  # of a query that sees nothing


def test_queries_of_padding_see_all_where_cudnn_would_make_nan():
    segments = np.array([[1, 1, 2, 0, 0], [1, 0, 0, 0, 0]])
    mask = Mask(segments, segments, np.arange(5))
    run = jax.jit(lambda mask: (mask.dense(), seeing_something(mask.dense())))
    mask_BTS, found = map(np.asarray, run(mask))
    real = segments > 0
    np.testing.assert_array_equal(found[real], mask_BTS[real])
    assert found[~real].all()


def test_bfloat16_scores_are_float32():
    # d_k = 4, scores (32 * 16 + 2) / 2 = 257 and 256; bfloat16 rounds 257 to 256.
    key = np.array([[[[16, 1, 0, 0], [16, 0, 0, 0]]]], jnp.bfloat16)
    query = np.array([[[[32, 2, 0, 0]]]], jnp.bfloat16)
    memory, mask_BTS = KeyValues(key, np.eye(2, dtype=jnp.bfloat16)[None, None]), np.ones((1, 1, 2))
    found = jax.jit(lambda *x: dot_product_attention(*x)[0])(query, memory, mask_BTS > 0)
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
    "one row, one query segment": Mask(np.ones((1, 1), np.int32), drawn_segments()[1][:1]),
}


@jax.jit  # once for all masks of a shape
def of_all_forms(query, memory, weight, mask):
    def in_blocks(query, memory):
        return attention(query, memory, mask)[0]

    def plain(query, memory):
        return dot_product_attention(query, memory, mask.dense())[0]

    # A training step may recompute a layer, too.
    forms = plain, jax.checkpoint(in_blocks)
    with_weights = (
        attention(query, memory, mask, return_weights=True),
        dot_product_attention(query, memory, mask.dense(), return_weights=True),
    )
    both = [value_and_gradients(form, query, memory, weight) for form in forms]
    return both, with_weights, mask.dense()


def test_scorings_in_blocks(blocks_of_three):
    """What is added by distance, and its gradients."""
    query, memory, weight = drawn_tensors()
    rng = np.random.default_rng(4)
    tables = (rng.normal(size=(T + S - 1, size)).astype(F32) for size in (H, K, U))
    memory = memory._replace(scoring=Scoring(*tables, np.float32(0.5)))
    (expected, found), (weighted, _), _ = of_all_forms(query, memory, weight, MASKS["segments"])
    assert len(expected) == 1 + 3 + 4
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=5e-6)
    bias, keys, values, cap = memory.scoring
    places = np.arange(S)[None] - np.arange(T)[:, None] + T - 1
    scores = np.einsum("bhtk,bhsk->bhts", query, memory.key_BHSK)
    scores += np.einsum("bhtk,tsk->bhts", query, keys[places])
    scores = cap * np.tanh(scores / K**0.5 / cap) + bias[places].transpose(2, 0, 1)
    may_attend = np.broadcast_to(MASKS["segments"].dense()[:, None], scores.shape)
    weights = np.where(may_attend, np.exp(scores), 0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-9)
    np.testing.assert_allclose(weighted[1], weights, atol=1e-5)
    y = weights @ memory.value_BHSU + np.einsum("bhts,tsu->bhtu", weights, values[places])
    sees = may_attend.any(-1)
    np.testing.assert_allclose(weighted[0][sees], y[sees], atol=1e-5)


@pytest.mark.parametrize("name", [name for name in MASKS if name != "segments"])
def test_blocks_equal_the_plain_form(name, blocks_of_three):
    """The weights are those that the output is the sum of, and 0 where the mask is False."""
    query, memory, weight = drawn_tensors()
    (expected, found), with_weights, mask_BTS = jax.tree.map(
        np.asarray, of_all_forms(query, memory, weight, MASKS[name])
    )
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, atol=2e-6)
    may_attend = np.broadcast_to(mask_BTS[:, None], (B, H, T, S))
    sees = may_attend.any(axis=-1)
    for y_BHTU, weights_BHTS in with_weights:
        np.testing.assert_allclose(y_BHTU, expected[0], atol=1e-6)
        np.testing.assert_array_equal(weights_BHTS > 0, may_attend)
        np.testing.assert_allclose(weights_BHTS.sum(-1), sees, atol=1e-6)
        mean_BHTU = weights_BHTS @ memory.value_BHSU
        np.testing.assert_allclose(y_BHTU[sees], mean_BHTU[sees], atol=1e-6)


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


def test_memory_grows_linearly_with_length():
    assert temporary_bytes(2048) < 2.1 * temporary_bytes(1024)


@pytest.mark.slow
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


# ---- Multi-head attention


def test_products_of_keys_and_values_are_not_merged_on_a_gpu():
    def key_values(x_BSD):
        return MultiHeadAttention(MODEL, nnx.Rngs(0)).key_values(x_BSD)

    traced = jax.jit(key_values).trace(jnp.ones((2, 3, MODEL.d_model)))
    for platform, barriers in (("cuda", 2), ("cpu", 0)):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        assert text.count("optimization_barrier") == barriers


def test_widened_places_hold_the_same_numbers():
    def random(*shape):
        return np.random.default_rng(math.prod(shape)).normal(size=shape).astype(jnp.bfloat16)

    B, H, M, K, U, L = 2, 3, 4, 8, 5, 6
    query, mask = random(B, H, M, K), np.ones((B, M, L * M), bool)

    @jax.jit
    def both(key_values, new):
        wide = widened({"key_values": [key_values]})["key_values"][0]
        written = [write_key_values(x, new, jnp.array(2)) for x in (key_values, wide)]
        return written, [attend_to_cache(query, [(x, mask, Scoring())]) for x in written]

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


# ---- Masks ----


def drawn(*rows):
    """A mask from its picture: x where a query (row) may attend to a key (column)."""
    return np.array([[mark == "x" for mark in row] for row in rows])


def test_masks():
    one, packed = np.ones((1, 3), np.int32), np.array([[1, 1, 1, 2, 2, 0, 0]])
    cases = [
        (Mask(one, one, np.arange(3)), [("x..", "xx.", "xxx")]),
        # A decoding step: one query, whose position is its step.
        (Mask(one[:, :1], one, np.array([1])), [("xx.",)]),
        # Padding, wherever it stands.
        (
            Mask(np.array([[1, 1], [1, 0], [0, 0]]), np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]])),
            [("xx.", "xx."), (".xx", "..."), ("...", "...")],
        ),
        # Packed sentences; nothing of the last query's is among the keys.
        (
            Mask(np.array([[1, 2, 2, 0, 3, 4]]), np.array([[1, 1, 2, 0, 0, 3, 3]])),
            [("xx.....", "..x....", "..x....", ".......", ".....xx", ".......")],
        ),
        (
            Mask(packed, packed, np.arange(7)),
            [
                ("x......", "xx.....", "xxx....", "...x...", "...xx..", ".......", "......."),
            ],
        ),
    ]
    masks = jax.jit(lambda masks: [mask.dense() for mask in masks])([mask for mask, _ in cases])
    for found, (_, pictures) in zip(masks, cases, strict=True):
        assert found.dtype == bool
        np.testing.assert_array_equal(found, [drawn(*picture) for picture in pictures])


if __name__ == "__main__":
    compare_one_and_two_devices()
