import dataclasses
import functools

import jax
import numpy as np
import pytest
import small_configs
from small_configs import sizes_of

from transformer.data.sentencepiece import train_sentencepiece
from transformer.data.tokenizers import Tokenizers
from transformer.decoding.batching import CPU_TOKENS, batches, most_rows
from transformer.decoding.config import DecodingConfig
from transformer.decoding.translation import Translator
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


def rows_of(width: int) -> int:
    return max(1, CPU_TOKENS // width)


def test_batches_by_hand():
    """Shorter sentences fill up the rows that longer ones leave; the last batch may be small."""
    lengths = [3, 0, 16, 17, 40, 1, 33]
    assert batches(lengths, rows_of, 1) == [((8, 64), [4, 6, 3, 2, 0, 5])]
    assert batches([33] * 31 + [5] * 5, rows_of, 1) == [
        ((32, 64), list(range(32))),
        ((8, 16), [32, 33, 34, 35]),
    ]
    assert batches([7], rows_of, 1) == [((1, 16), [0])]
    most = rows_of(16)
    # No program is compiled for the remainder alone.
    assert [shape for shape, _ in batches([5] * (most + 1), rows_of, 1)] == [(most, 16)] * 2
    assert [shape for shape, _ in batches([5] * (most + 1), rows_of, 2)] == [(2 * most, 16)]
    assert batches([], rows_of, 1) == batches([0, 0], rows_of, 1) == []


def test_batches_hold_every_sentence_once():
    lengths = np.random.default_rng(3).integers(0, 700, 997).tolist()
    found = batches(lengths, rows_of, num_devices=2)
    members = [i for _, batch in found for i in batch]
    assert sorted(members) == [i for i, length in enumerate(lengths) if length]
    for (rows, width), batch in found:
        assert all(lengths[i] <= width for i in batch)
        assert 0 < len(batch) <= rows <= 2 * rows_of(width)
        assert rows % 2 == 0
    widths = [width for (_, width), _ in found]
    assert widths == sorted(widths, reverse=True)
    assert {32, 64, 128, 256, 512, 1024} <= set(widths)


class FakeDevice:
    def __init__(self, stats):
        self.memory_stats = lambda: stats


@pytest.mark.parametrize(
    ("stats", "width", "expected"),
    [
        (None, 16, 128),
        (None, 4096, 1),
        ({"bytes_limit": 4 * 16 * 1000}, 16, 512),  # 1,000 rows of 16 bytes fit
        ({"bytes_limit": 4 * 16 * 1000}, 32, 256),
        ({"bytes_limit": 10**15}, 16, 4096),
        ({"bytes_limit": 4}, 16, 1),
    ],
)
def test_rows_follow_the_memory_of_an_accelerator(stats, width, expected):
    assert most_rows(width, lambda width: width, FakeDevice(stats)) == expected


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
    assert seen == [((2, 64), [longest[1] + 5, longest[0] + 5])]


@pytest.mark.parametrize("field", ["beam_size", "length_penalty", "max_extra_length"])
def test_settings_that_cannot_be(field):
    with pytest.raises(UserError, match=f"decoding.{field} is -1; it must be at least"):
        dataclasses.replace(DECODING, **{field: -1})
