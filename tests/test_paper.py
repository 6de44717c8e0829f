"""The forward pass against a second one, written from the paper in NumPy.

Sections 3.1 to 3.5 and Figure 1, one sentence at a time, with loops over heads and positions
and without masks, batches or padding: a position that must not be seen is not in the loop.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_batches import SENTENCES, packed
from small_configs import SINCE_2017, sizes_of
from stepwise import stepwise

from configs import base
from transformer.models.family import build_model
from transformer.models.transformer import TransformerConfig

H, D_MODEL, D_FF = 4, 11, 13
SOURCE_VOCABULARY, TARGET_VOCABULARY = 19, 23

ACTIVATIONS = {
    "relu": lambda x: np.maximum(0, x),
    "gelu": lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    "swish": lambda x: x / (1 + np.exp(-x)),
    "glu": lambda x: 1 / (1 + np.exp(-x)),
}
for gated, name in (("reglu", "relu"), ("geglu", "gelu"), ("swiglu", "swish")):
    ACTIVATIONS[gated] = ACTIVATIONS[name]


class Paper:
    """Figure 1. Vectors are rows; `params` is the model's dict of parameters, `fields` its config.

    And what came later: see docs/since-2017.md.
    """

    def __init__(self, params, fields):
        self.params, self.fields, self.norm = params, fields, fields["norm"]
        self.activation = ACTIVATIONS[fields["activation"]]
        self.normalize = getattr(self, fields["normalization"])
        self.D_K, self.D_V = fields["d_k"], fields["d_v"]
        self.scale = math.sqrt(D_MODEL) if fields["scale_embeddings"] else 1
        self.ends_in_norm = self.norm in ("pre", "sandwich")

    def logits(self, source, target_in):
        """The vectors before the softmax, one for each token of `target_in`."""
        p = self.params
        source_table = p.get("source_embedding", p["target_embedding"])["table_VD"]
        target_table = p["target_embedding"]["table_VD"]
        output_table = p.get("output_embedding", p["target_embedding"])["table_VD"]

        x = self.embed(source, source_table, p.get("source_positions"))
        self.stack, M, N = p["encoder_layers"], len(p["decoder_layers"]), len(p["encoder_layers"])
        self.alpha = 0.81 * (N**4 * M) ** (1 / 16)
        for i in range(N):
            layer = p["encoder_layers"][i]
            norm, weights = layer["self_attention_norm"], layer["self_attention"]
            x = self.sublayer(x, norm, self.attention, weights)
            norm, weights = layer["feed_forward_norm"], layer["feed_forward"]
            x = self.sublayer(x, norm, self.feed_forward, weights)
        memory = self.normalize(x, p["encoder_norm"]) if self.ends_in_norm else x

        y = self.embed(target_in, target_table, p.get("target_positions"))
        self.stack, self.alpha = p["decoder_layers"], (3 * M) ** (1 / 4)
        for i in range(M):
            layer = p["decoder_layers"][i]
            norm, weights = layer["self_attention_norm"], layer["self_attention"]
            y = self.sublayer(y, norm, self.attention, weights, causal=True)
            norm, weights = layer["cross_attention_norm"], layer["cross_attention"]
            y = self.sublayer(y, norm, self.attention, weights, memory=memory)
            norm, weights = layer["feed_forward_norm"], layer["feed_forward"]
            y = self.sublayer(y, norm, self.feed_forward, weights)
        if self.ends_in_norm:
            y = self.normalize(y, p["decoder_norm"])
        scale = D_MODEL**-0.5 if self.fields["scale_outputs"] else 1
        return scale * y @ output_table.T + p.get("output_bias_V", 0)

    def embed(self, tokens, table, learned_positions):
        """Sections 3.4 and 3.5."""
        rows = []
        for pos, token in enumerate(tokens):
            row = table[token] * self.scale
            if learned_positions is not None:
                row = row + learned_positions[pos]
            elif self.fields["positions"] == "sinusoidal":
                for channel in range(D_MODEL):
                    wave = math.cos if channel % 2 else math.sin
                    two_i = channel - channel % 2
                    row[channel] += wave(pos / 10000 ** (two_i / D_MODEL))
            rows.append(row)
        return np.array(rows)

    def sublayer(self, x, norm, function, *arguments, **keywords):
        """Section 3.1: LayerNorm(x + Sublayer(x)); pre-LN has the norm on the way in."""
        if self.norm == "pre":
            return x + function(self.normalize(x, norm["norm"]), *arguments, **keywords)
        if self.norm == "sandwich":
            y = function(self.normalize(x, norm["norm"]), *arguments, **keywords)
            return x + self.normalize(y, norm["norm_of_output"])
        if self.norm == "rezero":
            return x + norm["residual_scale"] * function(x, *arguments, **keywords)
        alpha = self.alpha if self.norm == "deepnorm" else 1
        return self.normalize(alpha * x + function(x, *arguments, **keywords), norm["norm"])

    def layer_norm(self, x, params):
        rows = []
        for row in x:
            mean = sum(row) / len(row)
            variance = sum((value - mean) ** 2 for value in row) / len(row)
            normal = (row - mean) / math.sqrt(variance + 1e-6)
            rows.append(normal * params["scale"] + params["bias"])
        return np.array(rows)

    def rms_norm(self, x, params):
        """Zhang and Sennrich 2019, Equation 4."""
        rows = [row / math.sqrt(row @ row / len(row) + 1e-6) for row in x]
        return np.array(rows) * params["scale"]

    def attention(self, x, params, *, memory=None, causal=False):
        """Section 3.2: concatenated heads, then W^O; over x itself unless told otherwise."""
        positions = "none" if memory is not None else self.fields["positions"]
        memory, D_K, D_V = x if memory is None else memory, self.D_K, self.D_V
        heads_of_a_key = H // self.fields["num_key_value_heads"]
        table = params.get("positions")
        projections = [params[name] for name in ("query", "key", "value", "output")]
        w_q, w_k, w_v, w_o = (projection["kernel"] for projection in projections)
        b_q, b_k, b_v, b_o = (
            projection.get("bias", np.zeros(projection["kernel"].shape[1]))
            for projection in projections
        )
        output = []
        for t, vector in enumerate(x):
            seen = memory[: t + 1] if causal else memory
            heads = []
            for h in range(H):
                g = h // heads_of_a_key
                of_q, of_k = slice(h * D_K, (h + 1) * D_K), slice(g * D_K, (g + 1) * D_K)
                of_v = slice(g * D_V, (g + 1) * D_V)
                query = self.of_head(vector @ w_q[:, of_q] + b_q[of_q], params.get("query_norm"))
                scores, values = [], []
                for s, other in enumerate(seen):
                    key = self.of_head(other @ w_k[:, of_k] + b_k[of_k], params.get("key_norm"))
                    value = other @ w_v[:, of_v] + b_v[of_v]
                    if positions.startswith("relative"):
                        k = self.fields["max_distance"]
                        clipped = min(max(s - t, -k), k) + k
                        key = key + table["key_RK"][clipped]
                        if positions == "relative":
                            value = value + table["value_RU"][clipped]
                    product = query @ key
                    if positions == "rotary":
                        product = (turned(query, t) * turned(key, s).conj()).real.sum()
                    score = product / math.sqrt(D_K)
                    if cap := self.fields["logit_soft_cap"]:
                        score = cap * math.tanh(score / cap)
                    if positions == "t5":
                        bias = self.stack[0]["self_attention"]["positions"]["bias_RH"]
                        score += bias[bucket(s - t, causal), h]
                    if positions == "alibi":
                        score -= abs(s - t) * 2 ** (-8 * (h + 1) / H)  # H is a power of two
                    scores.append(score)
                    values.append(value)
                weights = [math.exp(score) for score in scores]
                heads.append(sum(w * v for w, v in zip(weights, values)) / sum(weights))
            output.append(np.concatenate(heads) @ w_o + b_o)
        return np.array(output)

    def feed_forward(self, x, params):
        """Section 3.3, Equation 2."""
        hidden, output = params["hidden"], params["output"]
        inner = x @ hidden["kernel"] + hidden.get("bias", 0)
        if "gate" in params:
            function = ACTIVATIONS[self.fields["feed_forward"]]
            inner *= function(x @ params["gate"]["kernel"] + params["gate"].get("bias", 0))
        else:
            inner = self.activation(inner)
        return inner @ output["kernel"] + output.get("bias", 0)

    def of_head(self, x, norm):
        """A query or a key, normalised if the model does so."""
        return x if norm is None else self.rms_norm([x], norm)[0]


def turned(x, position):
    """Su et al. 2021: pairs of channels as complex numbers, times e^(i * position * theta)."""
    theta = 10000.0 ** (-2 * np.arange(len(x) // 2) / len(x))
    return (x[0::2] + 1j * x[1::2]) * np.exp(1j * position * theta)


def bucket(distance, causal, buckets=32, furthest=128):
    """As in T5's code, with its names: `_relative_position_bucket`."""
    n, result = -distance, 0
    if not causal:
        buckets //= 2
        result += buckets * (n < 0)
        n = abs(n)
    n, exact = max(n, 0), buckets // 2
    if n < exact:
        return result + n
    more = math.log(n / exact) / math.log(furthest / exact) * (buckets - exact)
    return result + min(exact + int(more), buckets - 1)


def draw(rng, vocabulary, rows):
    """Random tokens where the pictures of rows have a sentence's number, padding for a dot."""
    segments = np.array([[int(mark.replace(".", "0")) for mark in row] for row in rows])
    return rng.integers(1, vocabulary, segments.shape) * (segments > 0), segments


def fields_of(**choices):
    return (
        base.get_config().model.to_dict()
        | dict(
            num_encoder_layers=1,
            num_decoder_layers=1,
            d_model=D_MODEL,
            d_ff=D_FF,
            num_heads=H,
            num_key_value_heads=H,
            d_k=5,
            d_v=2,
            attention_dropout=0.1,
            activation_dropout=0.1,
            max_positions=17,
            share_embeddings="none",
            dtype="float64",
        )
        | choices
    )


@pytest.mark.parametrize(
    "choices",
    [
        dict(num_encoder_layers=2, num_decoder_layers=3),
        dict(norm="pre", positions="learned", share_embeddings="all", activation="swish")
        | dict(attention_bias=True),
        dict(share_embeddings="decoder", activation="gelu", output_bias=True),
        dict(norm="pre", normalization="rms_norm", activation="elu", scale_embeddings=False)
        | dict(scale_outputs=True),
    ],
    ids=str,
)
def test_forward_pass(choices, random_params):
    fields = fields_of(**choices)
    joint = fields["share_embeddings"] == "all"
    source_vocabulary = TARGET_VOCABULARY if joint else SOURCE_VOCABULARY
    rng = np.random.default_rng(0)
    # One sentence a row or several; padding everywhere, and between the words of a sentence.
    rows = ("11111..", "...1122", "1.12.33", ".1.2.2.", "1111111")
    sources, source_segments = draw(rng, source_vocabulary, rows)
    rows = ("111..", "12222", "12333", ".112.", "1.11.")
    targets, target_segments = draw(rng, TARGET_VOCABULARY, rows)
    inputs = sources, targets, source_segments, target_segments
    with jax.enable_x64(True):
        config = TransformerConfig(**fields)
        model = build_model(config, sizes_of(source_vocabulary, TARGET_VOCABULARY))
        params = jax.tree.map(np.float64, random_params(model))
        found = jax.jit(lambda params: model.bind(params)(*inputs))(params)
        assert found.dtype == jnp.float64
        found = np.asarray(found)

    paper = Paper(params, fields)
    for row, segments_T in enumerate(target_segments):
        for segment in {*segments_T} - {0}:
            source = sources[row][source_segments[row] == segment]
            expected = paper.logits(source, targets[row][segments_T == segment])
            logits_TV = found[row][segments_T == segment]
            np.testing.assert_allclose(logits_TV, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name",
    [
        *("rotary", "relative", "t5"),
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("alibi", "relative_keys", "none")),
    ],
)
def test_since_2017(name, random_params, monkeypatch):
    """Packed rows, in blocks of queries; and decoding from a cache, where tables of distances end.

    Two hypotheses of a sentence share its memory.
    """
    layers = 1 + (name == "t5")  # which share a table
    fields = fields_of(
        **SINCE_2017[name], d_k=6, num_encoder_layers=layers, num_decoder_layers=layers
    )
    monkeypatch.setattr("transformer.models.attention.MAX_QUERIES", 3)
    batch = packed(SOURCE_VOCABULARY, TARGET_VOCABULARY)
    inputs = batch.src_BS, batch.tgt_in_BT, batch.src_segments_BS, batch.tgt_segments_BT
    sources = np.array([[3, 5, 7, 9, 2, 0, 0], [4, 6, 8, 2, 9, 1, 5]])
    tokens = np.random.default_rng(1).integers(1, TARGET_VOCABULARY, (4, 6))
    with jax.enable_x64(True):
        config = TransformerConfig(**fields)
        model = build_model(config, sizes_of(SOURCE_VOCABULARY, TARGET_VOCABULARY))
        params = jax.tree.map(np.float64, random_params(model))

        @jax.jit
        def both(params):
            bound = model.bind(params)
            return bound(*inputs), stepwise(bound, sources, tokens)[0]

        logits, of_steps = jax.tree.map(np.asarray, both(params))

    paper = Paper(params, fields)
    for row, segment in SENTENCES:
        source = batch.src_BS[row][batch.src_segments_BS[row] == segment]
        is_target = batch.tgt_segments_BT[row] == segment
        expected = paper.logits(source, batch.tgt_in_BT[row][is_target])
        np.testing.assert_allclose(logits[row][is_target], expected, rtol=1e-9, atol=1e-11)
    for found, source, target in zip(of_steps, sources.repeat(2, axis=0), tokens):
        expected = paper.logits([s for s in source if s], target)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11)
