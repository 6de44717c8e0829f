import copy
import dataclasses
import functools
import gc
import importlib
import itertools
import json
import subprocess
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import small_configs
from processes import on_devices
from small_configs import EXPERTS, SMALL, model_config, sizes_of

from configs import multi30k_lstm, t_dmca, universal_act_base
from transformer.data.sentencepiece import train_sentencepiece
from transformer.data.tokenizers import Tokenizers
from transformer.data.vocabulary import EOS
from transformer.decoding import batching, search
from transformer.decoding.batching import (
    CPU_TOKENS,
    FEW_ROWS,
    Shape,
    batches,
    batches_at_once,
    layout_for,
    most_rows,
)
from transformer.decoding.config import DecodingConfig
from transformer.decoding.inputs import (
    Request,
    SearchInputs,
    longest_phrases,
    parts_of_search,
)
from transformer.decoding.mbr import by_utility
from transformer.decoding.programs import Programs
from transformer.decoding.translation import Translator
from transformer.models.decoder_only.decoder_only import DecoderOnlyConfig
from transformer.models.family import build_model, find_family
from transformer.models.universal.universal_steps import UniversalConfig
from transformer.models.weight_layout import WeightLayout
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh

DECODING = DecodingConfig(beam_size=3, length_penalty=0.6, max_extra_length=5)
MODEL = dataclasses.replace(small_configs.MODEL, dropout=0.1)
SENTENCES = ["abc", "ca", "", "bbbbbb", "abc", " ", "cab" * 9, "b", "\t", "ä€"]


def asked(sentences, prefixes=None, constraints=None, numbers=None) -> list[Request]:
    """Requests for sentences, all alike but for these."""
    columns = prefixes or [""] * len(sentences), constraints or [()] * len(sentences)
    return list(map(Request, sentences, *columns, numbers or [None] * len(sentences)))


@functools.cache
def tokenizers() -> Tokenizers:
    tokenizer = train_sentencepiece(["abc"], vocab_size=264, model_type="bpe")
    return Tokenizers(tokenizer, tokenizer)


@pytest.fixture(scope="module")
def translator_of(random_params):
    model = build_model(MODEL, sizes_of(264))
    params = random_params(model)

    @functools.cache
    def make(**changes):
        config = dataclasses.replace(DECODING, **changes)
        translator = Translator(model, tokenizers(), config, data_mesh(jax.devices()[:1]))
        return translator, (params, {})

    return make


@pytest.fixture(autouse=True)
def whole_batches(monkeypatch):
    """Parts of a batch, which are compiled too, are in test_search.py."""
    monkeypatch.setattr(search, "PARTS", ())


# --- Batches ------------------------------------------------------------------------------


def rows_of(width: int) -> int:
    return max(1, CPU_TOKENS // width)


def test_batches_by_hand():
    """Shorter sentences fill up the rows that longer ones leave; the last batch may be small."""
    lengths = [3, 0, 16, 17, 40, 1, 33]
    assert batches(lengths, rows_of, 1) == [((10, 48), [4, 6, 3, 2, 0, 5])]
    assert batches([49] * 31 + [5] * 5, rows_of, 1) == [
        ((32, 64), list(range(32))),
        ((8, 16), [32, 33, 34, 35]),
    ]
    assert batches([7], rows_of, 1) == [((1, 16), [0])]
    widths = {16: 16, 17: 32, 32: 32, 33: 48, 48: 48, 49: 64, 65: 96, 96: 96, 97: 128, 129: 192}
    assert {n: batches([n], rows_of, 1)[0][0].width for n in widths} == widths
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
    assert {32, 64, 96, 128, 192, 256, 384, 512, 768} <= set(widths)


class FakeDevice:
    def __init__(self, stats):
        self.memory_stats = lambda: stats


@pytest.mark.parametrize(
    ("stats", "width", "beam_size", "at_once", "expected"),
    [
        (None, 16, 4, 1, 128),
        (None, 16, 4, 2, 64),
        (None, 16, 100, 1, 8),  # 800 caches, not 12,800
        (None, 16, 100, 2, 4),
        (None, 16, 1025, 2, 1),
        (None, 4096, 4, 2, 1),
        ({"bytes_limit": 4 * 16 * 1000}, 16, 4, 1, 512),  # 1,000 rows of 16 bytes fit
        ({"bytes_limit": 4 * 16 * 1000}, 32, 4, 1, 256),
        ({"bytes_limit": 10**15}, 16, 4, 1, 4096),
        ({"bytes_limit": 4}, 16, 4, 1, 1),
    ],
)
def test_rows_follow_the_memory(stats, width, beam_size, at_once, expected):
    device = FakeDevice(stats)
    assert most_rows(width, beam_size, lambda width: width, device, at_once) == expected


def test_how_many_batches_at_once(monkeypatch):
    monkeypatch.setattr(batching, "available_cores", lambda: 2)
    one, two = (jax.sharding.Mesh(jax.devices()[:1] * n, "data") for n in (1, 2))
    assert [batches_at_once(mesh) for mesh in (one, two)] == [2, 1]
    for shape, beam_size, expected in (
        (Shape(1, 1024), 4, 2),
        (Shape(1, 1536), 4, 1),
        (Shape(1, 16), 512, 2),
        (Shape(1, 16), 513, 1),
    ):
        assert batches_at_once(one, [shape], beam_size) == expected
    monkeypatch.setattr(batching, "available_cores", lambda: 1)
    assert batches_at_once(one) == 1


# --- Translations -------------------------------------------------------------------------


def test_translations_and_what_their_scores_say(translator_of):
    """They do not depend on their batch; an empty line stays empty."""
    translator, variables = translator_of()
    done = []
    found = translator.search(variables, asked(SENTENCES), nbest=3, progress=done.append)
    assert done == [7]
    assert [len(x) for x in found] == [3 if text.strip() else 0 for text in SENTENCES]
    assert len({x[0].text for x in found if x}) > 4  # they do depend on the sentence
    for translations in found:
        assert len({tuple(x.tokens) for x in translations}) == len(translations)
        for x in translations:
            assert not set(x.text) & set("\r\n")
            assert x.tokens[-1] == EOS
            assert len(x.token_log_probs) == len(x.tokens)
            assert sum(x.token_log_probs) == pytest.approx(x.log_prob, rel=1e-4)
            assert x.score == pytest.approx(x.log_prob / ((5 + len(x.tokens)) / 6) ** 0.6)

    def outputs(sentences, **options):
        lists = translator.search(variables, asked(sentences), nbest=3, **options)
        for text, translations in zip(sentences, lists, strict=True):
            for x in translations if options else ():
                words = range(len(text.split())), range(len(x.text.split()))
                assert all(i in words[0] and j in words[1] for i, j in x.alignment)
        return [[x.tokens for x in translations] for translations in lists]

    tokens = [[x.tokens for x in translations] for translations in found]
    assert outputs(SENTENCES[::-1]) == tokens[::-1]
    for sentence, expected in zip(SENTENCES, tokens, strict=True):
        if len(sentence) < 16:  # in narrower rows than together
            assert outputs([sentence], alignments=True) == [expected]
    assert outputs([]) == []
    assert outputs(["", "\u2028"]) == [[], []]


def test_the_best_by_minimum_bayes_risk(translator_of):
    """The order of the beam changes, and not the translations."""
    translator, variables = translator_of()
    beam = translator.search(variables, asked(SENTENCES), nbest=3)
    by_risk = copy.copy(translator)
    by_risk.config = dataclasses.replace(translator.config, mbr=3)
    found = by_risk.search(variables, asked(SENTENCES))
    expected = [[x[by_utility([y.text for y in x])[0]]] if x else [] for x in beam]
    assert found == expected
    assert any(best[0] != x[0] for best, x in zip(found, beam, strict=True) if x)
    with pytest.raises(UserError, match=r"mbr asks for 4 candidates, and decoding\.beam_size is 3"):
        dataclasses.replace(translator.config, mbr=4)


def test_parameters_are_laid_out_once_for_as_long_as_they_are_the_same(translator_of):
    translator, (params, _) = translator_of()
    laid_out, few_rows = translator._laid_out, WeightLayout.FEW_ROWS
    layouts = [layout_for(rows) for rows in (1, min(FEW_ROWS), max(FEW_ROWS) + 1)]
    assert layouts == [WeightLayout.MANY_ROWS, few_rows, WeightLayout.MANY_ROWS]
    variables = jax.tree.map(jnp.array, params), {}
    found = laid_out(variables, few_rows)
    assert laid_out(variables, few_rows) is found is not variables
    assert laid_out(variables, WeightLayout.MANY_ROWS) is variables  # in float32 they are so
    other = jax.tree.map(lambda x: -x, variables)
    assert laid_out(other, few_rows) is not found
    del variables, other
    gc.collect()
    assert not laid_out._kept  # those before are forgotten


@pytest.mark.parametrize(
    ("changes", "source", "longest", "shortest"),
    [
        ({}, 10, 15, 0),  # Section 6.1: the input is counted without EOS, the output with it
        ({"max_length": 12}, 10, 12, 0),
        ({"max_length": 16, "min_length": 3}, 10, 15, 3),
        ({"max_length_ratio": 2.25, "max_extra_length": 0}, 10, 22, 0),
        ({"min_length_ratio": 0.75, "min_length": 2}, 10, 15, 8),
        ({"min_length_ratio": 3.0}, 10, 15, 15),  # what contradicts itself for some lengths only
        # Those of the decimal: as floats, 45 * 1.4 is less than 63, and 50 * 1.1 more than 55.
        ({"max_length_ratio": 1.4}, 45, 68, 0),
        ({"max_length_ratio": 1.4, "min_length_ratio": 1.1}, 50, 75, 55),
        ({"max_length_ratio": 1.4, "min_length_ratio": 1.4}, 46, 69, 65),  # of 64.4
        ({"min_length_ratio": 0.07}, 100, 105, 7),
        ({"max_length_ratio": 0.29, "min_length_ratio": 1e-3}, 1000, 295, 1),
        ({"max_length_ratio": 1, "min_length_ratio": 1}, 50, 55, 50),  # a whole number
        ({"max_length_ratio": 1024.9}, 10, 10254, 0),
    ],
)
def test_lengths(changes, source, longest, shortest):
    config = dataclasses.replace(DECODING, **changes)
    assert (config.longest(source), config.shortest(source)) == (longest, shortest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"beam_size": 0}, "beam_size is 0; it must be at least 1"),
        ({"length_penalty": -1.0}, "length_penalty is -1.0; it must be at least 0"),
        ({"max_extra_length": -1}, "max_extra_length is -1; it must be at least 0"),
        ({"max_extra_length": 0, "max_length_ratio": 0.5}, "room for EOS"),
        ({"max_length_ratio": 1e30}, r"max_length_ratio is 1e\+30; it must be at least 0"),
        ({"min_length": 2**40}, "min_length is 1099511627776; it must be at least 0 and below"),
        ({"length_penalty_form": "wu"}, "length_penalty_form is 'wu'"),
        ({"min_length": 9, "max_length": 8}, "min_length = 9 is more than decoding.max_length"),
        ({"beam_groups": 2}, "beam_size = 3 is not divisible by decoding.beam_groups = 2"),
        ({"top_p": 0.0, "temperature": 1.0}, "top_p is 0.0; it must be in"),
        ({"temperature": 1e-40}, "temperature is 1e-40; it must be at least 0.001"),
        ({"top_k": 5}, "top_k is for samples; set decoding.temperature"),
        ({"seed": 5}, "seed is for samples"),
        ({"repetition_penalty": 0.5}, "repetition_penalty is 0.5; it must be at least 1"),
        ({"repetition_penalty": float("nan")}, "repetition_penalty is nan"),
        ({"diversity": 0.5}, "diversity is between groups"),
        ({"temperature": 1.0, "beam_groups": 3}, "leave one of them out"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(UserError, match=message):
        dataclasses.replace(DECODING, **changes)


# --- What is asked of a translation -------------------------------------------------------


def test_prefixes_constraints_minimum_and_given_targets(translator_of):
    translator, variables = translator_of(min_length=4, max_extra_length=9)
    texts, prefixes = ["abc", "", "b", "ca"], ["ba", "", "", "c"]
    constraints = [["cc"], [], ["a", "b", "a"], []]
    found = translator.search(variables, asked(texts, prefixes, constraints), nbest=2)
    assert [len(x) for x in found] == [2, 0, 2, 2]
    for xs, prefix, phrases in zip(found, prefixes, constraints, strict=True):
        for x in xs:
            assert x.text.startswith(prefix)
            assert all(phrase in x.text for phrase in phrases)
            assert len(x.tokens) >= 4
    # There is room for a phrase, if not for its parts beside it.
    assert longest_phrases([(5, 6, 6), (5, 6), (), (5, 6, 6)]) == [(5, 6, 6)]
    # A target is scored as it was found: texts that have the same tokens again.
    scored = translator.score(variables, texts[::3], prefixes[::3], alignments=True)
    for prefix, [expected, _], x in zip(prefixes[::3], found[::3], scored, strict=True):
        length = len(x.tokens) - 1
        assert x.text == prefix
        assert x.tokens == [*expected.tokens[:length], EOS]
        of_prefix = x.token_log_probs[:length], expected.token_log_probs[:length]
        np.testing.assert_allclose(*of_prefix, rtol=2e-3)
        assert sum(x.token_log_probs) == pytest.approx(x.log_prob, rel=1e-5)
        assert x.score == pytest.approx(x.log_prob / ((5 + length + 1) / 6) ** 0.6)
        assert [j for _, j in x.alignment] == list(range(len(prefix.split())))


def test_samples(translator_of):
    translator, variables = translator_of(temperature=1.0)
    found = translator.search(variables, asked(SENTENCES), nbest=5)
    assert [len(x) for x in found] == [5 if text.strip() else 0 for text in SENTENCES]
    assert len({x.text for x in found[0]}) > 1
    alone = translator.search(variables, asked(SENTENCES[3:4]), nbest=5)
    assert [x.tokens for x in alone[0]] == [x.tokens for x in found[3]]
    assert [x.tokens for x in found[0]] == [x.tokens for x in found[4]]  # the same sentence
    # By their numbers: equal sentences differ, and are what they are without the others.
    assert SENTENCES[0] == SENTENCES[4]
    numbers = range(11, 11 + len(SENTENCES))
    numbered = translator.search(variables, asked(SENTENCES, numbers=numbers), nbest=5)
    assert [x.tokens for x in numbered[0]] != [x.tokens for x in numbered[4]]
    assert [x.tokens for x in numbered[0]] != [x.tokens for x in found[0]]
    alone = translator.search(variables, asked(SENTENCES[4:5], numbers=[15]), nbest=5)
    assert [x.tokens for x in alone[0]] == [x.tokens for x in numbered[4]]
    inputs = SearchInputs(np.ones(1), seed_B=np.zeros(1, np.uint32))
    configs = (dataclasses.replace(translator.config, seed=seed) for seed in (0, 1))
    keys = [parts_of_search(config, inputs, None, None)[0].key_B for config in configs]
    assert len({tuple(np.ravel(jax.random.key_data(key))) for key in keys}) == 2


@pytest.mark.parametrize(
    ("changes", "wanted", "message"),
    [
        ({}, {"nbest": 4}, "4 translations of each sentence are asked for, and decoding.beam_size"),
        ({}, {"nbest": 0}, "ask for at least 1"),
        ({"temperature": 1.0}, {"nbest": 0}, "ask for at least 1"),
        (
            {"temperature": 1.0},
            {"nbest": 10**9},
            "1,000,000,000 samples of each sentence are asked for; ask for at most 10,000, and",
        ),
        (
            {"temperature": 1.0, "max_extra_length": 999_999},
            {"nbest": 10_000},
            r"a search of 10,000 hypotheses of at most 1,000,\d+ tokens needs at least .* GiB of",
        ),
        ({}, {"numbers": [9]}, "--seed_by=line is for samples; set decoding.temperature"),
        ({"temperature": 1.0}, {"constraints": [["a"]]}, "constraints are for beam search"),
        ({"beam_groups": 3}, {"constraints": [["a"]]}, "decoding.beam_groups is 3"),
        ({}, {"prefixes": ["b" * 40]}, "the prefix of sentence 1 of 1 has"),
        ({}, {"constraints": [["b" * 40]]}, "the constraints of sentence 1 of 1 has"),
        (
            {"no_repeat_ngram": 1},
            {"prefixes": ["aaa"]},
            "sentence 1 of 1 has no translation of at most",
        ),
    ],
)
def test_what_cannot_be_fulfilled(translator_of, changes, wanted, message):
    translator, variables = translator_of(**changes)
    wanted = dict(wanted)
    nbest = wanted.pop("nbest", 1)
    with pytest.raises(UserError, match=message):
        translator.search(variables, asked(["b"], **wanted), nbest=nbest)


def test_int8(translator_of):
    """Other scores than those of floats, and nearly the same ones in every batch."""
    translator, variables = translator_of(int8=True)
    found = translator.search(variables, asked(SENTENCES), nbest=3)
    (alone,) = translator.search(variables, asked(SENTENCES[:1]), nbest=3)
    assert alone[0].tokens == found[0][0].tokens
    assert alone[0].score == pytest.approx(found[0][0].score, abs=1e-3)
    of_floats = translator_of()[0].search(variables, asked(SENTENCES), nbest=3)
    scores, expected = ([x[0].score for x in both if x] for both in (found, of_floats))
    assert scores != expected
    np.testing.assert_allclose(scores, expected, rtol=0.1)


def int8_outputs(num_devices: int) -> list[tuple[list[int], float]]:
    mesh = data_mesh(jax.devices()[:num_devices])
    assert mesh.size == num_devices
    model = build_model(MODEL, sizes_of(264))
    config = dataclasses.replace(DECODING, int8=True)
    translator = Translator(model, tokenizers(), config, mesh)
    found = translator.search((model.init(jax.random.key(0)), {}), asked(SENTENCES[:5]))
    return [(best.tokens, best.score) for best, *_ in filter(None, found)]


@pytest.mark.slow
def test_int8_on_two_devices():
    command = [sys.executable, __file__, "2"]
    with subprocess.Popen(command, env=on_devices(2), stdout=subprocess.PIPE, text=True) as child:
        expected = int8_outputs(1)
        output, _ = child.communicate(timeout=300)
    assert child.returncode == 0
    assert len(expected) == 4
    for (tokens, score), of_two in zip(expected, json.loads(output), strict=True):
        assert of_two == [tokens, pytest.approx(score, abs=1e-3)]


def test_int8_needs_a_cpu_and_linear_layers():
    decoding = dataclasses.replace(DECODING, int8=True)
    lstm = multi30k_lstm.get_config().model
    rnn = build_model(find_family("rnn").config(**lstm), sizes_of(264))
    mesh = data_mesh(jax.devices()[:1])
    with pytest.raises(UserError, match="this one has none"):
        Translator(rnn, tokenizers(), decoding, mesh)
    configs = (
        model_config(DecoderOnlyConfig, t_dmca, **EXPERTS),
        model_config(UniversalConfig, universal_act_base, **SMALL),
    )
    assert all(build_model(config, sizes_of(264)).takes_int8() for config in configs)
    model = build_model(MODEL, sizes_of(264))
    with pytest.raises(UserError, match="int8 is for CPUs"):
        Translator(model, tokenizers(), decoding, mesh.abstract_mesh)


TEXTS = ["b" * 40, "c" * 60, "b" * 60, "c" * 40]


@pytest.fixture
def searched(translator_of, monkeypatch):
    """searched(before) translates TEXTS, each of which is a batch; before(number) begins each."""
    translator, variables = translator_of(max_extra_length=3)
    monkeypatch.setattr(batching, "available_cores", lambda: 2)
    monkeypatch.setattr(batching, "CPU_TOKENS", 128)
    shapes = ["search, 1 x 64 source tokens", "search, 1 x 48 source tokens"]
    programs = translator.prepare(variables, TEXTS)
    assert list(programs) == shapes
    search = Programs.__call__

    def translate(before, **options):
        numbers = itertools.count()

        def counted(*arguments, **static):
            before(next(numbers))
            return search(*arguments, **static)

        monkeypatch.setattr(Programs, "__call__", counted)
        found = translator.search(variables, asked(TEXTS), **options)
        # What was compiled in advance is all that is needed.
        assert list(translator.programs._compiled.values()) == list(programs.values())
        return found

    return translate


def test_a_cpu_searches_two_batches_at_once(searched):
    both, done = threading.Barrier(2), []
    found = searched(lambda number: both.wait(timeout=60), progress=done.append)
    assert done == [1, 2, 3, 4]
    assert found == searched(lambda number: time.sleep(0.3 if number == 0 else 0))


@pytest.mark.parametrize("place", ["search", "progress"])
def test_an_error_in_one_batch_ends_the_search(searched, place):
    begun = []

    def before(number):
        begun.append(number)
        if number == 0 and place == "search":
            raise RuntimeError("the first batch")
        time.sleep(0.3 * number)

    def progress(done):
        raise RuntimeError("the first batch")

    with pytest.raises(RuntimeError, match="the first batch"):
        searched(before, progress=progress)
    assert len(begun) < 4


@pytest.mark.parametrize(
    ("preset", "beam_size", "alpha", "form"),
    [
        ("base", 4, 0.6, "gnmt"),  # Section 6.1
        ("parsing_paper", 21, 0.3, "gnmt"),  # Section 6.3
        ("convs2s_iwslt", 5, 1.0, "power"),  # Gehring et al. 2017, Section 4.2
        ("convs2s_wmt", 5, 1.0, "power"),
        ("rnn_bahdanau", 4, 0.0, "gnmt"),  # by log-probability; the paper does not name its beam
        ("rnn_sutskever", 12, 0.0, "gnmt"),
        ("rnn_luong", 10, 0.0, "gnmt"),
    ],
)
def test_searches_of_papers(preset, beam_size, alpha, form):
    found = importlib.import_module(f"configs.{preset}").get_config().decoding
    assert (found.beam_size, found.length_penalty, found.length_penalty_form) == (
        *(beam_size, alpha, form),
    )


if __name__ == "__main__":
    print(json.dumps(int8_outputs(int(sys.argv[1]))))
