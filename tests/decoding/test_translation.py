import dataclasses
import functools

import jax
import numpy as np
import pytest
import small_configs
from small_configs import sizes_of

from transformer.data.sentencepiece import train_sentencepiece
from transformer.data.tokenizers import Tokenizers
from transformer.decoding.translation import (
    TOKENS_AT_ONCE,
    DecodingConfig,
    Translator,
    batches_by_length,
    rows_for_width,
)
from transformer.models.family import build_model
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh

DECODING = DecodingConfig(beam_size=3, length_penalty=0.6, max_extra_length=5)
MODEL = dataclasses.replace(small_configs.MODEL, dropout=0.1)
SENTENCES = ["abc", "ca", "", "bbbbbb", "abc", " ", "cab" * 9, "b", "c c", "\t", "ä€"]


@functools.cache
def tokenizers() -> Tokenizers:
    tokenizer = train_sentencepiece(["abc"], vocab_size=264, model_type="bpe")
    return Tokenizers(tokenizer, tokenizer)


@pytest.fixture(scope="module")
def translate(random_params):
    """translate(sentences) -> translations, of a model with random parameters."""
    model = build_model(MODEL, sizes_of(264))
    params = random_params(model)
    translator = Translator(model, tokenizers(), DECODING, data_mesh(jax.devices()[:1]))
    return functools.partial(translator.translate, (params, {}))


# --- Batches ------------------------------------------------------------------------------


def test_batches_by_hand():
    rows = TOKENS_AT_ONCE // 16
    lengths = [3, 0, 16, 17, 40, 1, 33]
    assert batches_by_length(lengths, 1) == [(64, [4, 6]), (32, [3]), (16, [2, 0, 5])]
    assert [rows_for_width(width, 1) for width in (16, 64, 2048, 4096)] == [rows, rows // 4, 1, 1]
    assert rows_for_width(4096, 3) == 3
    batches = batches_by_length([5] * (rows + 1), 1)
    assert [(width, len(members)) for width, members in batches] == [(16, rows), (16, 1)]
    batches = batches_by_length([5] * (rows + 1), 2)
    assert [(width, len(members)) for width, members in batches] == [(16, rows + 1)]


def test_batches_hold_every_sentence_once():
    lengths = np.random.default_rng(3).integers(0, 700, 997).tolist()
    batches = batches_by_length(lengths, num_devices=2)
    members = [i for _, batch in batches for i in batch]
    assert sorted(members) == [i for i, length in enumerate(lengths) if length]
    for width, batch in batches:
        assert all(lengths[i] <= width for i in batch)
        assert 0 < len(batch) <= rows_for_width(width, 2)
    widths = [width for width, _ in batches]
    assert widths == sorted(widths, reverse=True)
    assert set(widths) == {16, 32, 64, 128, 256, 512, 1024}


def test_no_batches():
    assert batches_by_length([], 1) == batches_by_length([0, 0], 1) == []


# --- Translations -------------------------------------------------------------------------


def test_a_translation_does_not_depend_on_its_batch(translate):
    together = translate(SENTENCES)
    assert [translate([sentence])[0] for sentence in SENTENCES] == together
    assert translate(SENTENCES[::-1]) == together[::-1]
    assert len(set(together)) > 5  # they do depend on the sentence


def test_blank_lines_stay_empty(translate):
    translations = translate(SENTENCES)
    assert [i for i, text in enumerate(translations) if text == ""] == [2, 5, 9]
    assert translate([]) == []
    assert translate(["", "\u2028"]) == ["", ""]


def test_a_translation_is_one_line(translate):
    assert not any(set(text) & set("\r\n") for text in translate(SENTENCES))


def test_progress(translate):
    done = []
    translate([*SENTENCES, "a" * 40], done.append)
    # The longest first: one of more than 32 tokens, the one of 27, the other eight.
    assert done[-1] == 9
    assert done == sorted(set(done))


def test_longest_output_is_input_and_max_extra_length():
    """Section 6.1: the input is counted without EOS, the output with it."""
    seen = []

    def run(params, src_BS, max_length_B):
        seen.append((src_BS.shape, max_length_B[max_length_B > 0].tolist()))
        return np.zeros((len(max_length_B), 1), np.int32)

    translator = Translator(None, tokenizers(), DECODING, data_mesh(jax.devices()[:1]))
    translator._run = run
    longest = [len(tokenizers().source.encode(text)) for text in ("abc", "b" * 40)]
    assert translator.translate((None, {}), ["b" * 40, "", "abc"]) == ["", "", ""]
    assert seen == [((32, 64), [longest[1] + 5]), ((128, 16), [longest[0] + 5])]


@pytest.mark.parametrize("field", ["beam_size", "length_penalty", "max_extra_length"])
def test_settings_that_cannot_be(field):
    with pytest.raises(UserError, match=f"decoding.{field} is -1; it must be at least"):
        dataclasses.replace(DECODING, **{field: -1})
