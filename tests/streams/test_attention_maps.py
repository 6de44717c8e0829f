"""Attention of trained models as arrays, and its pictures."""

import dataclasses
import sys

import jax
import numpy as np
import pytest
from scripts import ROOT

sys.path.insert(0, str(ROOT / "tests" / "exports"))
from small_models import trained_model

from configs import convs2s_iwslt, rnn_bahdanau, rnn_sutskever
from transformer.data.vocabulary import BOS, EOS
from transformer.models.convolutional_blocks import ConvolutionalConfig
from transformer.models.rnn import RNNConfig
from transformer.streams.attention_maps import (
    Token,
    attention_of,
    by_words,
    merge_words,
    rollout,
)
from transformer.system.errors import UserError

SOURCE, TARGET = "one two three", "three  one"
RNN = RNNConfig(**rnn_bahdanau.get_model().to_dict() | {"embedding_size": 6, "hidden_size": 7})
WITHOUT = RNNConfig(
    **rnn_sutskever.get_config().model.to_dict()
    | {"embedding_size": 6, "hidden_size": 6, "num_layers": 1}
)
CONVOLUTIONAL = ConvolutionalConfig(
    **convs2s_iwslt.get_model().to_dict()
    | {"embedding_size": 6, "output_size": 6, "encoder_blocks": "8x3x1"}
    | {"decoder_blocks": "8x3x3", "max_positions": 29}
)


def test_it_is_that_of_a_forward_pass(random_params):
    model = trained_model(random_params, num_decoder_layers=2)
    found = attention_of(model, SOURCE, TARGET)
    source, target = model.task.tokenizers
    src, tgt = source.encode(SOURCE), target.encode(TARGET)
    bound = model.task.model.bind(model.params)
    _, weights = bound(np.array([[*src, EOS]]), np.array([[BOS, *tgt]]), return_weights=True)
    for name in ("encoder", "decoder", "cross"):
        queries, keys = found.tokens(name)
        expected = np.stack([x[0] for x in getattr(weights, name)])
        assert found.maps[name].shape[2:] == (len(queries), len(keys))
        np.testing.assert_allclose(found.maps[name], expected, atol=1e-6)
        np.testing.assert_allclose(found.maps[name].sum(axis=-1), 1, rtol=1e-5)
    assert (np.triu(found.maps["decoder"], 1) == 0).all()
    assert found.maps["cross"].shape[0] == 2
    assert [token.text for token in found.inputs[:1]] == ["BOS"]
    assert found.inputs[1:] == found.target[:-1]
    assert found.source[-1] == found.target[-1] == Token("EOS", -1, "EOS")
    words = [token.word for token in found.source[:-1]]
    assert sorted(set(words)) == [0, 1, 2]
    assert by_words(found.source)[0] == ["one", "two", "three", "EOS"]


@pytest.mark.parametrize(("base", "layers"), [(RNN, 1), (CONVOLUTIONAL, 3)])
def test_other_families(random_params, base, layers):
    """For the translation by the model itself."""
    model = trained_model(random_params, base=base)
    found = attention_of(model, SOURCE)
    assert list(found.maps) == ["cross"]
    assert found.maps["cross"].shape == (layers, 1, len(found.target), len(found.source))
    np.testing.assert_allclose(found.maps["cross"].sum(axis=-1), 1, rtol=1e-5)
    (expected,) = model.task.translate(model.params, model.extra, [SOURCE])
    assert [x for x in by_words(found.target[:-1])[0] if x] == expected.split()


def test_words_by_hand():
    tokens = [
        *[Token(text, 0, "lazy") for text in ("l", "azy", "·")],
        Token("men", 1, "men"),
        Token("EOS", -1, "EOS"),
    ]
    texts, members = by_words(tokens)
    assert texts == ["lazy", "men", "EOS"]
    weights = np.array([[0.1, 0.2, 0.3, 0.4, 0.0]] * 2 + [[0.4, 0.3, 0.2, 0.1, 0.0]] * 3)
    merged = merge_words(weights, members, members)
    np.testing.assert_allclose(merged, [[0.7, 0.3, 0], [0.9, 0.1, 0], [0.9, 0.1, 0]])
    np.testing.assert_allclose(merge_words(weights[None], members, members)[0], merged)


def test_rollout_by_hand():
    first, second = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.0, 1.0], [1.0, 0.0]])
    flows = rollout(np.stack([np.stack([first, first]), np.stack([second, second])]))
    np.testing.assert_allclose(flows[0], [[1, 0], [0.25, 0.75]])
    np.testing.assert_allclose(flows[1], [[0.625, 0.375], [0.625, 0.375]])


def test_what_has_none(random_params):
    model = trained_model(random_params, base=WITHOUT)
    with pytest.raises(UserError, match="a model without attention"):
        attention_of(model, SOURCE, TARGET)
    with pytest.raises(UserError, match="the source sentence is empty"):
        attention_of(model, " ")
    with pytest.raises(UserError, match="an ensemble has the attention of each model"):
        attention_of(dataclasses.replace(model, others=[model]), SOURCE)


def test_the_usual_pass_does_not_compute_what_is_not_asked_for(random_params):
    model = trained_model(random_params)
    bound = model.task.model.bind(model.params)
    tokens = np.array([[5, EOS]])
    plain = jax.make_jaxpr(lambda: bound(tokens, tokens))()
    asked = jax.make_jaxpr(lambda: bound(tokens, tokens, return_weights=True))()
    assert len(asked.jaxpr.outvars) > len(plain.jaxpr.outvars) == 1
