"""Words in place of [MASK]; tests/reports/test_lab.py compares them with a forward pass."""

import pytest
from small_bert import trained_bert
from small_models import trained_model

from transformer.inference.masked_words import check_masked_lm, fill
from transformer.system.errors import UserError


def test_the_best_words_come_first(random_params):
    model = trained_bert(random_params)
    check_masked_lm(model)
    size = model.task.tokenizer.vocab_size
    first, second = fill(model, "[MASK] two[MASK]", size)
    for words in (first, second):
        chances = [p for _, p in words]
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1, rel=1e-5)
        assert sorted(word for word, _ in words) == sorted(model.task.tokenizer.pieces)
    assert fill(model, "[MASK] two[MASK]", 2) == [first[:2], second[:2]]
    for text, message in (
        ("one two", r"no \[MASK\] in 'one two'; write it"),
        ("one " * 11 + "[MASK]", "has 14 tokens, and the model takes 13; shorten it"),
    ):
        with pytest.raises(UserError, match=message):
            fill(model, text, 2)


def test_other_models_have_no_masks(random_params):
    with pytest.raises(UserError, match="run has no masked language model"):
        check_masked_lm(trained_model(random_params))
