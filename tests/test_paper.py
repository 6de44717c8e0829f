"""The forward pass against a second one, written from the paper in NumPy.

Sections 3.1 to 3.5 and Figure 1, one sentence at a time, with loops over heads and positions
and without masks, batches or padding: a position that must not be seen is not in the loop.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_configs import sizes_of

from configs import base
from transformer.models.family import build_model
from transformer.models.transformer import TransformerConfig

H, D_MODEL, D_K, D_V, D_FF = 3, 11, 5, 2, 13
SOURCE_VOCABULARY, TARGET_VOCABULARY = 19, 23

ACTIVATIONS = {
    "relu": lambda x: np.maximum(0, x),
    "gelu": lambda x: x / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
    "elu": lambda x: np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1),
    "swish": lambda x: x / (1 + np.exp(-x)),
}


class Paper:
    """Figure 1. Vectors are rows; `params` is the model's dict of parameters."""

    def __init__(self, params, *, norm, normalization, activation, scale_embeddings):
        self.params, self.norm, self.activation = params, norm, ACTIVATIONS[activation]
        self.normalize = getattr(self, normalization)
        self.scale = math.sqrt(D_MODEL) if scale_embeddings else 1

    def logits(self, source, target_in):
        """The vectors before the softmax, one for each token of `target_in`."""
        p = self.params
        source_table = p.get("source_embedding", p["target_embedding"])["table_VD"]
        target_table = p["target_embedding"]["table_VD"]
        output_table = p.get("output_embedding", p["target_embedding"])["table_VD"]

        x = self.embed(source, source_table, p.get("source_positions"))
        for i in range(len(p["encoder_layers"])):
            layer = p["encoder_layers"][i]
            norm, weights = layer["self_attention_norm"], layer["self_attention"]
            x = self.sublayer(x, norm, self.attention, weights)
            norm, weights = layer["feed_forward_norm"], layer["feed_forward"]
            x = self.sublayer(x, norm, self.feed_forward, weights)
        memory = self.normalize(x, p["encoder_norm"]) if self.norm == "pre" else x

        y = self.embed(target_in, target_table, p.get("target_positions"))
        for i in range(len(p["decoder_layers"])):
            layer = p["decoder_layers"][i]
            norm, weights = layer["self_attention_norm"], layer["self_attention"]
            y = self.sublayer(y, norm, self.attention, weights, causal=True)
            norm, weights = layer["cross_attention_norm"], layer["cross_attention"]
            y = self.sublayer(y, norm, self.attention, weights, memory=memory)
            norm, weights = layer["feed_forward_norm"], layer["feed_forward"]
            y = self.sublayer(y, norm, self.feed_forward, weights)
        if self.norm == "pre":
            y = self.normalize(y, p["decoder_norm"])
        return y @ output_table.T + p.get("output_bias_V", 0)

    def embed(self, tokens, table, learned_positions):
        """Sections 3.4 and 3.5."""
        rows = []
        for pos, token in enumerate(tokens):
            row = table[token] * self.scale
            if learned_positions is not None:
                row = row + learned_positions[pos]
            else:
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
        return self.normalize(x + function(x, *arguments, **keywords), norm["norm"])

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
        memory = x if memory is None else memory
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
                of_k, of_v = slice(h * D_K, (h + 1) * D_K), slice(h * D_V, (h + 1) * D_V)
                query = vector @ w_q[:, of_k] + b_q[of_k]
                scores, values = [], []
                for other in seen:
                    key = other @ w_k[:, of_k] + b_k[of_k]
                    scores.append(query @ key / math.sqrt(D_K))
                    values.append(other @ w_v[:, of_v] + b_v[of_v])
                weights = [math.exp(score) for score in scores]
                heads.append(sum(w * v for w, v in zip(weights, values)) / sum(weights))
            output.append(np.concatenate(heads) @ w_o + b_o)
        return np.array(output)

    def feed_forward(self, x, params):
        """Section 3.3, Equation 2."""
        hidden, output = params["hidden"], params["output"]
        inner = self.activation(x @ hidden["kernel"] + hidden["bias"])
        return inner @ output["kernel"] + output["bias"]


def draw(rng, vocabulary, row):
    """Random tokens where the picture of a row has an x, padding where it has a dot."""
    return [int(rng.integers(1, vocabulary)) if mark == "x" else 0 for mark in row]


@pytest.mark.parametrize(
    "choices",
    [
        dict(),
        dict(norm="pre", activation="swish", attention_bias=True),
        dict(positions="learned", share_embeddings="decoder", activation="gelu", output_bias=True),
        dict(norm="pre", positions="learned", share_embeddings="all", activation="elu"),
        dict(norm="pre", normalization="rms_norm", attention_bias=True, scale_embeddings=False),
    ],
    ids=str,
)
def test_forward_pass(choices, random_params):
    fields = base.get_config().model.to_dict() | dict(
        num_encoder_layers=2,
        num_decoder_layers=3,
        d_model=D_MODEL,
        d_ff=D_FF,
        num_heads=H,
        d_k=D_K,
        d_v=D_V,
        attention_dropout=0.1,
        activation_dropout=0.1,
        max_positions=17,
        share_embeddings="none",
        dtype="float64",
    )
    fields |= choices
    joint = fields["share_embeddings"] == "all"
    source_vocabulary = TARGET_VOCABULARY if joint else SOURCE_VOCABULARY
    rng = np.random.default_rng(0)
    # Padding on the right, on the left, in the middle, everywhere, nowhere.
    sources = [
        draw(rng, source_vocabulary, row)
        for row in ("xxxxx..", "...xxxx", "xx..xxx", ".x.x.x.", "xxxxxxx")
    ]
    targets = [
        draw(rng, TARGET_VOCABULARY, row) for row in ("xxx..", "xxxxx", "x....", ".xxx.", "x.xx.")
    ]
    with jax.enable_x64(True):
        config = TransformerConfig(**fields)
        model = build_model(config, sizes_of(source_vocabulary, TARGET_VOCABULARY))
        params = jax.tree.map(np.float64, random_params(model))
        found = jax.jit(lambda p, src, tgt: model.bind(p)(src, tgt))(
            params, jnp.array(sources), jnp.array(targets)
        )
        assert found.dtype == jnp.float64
        found = np.asarray(found)

    named = ("norm", "normalization", "activation", "scale_embeddings")
    paper = Paper(params, **{name: fields[name] for name in named})
    for logits_TV, source, target_in in zip(found, sources, targets):
        expected = paper.logits([s for s in source if s], [t for t in target_in if t])
        np.testing.assert_allclose(
            logits_TV[np.array(target_in) > 0], expected, rtol=1e-9, atol=1e-11
        )
