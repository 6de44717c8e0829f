"""Attention inside of segments; a reference stands for cuDNN, which there is only on a GPU."""

import functools

import jax
import jax._src.cudnn.fused_attention_stablehlo as cudnn
import jax.numpy as jnp
import numpy as np
import pytest
from small_configs import sizes_of
from test_kernels import disagreement, model_config

from transformer.data.batches import Batch
from transformer.models import kernels
from transformer.models.attention import KeyValues, Mask, attention
from transformer.models.family import build_model
from transformer.models.numerics import DropoutRngs
from transformer.models.packed_attention import packed_attention, spans_of
from transformer.system.sharding import data_mesh


def row(*lengths: int, width: int = 12) -> list[int]:
    ids = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    return np.pad(ids, (0, width - len(ids))).tolist()


ROWS = {  # of the queries, and of the keys: lengths of segments; 12 positions
    "none": ((), ()),
    "one": ((5,), (7,)),
    "full": ((12,), (12,)),
    "of one token": ((1,) * 12, (1,) * 12),
    "some of one token": ((1, 1, 3, 1), (4, 1, 1, 5)),
    "queries are full": ((4, 8), (3, 2)),
    "keys are full": ((4, 2), (5, 7)),
}
SIDES = tuple(np.array([row(*lengths) for lengths in side]) for side in zip(*ROWS.values()))


@pytest.mark.parametrize(
    ("lengths", "spans"),
    [  # lengths and offsets of queries, then of keys; with 3 segments at most, and padding's
        (
            ((2, 1), (3, 3)),
            (([2, 1, -1, 9], [0, 2, -1, 3, -1]), ([3, 3, -1, 6], [0, 3, -1, 6, -1])),
        ),
        (((), ()), 2 * (([-1, -1, -1, 12], [-1, -1, -1, 0, -1]),)),
        # Padding without keys joins the last segment; padding without queries is not seen.
        (
            ((2, 1), (3, 9)),
            (([2, 10, -1, -1], [0, 2, -1, -1, -1]), ([3, 9, -1, -1], [0, 3, -1, -1, -1])),
        ),
        (
            ((12,), (7,)),
            (([12, -1, -1, -1], [0, -1, -1, -1, -1]), ([7, -1, -1, -1], [0, -1, -1, -1, -1])),
        ),
    ],
)
def test_where_segments_lie(lengths, spans):
    queries, keys = (np.array([row(*side)]) for side in lengths)
    *found, seen_BS = jax.jit(lambda *sides: spans_of(*sides, 3))(queries, keys)
    for ours, expected in zip(found, spans, strict=True):
        assert tuple(x[0].tolist() for x in ours) == expected
    lost = lengths == ((12,), (7,))
    assert seen_BS[0].tolist() == 7 * [True] + 5 * [not lost]
    assert jax.eval_shape(lambda x: spans_of(x, x, 3), queries)[2] is None


def reference(query, key, value, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, **options):
    """As cuDNN: what lies outside of the spans is neither read nor written; here it is NaN."""
    causal = options["mask_type"] == cudnn.MaskType.PADDING_CAUSAL
    assert options["qkv_layout"] == "BTNH"

    def places(length, lengths_BM, offsets_BN):
        """Segments of positions, -1 for none, and places inside of them."""
        place_BMT = jnp.arange(length)[None, None] - offsets_BN[:, :-1, None]
        is_in_BMT = (place_BMT >= 0) & (place_BMT < lengths_BM[..., None])
        is_in_BMT &= (lengths_BM > 0)[..., None]
        segment_BT = jnp.where(is_in_BMT.any(1), is_in_BMT.argmax(1), -1)
        return segment_BT, jnp.sum(is_in_BMT * place_BMT, axis=1)

    query_segment_BT, query_place_BT = places(query.shape[1], q_seqlen, q_offsets)
    key_segment_BS, key_place_BS = places(key.shape[1], kv_seqlen, kv_offsets)
    mask_BTS = query_segment_BT[:, :, None] == key_segment_BS[:, None]
    mask_BTS &= (key_segment_BS >= 0)[:, None]
    if causal:
        mask_BTS &= key_place_BS[:, None] <= query_place_BT[:, :, None]

    def formula(query, key, value):
        scores_BHTS = scale * jnp.einsum(
            "BTHK,BSHK->BHTS", query, key, preferred_element_type=jnp.float32
        )
        weights = jax.nn.softmax(jnp.where(mask_BTS[:, None], scores_BHTS, -1e30))
        return jnp.einsum("BHTS,BSHU->BTHU", weights * mask_BTS[:, None], value).astype(query.dtype)

    def written(x, segment):
        return jnp.where((segment < 0)[:, :, None, None], jnp.nan, x)

    @jax.custom_vjp
    def attend(*arrays):
        return written(formula(*arrays), query_segment_BT)

    def backward(arrays, direction):
        segments = query_segment_BT, key_segment_BS, key_segment_BS
        return tuple(map(written, jax.vjp(formula, *arrays)[1](direction), segments))

    attend.defvjp(lambda *arrays: (attend(*arrays), arrays), backward)
    return attend(query, key, value)


@pytest.fixture
def like_cudnn(monkeypatch):
    """The calls that would have reached it."""
    calls = []

    def called(*arrays, **options):
        calls.append(options["mask_type"].name)
        return reference(*arrays, **options)

    monkeypatch.setattr(cudnn, "dot_product_attention", called)
    return calls


@pytest.mark.parametrize("kind", ["itself", "causal", "source"])
def test_as_with_a_mask(like_cudnn, kind):
    """Results and gradients of nasty rows; padding's are numbers, and its gradients 0."""
    queries, keys = SIDES if kind == "source" else 2 * (SIDES[0],)
    positions_T = jnp.arange(queries.shape[1]) if kind == "causal" else None
    mask, real = Mask(queries, keys, positions_T), (queries > 0)[:, :, None, None]
    shape = (*queries.shape, 2, 3)
    *arrays, direction = (np.random.default_rng(i).normal(size=shape) for i in range(4))
    arrays = tuple(map(jnp.float32, arrays))

    def masked(query, key, value):
        query, key, value = (x.swapaxes(1, 2) for x in (query, key, value))
        return attention(query, KeyValues(key, value), mask)[0].swapaxes(1, 2)

    def packed(query, key, value):
        return packed_attention(query, key, value, *spans_of(queries, keys, 12), kind == "causal")

    def found(attend):
        result, pull_back = jax.vjp(attend, *arrays)
        return [result * real, *pull_back(jnp.float32(direction * real))]

    for ours, expected in zip(*jax.jit(lambda: [found(packed), found(masked)])(), strict=True):
        np.testing.assert_allclose(ours, expected, atol=2e-6)
    assert like_cudnn == ["PADDING_CAUSAL" if kind == "causal" else "PADDING"]


def test_proof(like_cudnn, monkeypatch, capsys):
    """What differs, or is not there, is not used; cuDNN with a mask takes its place."""
    config = model_config(dtype="bfloat16", kernels="cudnn_packed,cudnn_attention")
    assert disagreement("cudnn_packed", config) == ""
    whole = functools.partial(reference, mask_type=cudnn.MaskType.PADDING, qkv_layout="BTNH")

    def without_causality(*arrays, mask_type, qkv_layout, **options):
        return whole(*arrays, **options)

    monkeypatch.setattr(cudnn, "dot_product_attention", without_causality)
    assert disagreement("cudnn_packed", config).startswith("its result 0 is ")
    monkeypatch.delattr(cudnn, "dot_product_attention")
    real = kernels.disagreement

    def tried(name, config):
        return real(name, config) if name == "cudnn_packed" else ""

    monkeypatch.setattr(kernels, "disagreement", tried)
    assert kernels.proven(config, data_mesh()).kernels == "cudnn_attention"
    warning = capsys.readouterr().out.splitlines()[0]
    assert warning.startswith("warning  cudnn_packed is not used: it fails (ImportError: ")


def both_losses(model, batch, params):
    """With dropout, as in training, and without."""
    rngs = DropoutRngs(jax.random.key(2), jnp.arange(2))
    return [model.bind(params).loss(batch, x, 0.1).loss for x in (rngs, None)]


def test_training_and_validation(like_cudnn, random_params):
    """A model's loss; validation, whose rows may hold more segments, has masks."""
    segments = np.array([[1, 1, 2, 2, 2, 3, 0, 0], [1, 1, 1, 1, 2, 2, 2, 2]])
    words = np.random.default_rng(1).integers(3, 37, (2, 8))
    batch = Batch(words, segments, words, words, segments)
    losses = {}
    for names, most in (("plain", 3), ("cudnn_packed", 3), ("cudnn_packed", 0)):
        config = model_config(kernels=names, dtype="bfloat16")
        model = build_model(config, sizes_of(37)._replace(row_segments=most))
        params = random_params(model)
        run = jax.jit(functools.partial(both_losses, model, batch))
        losses[names, most] = jax.tree.map(float, run(params)) if most else run.lower(params)
        wanted = ["PADDING", "PADDING_CAUSAL", "PADDING"] if names != "plain" else []
        assert like_cudnn == (wanted if most else [])
        like_cudnn.clear()
    plain, packed, _ = losses.values()
    assert packed[0] != plain[0]
    np.testing.assert_allclose(packed[0], plain[0], rtol=1e-2)
    assert packed[1] == plain[1]
