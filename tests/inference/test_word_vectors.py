"""Embeddings of words in two dimensions."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from small_bert import trained_bert
from small_models import trained_model
from test_attention_maps import CONVOLUTIONAL, RNN, UNIVERSAL

from transformer.inference.word_vectors import frequent_words, principal_components, word_vectors
from transformer.system.errors import UserError


@pytest.mark.parametrize(
    ("base", "path"),
    [
        (None, ("target_embedding", "table_VD")),
        (UNIVERSAL, ("target_embedding", "table_VD")),
        (RNN, ("source_embedding_VE",)),
        (CONVOLUTIONAL, ("encoder", "embedding_VE")),
    ],
    ids=["transformer", "universal", "rnn", "convolutional"],
)
def test_rows_of_the_table_that_reads_the_source(random_params, base, path):
    model = trained_model(random_params, **({"base": base} if base else {}))
    found_ND = word_vectors(model, ["one", "two"])
    table = model.params
    for name in path:
        table = table[name]
    ids = model.task.tokenizers.source.encode("two")
    assert len(ids) > 1
    np.testing.assert_allclose(found_ND[1], np.asarray(table)[ids].mean(axis=0), rtol=1e-5)


def test_bert_has_one_table(random_params):
    model = trained_bert(random_params)
    found_ND = word_vectors(model, ["three"])
    row = model.params["embedding"]["table_VD"][model.task.tokenizer.ids["three"]]
    np.testing.assert_allclose(found_ND[0], row, rtol=1e-6)
    with pytest.raises(UserError, match="the word ' ' has no tokens"):
        word_vectors(model, [" "])
    with pytest.raises(UserError, match="no pairs in which words can be counted"):
        frequent_words(model)


def test_words_are_counted_in_the_validation_split(random_params):
    model = trained_model(random_params)
    pairs = SimpleNamespace(pairs=lambda: iter([("One two, two 7.", "x"), ("", "two b_ three")]))
    task = SimpleNamespace(data=None, open_source=lambda data, split: pairs)
    model = dataclasses.replace(model, task=task)
    assert frequent_words(model) == ["two", "One", "b", "three"]
    assert frequent_words(model, 1) == ["two"]


def test_principal_components_by_hand():
    """A rectangle, 6 x 2, turned: its sides are the axes; a fifth vector lies in the middle."""
    flat = np.array([[3, 1], [3, -1], [-3, 1], [-3, -1], [0, 0]])
    turned = flat @ np.array([[0.6, 0.8, 0], [-0.8, 0.6, 0]]) + [5, 6, 7]
    points, shares = principal_components(turned)
    np.testing.assert_allclose(np.abs(points), np.abs(flat), atol=1e-12)
    np.testing.assert_allclose(shares, [0.9, 0.1])
    assert (points[np.abs(points).argmax(axis=0), range(2)] > 0).all()
    with pytest.raises(UserError, match="2 words are given"):
        principal_components(turned[:2])
