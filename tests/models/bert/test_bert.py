"""BERT beside a transcription of its paper, and the published numbers of parameters."""

import dataclasses
import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_configs import sizes_of

from configs import bert_base
from transformer.data.sequences import Labelled, Masked
from transformer.models.bert.bert import BertConfig
from transformer.models.family import Sizes, build_model
from transformer.models.functional import num_params
from transformer.models.layers import ACTIVATIONS
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh, state_sharding

VOCAB, CLASSES = 23, 3
CONFIG = dataclasses.replace(
    BertConfig(**bert_base.get_model().to_dict()),
    num_layers=1,
    d_model=14,
    d_ff=11,
    num_heads=2,
    max_positions=13,
    dropout=0.0,
    attention_dropout=0.0,
)
VARIANTS = {
    "published": {"num_layers": 2},
    "exact gelu, classes": {"activation": "gelu_exact", "head": "classification"},
    "pre-LN, no next sentence": {"norm": "pre", "activation": "gelu_exact", "head": "masked_lm"},
}


def bert(classes=CLASSES, **changes):
    config = dataclasses.replace(CONFIG, **changes)
    targets = classes if config.head == "classification" else VOCAB
    return build_model(config, Sizes(VOCAB, targets, False, 13, 13))


@pytest.fixture(params=VARIANTS)
def variant(request, random_params):
    changes = VARIANTS[request.param]
    model = bert(**changes)
    params = random_params(model)
    state_sharding(data_mesh(jax.devices()[:1]), params, model.sharding)  # each has a place
    return model, params, dataclasses.replace(CONFIG, **changes)


# --- Published sizes ----------------------------------------------------------------------


def count_of(config, sizes):
    """The number of parameters, by models of one and of two of the layers, which are alike."""
    models = (build_model(dataclasses.replace(config, num_layers=n), sizes) for n in (1, 2))
    one, two = (num_params(model.abstract_params()) for model in models)
    return one + (config.num_layers - 1) * (two - one)


@pytest.mark.parametrize(
    ("size", "count"),
    [
        ("tiny", 4_385_920),
        ("mini", 11_170_560),
        ("small", 28_763_648),
        ("medium", 41_373_184),
        ("base", 109_482_240),
        ("large", 335_141_888),
    ],
)
def test_parameters_are_as_many_as_published(size, count):
    """The encoder with its pooler, and a vocabulary of 30,522."""
    model = importlib.import_module(f"configs.bert_{size}").get_config().model.to_dict()
    config = BertConfig(**model | {"head": "none"})
    assert count_of(config, _sizes(30_522)) == count


@pytest.mark.parametrize(
    ("head", "count"),
    [("masked_lm", 109_514_298), ("pre_training", 110_106_428), ("classification", 109_484_547)],
)
def test_parameters_of_heads(head, count):
    """Tied to the embedding; one without a pooler; two with; and 3 classes."""
    config = BertConfig(**bert_base.get_model().to_dict() | {"head": head})
    sizes = _sizes(30_522)._replace(target_vocab=3)
    assert count_of(config, sizes) == count


def _sizes(vocab):
    return Sizes(vocab, vocab, True, 128, 128)


@pytest.mark.slow
def test_how_it_begins():
    """Matrices and tables: normal, cut at two deviations of 0.02. Loss: that of a guess."""
    config = dataclasses.replace(CONFIG, d_model=64, d_ff=31, max_positions=97)
    model = build_model(config, sizes_of(997)._replace(max_source_length=13))
    params = model.init(jax.random.key(3))
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.ndim > 1:
            assert float(jnp.abs(leaf).max()) <= 0.04 + 1e-6, path
            # A normal distribution cut at two deviations has 0.88 of its deviation.
            if leaf.size > 1000:
                assert float(leaf.std()) == pytest.approx(0.0176, rel=0.1), path
        else:
            assert set(np.unique(leaf)) == {1.0 if path[-1].key == "scale" else 0.0}
    loss = model.bind(params).loss(masked_batch(), None, 0.0)
    assert float(loss.nll / loss.tokens) == pytest.approx(math.log(997), rel=0.02)


# --- The paper ----------------------------------------------------------------------------


def softmax(x):
    return np.exp(x - x.max()) / np.exp(x - x.max()).sum()


def layer_norm(p, x):
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-12)
    return (x - x.mean(axis=-1, keepdims=True)) / deviation * p["scale"] + p["bias"]


def dense(p, x):
    return x @ p["kernel"] + p["bias"]


def gelu(config, x):
    if config.activation == "gelu_exact":
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def transcription(params, config, tokens, types):
    """The last hidden states of one sequence, in float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = p["embedding"]["table_VD"][tokens] + p["positions"][: len(tokens)] + p["token_types"][types]
    x = layer_norm(p["embedding_norm"], x)
    size = config.d_model // config.num_heads
    for i in range(config.num_layers):
        layer = p["encoder_layers"][i]

        def attend(x, p=layer["self_attention"]):
            q, k, v = (dense(p[name], x) for name in ("query", "key", "value"))
            mixed = np.zeros_like(v)
            for head in range(config.num_heads):
                part = slice(head * size, (head + 1) * size)
                for t in range(len(x)):
                    weights = softmax(k[:, part] @ q[t, part] / np.sqrt(size))
                    mixed[t, part] = weights @ v[:, part]
            return dense(p["output"], mixed)

        def feed(x, p=layer["feed_forward"]):
            return dense(p["output"], gelu(config, dense(p["hidden"], x)))

        for name, sublayer in (("self_attention", attend), ("feed_forward", feed)):
            norm = layer[f"{name}_norm"]["norm"]
            if config.norm == "pre":
                x = x + sublayer(layer_norm(norm, x))
            else:
                x = layer_norm(norm, x + sublayer(x))
    return layer_norm(p["encoder_norm"], x) if config.norm == "pre" else x


def heads(params, config, x):
    """What the heads make of the hidden states of one sequence, by name."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    found = {}
    if "pooler" in p:
        pooled = np.tanh(dense(p["pooler"], x[0]))
    if "masked_lm" in p:
        hidden = layer_norm(
            p["masked_lm"]["norm"], gelu(config, dense(p["masked_lm"]["hidden"], x))
        )
        found["masked_lm"] = hidden @ p["embedding"]["table_VD"].T + p["masked_lm"]["bias_V"]
    if "next_sentence" in p:
        found["next_sentence"] = dense(p["next_sentence"], pooled)
    if "classifier" in p:
        found["classes"] = dense(p["classifier"], pooled)
    return found


def packed_rows():
    """Two rows of several sequences with padding at the end; their sequences (row, segment)."""
    rng = np.random.default_rng(5)
    segments = np.array([[1, 1, 1, 2, 2, 2, 2, 0], [1, 1, 2, 2, 2, 3, 3, 3]])
    types = np.array([[0, 0, 1, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 0, 1, 1]])
    tokens = rng.integers(1, VOCAB, segments.shape) * (segments > 0)
    return tokens, types, segments, [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)]


def masked_batch():
    tokens, types, segments, _ = packed_rows()
    return Masked(
        *(tokens, types, segments),
        masked_BP=np.array([[1, 4, 6], [3, 0, 0]]),
        labels_BP=np.array([[7, 3, 22], [5, 0, 0]]),
        firsts_BC=np.array([[0, 3, 0], [0, 2, 5]]),
        is_random_BC=np.array([[0, 1, -1], [1, 1, 0]]),
        weight_B=np.array([4 / 5, 4 / 5], np.float32),
    )


def labelled_batch(labels):
    tokens, types, segments, _ = packed_rows()
    return Labelled(
        *(tokens, types, segments),
        firsts_BC=np.array([[0, 3, 0], [0, 2, 5]]),
        labels_BC=np.asarray(labels, np.float32),
        is_real_BC=np.array([[1, 1, 0], [1, 1, 1]]),
    )


def test_it_is_the_paper_in_packed_rows(variant):
    """Every sequence of a packed row has the hidden states of one that is alone; and its heads."""
    model, params, config = variant
    tokens, types, segments, sequences = packed_rows()
    batch = masked_batch()

    @jax.jit
    def run(params):
        bound = model.bind(params)
        x_BSD, weights = bound.encode(tokens, types, segments, return_weights=True)
        if config.head == "classification":
            return x_BSD, weights, bound.classify(labelled_batch(np.zeros((2, 3))))
        return x_BSD, weights, (bound.masked_lm_logits(x_BSD), bound.predict(batch))

    hidden, weights, found = jax.tree.map(np.asarray, run(params))
    assert [x.shape for x in weights] == [(2, 2, 8, 8)] * config.num_layers
    for row, segment in sequences:
        own = segments[row] == segment
        x = transcription(params, config, tokens[row][own], types[row][own])
        np.testing.assert_allclose(hidden[row][own], x, atol=2e-5)
        for layer in weights:
            np.testing.assert_allclose(layer[row][:, own][:, :, own].sum(axis=-1), 1, rtol=1e-5)
            assert not layer[row][:, own][:, :, ~own].any()
        expected = heads(params, config, x)
        if config.head == "classification":
            np.testing.assert_allclose(found[row, segment - 1], expected["classes"], atol=5e-5)
            continue
        np.testing.assert_allclose(found[0][row][own], expected["masked_lm"], atol=5e-5)
        if config.head == "pre_training":
            logits = found[1][1][row, segment - 1]
            np.testing.assert_allclose(logits, expected["next_sentence"], atol=5e-5)
    if config.head != "classification":
        for row in (0, 1):
            at = found[0][row][batch.masked_BP[row]]
            np.testing.assert_allclose(found[1][0][row], at, atol=5e-5)


def log_softmax(x):
    return x - x.max() - np.log(np.exp(x - x.max()).sum())


def test_the_loss_is_the_sum_of_two_means(random_params):
    model = bert()
    params, batch = random_params(model), masked_batch()
    tokens, types, segments, sequences = packed_rows()
    of_tokens, of_pairs = [], []
    for row, segment in sequences:
        own = segments[row] == segment
        x = transcription(params, CONFIG, tokens[row][own], types[row][own])
        outputs = heads(params, CONFIG, x)
        label = int(batch.is_random_BC[row, segment - 1])
        of_pairs.append(-log_softmax(outputs["next_sentence"])[label])
        first = np.flatnonzero(own)[0]
        for place, token in zip(batch.masked_BP[row], batch.labels_BP[row]):
            if token and own[place]:
                of_tokens.append(-log_softmax(outputs["masked_lm"][place - first])[token])
    assert (len(of_tokens), len(of_pairs)) == (4, 5)
    loss = jax.jit(lambda params: model.bind(params).loss(batch, None, 0.0))(params)
    assert int(loss.tokens) == 4
    np.testing.assert_allclose(loss.nll, np.sum(of_tokens), rtol=1e-5)
    np.testing.assert_allclose(
        loss.loss / loss.tokens, np.mean(of_tokens) + np.mean(of_pairs), rtol=1e-5
    )
    np.testing.assert_allclose(loss.terms["next_sentence"] / 4, np.mean(of_pairs), rtol=1e-5)


@pytest.mark.parametrize("classes", [1, CLASSES])
def test_the_loss_of_classes_and_of_a_regression(classes, random_params):
    model = bert(classes, head="classification")
    params = random_params(model)
    labels = np.array([[2, 0, 0], [1, 1, 2]])
    batch = labelled_batch(labels)

    @jax.jit
    def run(params):
        bound = model.bind(params)
        return bound.loss(batch, None, 0.0), bound.classify(batch)

    loss, logits = jax.tree.map(np.asarray, run(params))
    expected = 0.0
    for row, column in ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2)):
        x = np.asarray(logits[row, column], np.float64)
        label = labels[row, column]
        expected += (x[0] - label) ** 2 if classes == 1 else -log_softmax(x)[label]
    np.testing.assert_allclose(loss.loss, expected, rtol=1e-5)
    assert int(loss.tokens) == 5


def test_the_forms_of_gelu_differ_by_less_than_half_a_thousandth():
    x = np.linspace(-5, 5, 1001, dtype=np.float32)
    one, other = jax.jit(lambda x: [ACTIVATIONS[name](x) for name in ("gelu", "gelu_exact")])(x)
    difference = np.abs(np.asarray(one) - np.asarray(other)).max()
    assert 4e-4 < float(difference) < 5e-4


# --- The config ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head": "mlm"}, r"model\.head is 'mlm'; it must be one of: none, masked_lm, pre_tr"),
        ({"num_layers": 0}, r"model\.num_layers is 0; it must be at least 1"),
        ({"max_positions": 12}, r"data\.max_length is 13, but model\.max_positions is 12; lower"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        bert(**changes)
