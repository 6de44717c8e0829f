"""Attention of trained models as arrays, and its pictures."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest
from small_bert import CONFIG as BERT
from small_bert import PIECES, WORDS
from small_configs import SMALL, model_config
from small_models import trained_model

from configs import convs2s_iwslt, rnn_bahdanau, rnn_sutskever, t_dmca, universal_base
from transformer.data.vocabulary import BOS, EOS
from transformer.data.wordpiece import WordPiece
from transformer.inference.attention_maps import (
    Token,
    attention_of,
    by_words,
    has_attention,
    merge_words,
)
from transformer.models.attention import Mask
from transformer.models.convolutional.convolutional_blocks import ConvolutionalConfig
from transformer.models.decoder_only.decoder_only import DecoderOnlyConfig
from transformer.models.family import build_model
from transformer.models.rnn.rnn import RNNConfig
from transformer.models.universal.universal_steps import UniversalConfig
from transformer.reports.attention_page import attention_page
from transformer.runs.restore import Chosen, TrainedModel
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.tasks.masked_lm import MaskedLM, sizes_of

SOURCE, TARGET = "one two three", "three  one"
RNN = model_config(RNNConfig, rnn_bahdanau, embedding_size=6, hidden_size=7)
WITHOUT = model_config(RNNConfig, rnn_sutskever, embedding_size=6, hidden_size=6, num_layers=1)
UNIVERSAL = model_config(UniversalConfig, universal_base, halting="paper", **SMALL)
CONVOLUTIONAL = model_config(
    ConvolutionalConfig,
    convs2s_iwslt,
    **{"embedding_size": 6, "output_size": 6, "encoder_blocks": "8x3x1"},
    **{"decoder_blocks": "8x3x3", "max_positions": 29},
)


def test_it_is_that_of_a_forward_pass(random_params):
    """And by hand for the first encoder layer."""
    model = trained_model(random_params, num_decoder_layers=2)
    found, short = attention_of(model, SOURCE, TARGET), attention_of(model, "two one", "")
    source, target = model.task.tokenizers
    src_BS = np.array([[*source.encode(SOURCE), EOS]])
    tgt_BT = np.array([[BOS, *target.encode(TARGET)]])
    bound = model.task.model.bind(model.params)

    @jax.jit
    def run():
        layer = bound.encoder_layers[0].self_attention
        x_BSD = bound._embed_source(src_BS, np.arange(src_BS.shape[1])[None], None)
        y_BSD = layer(x_BSD, layer.key_values(x_BSD), Mask(src_BS > 0, src_BS > 0))[0]
        return bound(src_BS, tgt_BT, return_weights=True)[1], x_BSD, y_BSD

    weights, x_BSD, y_BSD = jax.device_get(run())
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
    assert short.target == [Token("EOS", -1, "EOS")]
    words = [token.word for token in found.source[:-1]]
    assert sorted(set(words)) == [0, 1, 2]
    assert by_words(found.source)[0] == ["one", "two", "three", "EOS"]
    # The weights reproduce what the layer makes of its input.
    kernels = jax.tree.map(np.asarray, model.params["encoder_layers"][0]["self_attention"])
    value_SHU = (x_BSD[0] @ kernels["value"]["kernel"]).reshape(src_BS.shape[1], 2, 7)
    weights_HSS = found.maps["encoder"][0]
    joined_SX = np.einsum("hst,thu->shu", weights_HSS, value_SHU).reshape(-1, 14)
    np.testing.assert_allclose(joined_SX @ kernels["output"]["kernel"], y_BSD[0], atol=1e-5)


@pytest.mark.parametrize(("base", "layers", "target"), [(RNN, 1, None), (CONVOLUTIONAL, 3, TARGET)])
def test_other_families(random_params, base, layers, target):
    """None: for the translation by the model itself."""
    model = trained_model(random_params, base=base)
    found = attention_of(model, SOURCE, target)
    assert list(found.maps) == ["cross"]
    assert found.maps["cross"].shape == (layers, 1, len(found.target), len(found.source))
    np.testing.assert_allclose(found.maps["cross"].sum(axis=-1), 1, rtol=1e-5)
    expected = target or model.task.translate(model.params, model.extra, [SOURCE])[0]
    assert [x for x in by_words(found.target[:-1])[0] if x] == expected.split()


def test_a_universal_transformer_has_steps(random_params):
    steps = {"encoder_steps": 3, "decoder_steps": 2}
    model = trained_model(random_params, base=UNIVERSAL, **steps)
    found = attention_of(model, SOURCE, TARGET)
    assert found.layer == "step"
    assert found.maps["encoder"].shape[0] == 3
    tokenizers = model.task.tokenizers
    src, tgt = (x.encode(text) for x, text in zip(tokenizers, (SOURCE, TARGET), strict=True))
    bound = model.task.model.bind(model.params)
    arrays = np.array([[*src, EOS]]), np.array([[BOS, *tgt]])
    expected = jax.jit(lambda: bound.num_steps(*arrays))()
    for side, steps in zip(("source", "target"), expected, strict=True):
        assert len(found.steps[side]) == len(getattr(found, side))
        np.testing.assert_array_equal(found.steps[side], steps[0])


def test_positions_of_several_words_are_named_by_them(random_params):
    """Without fillers and EOS. The tokens are letters here, and some spaces."""
    found = attention_of(trained_model(random_params, words_per_position=6), "one _ two", TARGET)
    assert [x.text for x in found.source] == ["· o n e ·", "t w o"]
    assert found.maps["encoder"].shape[2:] == (2, 2)
    assert found.maps["cross"].shape[2:] == (len(found.target), 2)


def test_bert_has_that_of_its_two_sentences(random_params):
    tokenizer = WordPiece([*PIECES, *WORDS], lowercase=True)
    model = build_model(BERT.model, sizes_of(BERT, tokenizer))
    params = random_params(model)
    task = MaskedLM(BERT, tokenizer, model, data_mesh())
    trained = TrainedModel(Path("run"), BERT, task, Chosen("last", [3], 3, False), params, {})
    found = attention_of(trained, "Fourteen one", "two")
    assert [x.text for x in found.source] == [
        *("[CLS]", "four", "##teen", "one", "[SEP]", "two", "[SEP]")
    ]
    assert by_words(found.source)[0] == ["[CLS]", "fourteen", "one", "[SEP]", "two", "[SEP]"]
    ids = [tokenizer.ids[x.text] for x in found.source]
    types = [0, 0, 0, 0, 0, 1, 1]
    bound = model.bind(params)
    arrays = np.array([ids]), np.array([types])
    _, weights = jax.jit(lambda: bound.encode(*arrays, return_weights=True))()
    assert list(found.maps) == ["encoder"]
    np.testing.assert_allclose(found.maps["encoder"][0], weights[0][0], atol=1e-6)
    with pytest.raises(UserError, match="15 tokens, and the model takes 13"):
        attention_of(trained, "one " * 13)


def test_a_decoder_alone_has_one_sequence(random_params):
    """Its weights, multiplied with the values, are what each kind of attention makes of them."""
    changes = {"layers": "LMF", "block_length": 4, "num_heads": 2, "d_model": 14, "d_ff": 11}
    base = model_config(DecoderOnlyConfig, t_dmca, **changes, local_attention="tensor2tensor")
    model = trained_model(random_params, base=base)
    found = attention_of(model, "one two three one two", TARGET)
    assert list(found.maps) == ["decoder"]
    size = len(found.inputs)
    words = by_words(found.inputs)[0]
    assert words == ["one", "two", "three", "one", "two", "BOS", "three", "one"]
    weights_LHXX = found.maps["decoder"]
    assert weights_LHXX.shape == (3, 2, size, size)
    np.testing.assert_allclose(weights_LHXX.sum(axis=-1), 1, rtol=1e-5)
    assert (np.triu(weights_LHXX, 1) == 0).all()
    local, compressed, full = weights_LHXX
    block = np.arange(size) // 4
    near = (block[:, None] - block[None]) <= 1  # this block, and the one before
    assert ((local > 0) == (np.tril(np.ones_like(near)) & near)).all()
    assert (full > 0).sum() == 2 * size * (size + 1) // 2
    x = np.arange(size)
    before = x[:, None] // 3 * 3 > x[None]  # the blocks of three that have ended
    first = np.eye(1, size, dtype=bool)
    assert ((compressed > 0) == (before | first)).all()
    np.testing.assert_allclose(compressed[..., 1], compressed[..., 2], rtol=1e-6)
    assert not has_attention(model)  # from a target to a source
    assert "Positions" in attention_page(model, found, SOURCE, TARGET)


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


def test_what_has_none(random_params):
    model = trained_model(random_params, base=WITHOUT)
    with pytest.raises(UserError, match="a model without attention"):
        attention_of(model, SOURCE, TARGET)
    with pytest.raises(UserError, match=r"a text has \d+ tokens, and attention is shown for 2048"):
        attention_of(trained_model(random_params), SOURCE, "one " * 3000)
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
