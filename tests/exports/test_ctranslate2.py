"""CTranslate2 computes what our models compute."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from small_m2m import M2M100, TEXT, write_folder
from small_models import LINES, log_probs, trained, trained_model

from transformer.data.m2m_vocabulary import SENTENCEPIECE
from transformer.data.vocabulary import BOS, EOS
from transformer.decoding.inputs import Request
from transformer.exports import ctranslate2 as exporting
from transformer.exports.folder import new_folder
from transformer.runs.init_from import of_hub

ctranslate2 = pytest.importorskip("ctranslate2", reason=".[exports]")


def translator_of(model, folder, quantization="float32", **options):
    with new_folder(folder) as temporary:
        exporting.write(model, temporary, quantization)
    return ctranslate2.Translator(str(folder), **options)


def pieces_of(tokenizer, lines):
    return [[tokenizer.pieces[i] for i in tokenizer.encode(line)] for line in lines]


@pytest.mark.parametrize(
    ("vocab_sizes", "changes"),
    [
        ((271,), {"activation": "swish", "scale_embeddings": False, "attention_bias": True}),
        ((271,), {"norm": "pre", "num_encoder_layers": 2, "norm_epsilon": 0.03}),
        ((271,), {"share_embeddings": "decoder", "activation": "gelu", "output_bias": True}),
        ((271, 269), {"share_embeddings": "none", "positions": "learned", "max_positions": 3}),
        (
            (271, 269),
            {"share_embeddings": "decoder", "norm": "pre", "normalization": "rms_norm"}
            | {"num_decoder_layers": 2, "d_k": 7, "d_v": 7},
        ),
        (
            (271,),
            {"positions": "rotary", "feed_forward": "swiglu", "d_model": 16, "num_heads": 4}
            | {"num_key_value_heads": 2},
        ),
        ((271,), {"positions": "relative", "max_distance": 2, "feed_forward": "glu"}),
        ((271,), {"positions": "relative_keys", "norm": "pre", "feed_forward": "geglu"}),
        (
            (271,),
            {"positions": "t5", "max_distance": 17, "num_encoder_layers": 2, "scale_outputs": True},
        ),
        ((271,), {"positions": "none", "feed_forward": "reglu", "num_key_value_heads": 1}),
    ],
)
def test_each_token_is_as_probable(random_params, tmp_path, vocab_sizes, changes):
    model = trained_model(random_params, vocab_sizes, **changes)
    translator = translator_of(model, tmp_path / "exported")
    source, target = model.task.tokenizers
    inputs = pieces_of(source, LINES)
    scored = translator.score_batch(inputs, pieces_of(target, LINES[::-1]))
    # Token by token, with a cache.
    arguments = {"beam_size": 1, "min_decoding_length": 0, "max_decoding_length": 9}
    outputs = translator.translate_batch(inputs, **arguments, length_penalty=0, return_scores=True)
    ids = {piece: i for i, piece in enumerate(target.pieces)}
    targets = [target.encode(y) for y in LINES[::-1]]
    targets += [[ids[piece] for piece in found.hypotheses[0]] for found in outputs]
    expected = log_probs(model, [(source.encode(x), [*y, EOS]) for x, y in zip(LINES * 2, targets)])
    for mine, found in zip(expected, scored):
        assert found.tokens[-1] == "</s>"
        np.testing.assert_allclose(found.log_probs, mine, atol=1e-4)
    for mine, found in zip(expected[len(LINES) :], outputs, strict=True):
        np.testing.assert_allclose(found.scores[0], mine[:9].sum(), atol=2e-4)


def test_a_model_of_m2m100(tmp_path):
    """It begins with EOS and the language, of which a search takes the latter as given."""
    write_folder(tmp_path)
    model = of_hub(tmp_path, M2M100)
    translator = translator_of(model, tmp_path / "exported")
    source, target = model.task.tokenizers
    inputs = pieces_of(source, TEXT)
    found = translator.score_batch(inputs, pieces_of(target, TEXT[::-1]))
    pairs = [(source.encode(x), [*target.encode(y), EOS]) for x, y in zip(TEXT, TEXT[::-1])]
    for mine, theirs in zip(log_probs(model, pairs), found, strict=True):
        np.testing.assert_allclose(theirs.log_probs, mine, atol=1e-4)
    assert source.sentencepiece_model == (tmp_path / "exported" / SENTENCEPIECE).read_bytes()
    results = translator.translate_batch(
        inputs, target_prefix=[["deu_Latn"]] * len(TEXT), beam_size=1, max_decoding_length=9
    )
    outputs = model.task.search(model.params, {}, list(map(Request, TEXT)))
    for (expected,), theirs in zip(outputs, results, strict=True):
        pieces = [target.pieces[i] for i in expected.tokens]
        assert theirs.hypotheses[0][:8] == pieces[:8]
        assert pieces[0] == "deu_Latn"


def test_the_search_finds_the_same(random_params, tmp_path):
    model = trained(trained_model(random_params), updates=400)
    translator = translator_of(model, tmp_path / "exported")
    source, target = model.task.tokenizers
    ours = model.task.translate(model.params, {}, LINES)
    assert ours == LINES[::-1]  # as it has learned; so no search is cut short
    ids = {piece: i for i, piece in enumerate(target.pieces)}
    results = translator.translate_batch(
        pieces_of(source, LINES),
        beam_size=4,
        length_penalty=0,
        min_decoding_length=0,  # 1, the default, takes the probability of EOS from step 1
        return_scores=True,
    )
    outputs = [[ids[piece] for piece in found.hypotheses[0]] for found in results]
    assert [target.decode(tokens) for tokens in outputs] == ours
    pairs = [(source.encode(x), [*tokens, EOS]) for x, tokens in zip(LINES, outputs)]
    for found, expected in zip(results, log_probs(model, pairs), strict=True):
        np.testing.assert_allclose(found.scores[0], expected.sum(), atol=1e-4)


def test_the_arguments_of_its_search(random_params, tmp_path):
    """A greedy search, with a penalty that changes it, and a minimum."""
    asked = {"repetition_penalty": 3.0, "max_length": 9, "min_length": 4, "max_extra_length": 30}
    model = trained_model(random_params, beam_size=1, search=asked, output_bias=True)
    model.params["output_bias_V"] = model.params["output_bias_V"].at[: BOS + 1].set(-99.0)
    translator = translator_of(model, tmp_path / "exported")
    source, target = model.task.tokenizers
    arguments = json.loads((tmp_path / "exported" / "translate_batch.json").read_text())
    results = translator.translate_batch(pieces_of(source, LINES), **arguments)
    ours = model.task.search(model.params, {}, list(map(Request, LINES)))
    for (expected,), found in zip(ours, results, strict=True):
        pieces = [target.pieces[i] for i in expected.tokens[:-1]]
        assert found.hypotheses[0][: len(pieces)] == pieces
        assert 4 <= len(expected.tokens) <= 9
    free = arguments | {"repetition_penalty": 1.0}
    others = translator.translate_batch(pieces_of(source, LINES), **free)
    assert [x.hypotheses for x in others] != [x.hypotheses for x in results]


def test_quantised_models_are_smaller_and_run(random_params, tmp_path):
    model = trained_model(random_params, d_model=64, d_ff=96)
    # Small differences between logits, as of a model that has learned.
    model = dataclasses.replace(model, params=jax.tree.map(lambda x: x / 3, model.params))
    source, target = model.task.tokenizers
    texts = pieces_of(source, LINES[:1]), pieces_of(target, LINES[2:3])
    (expected,) = log_probs(model, [(source.encode(LINES[0]), [*target.encode(LINES[2]), EOS])])
    translator_of(model, tmp_path / "float32")
    for name in ("float16", "int8"):
        translator = translator_of(model, tmp_path / name, name, compute_type="float32")
        sizes = [(tmp_path / x / "model.bin").stat().st_size for x in ("float32", name)]
        assert sizes[1] < 0.75 * sizes[0]
        (found,) = translator.score_batch(*texts)
        np.testing.assert_allclose(found.log_probs, expected, rtol=0.1, atol=0.3)
        # By its int8 sums, on an AMD EPYC with AVX2, one token in twelve was off by a factor of 3.
        (found,) = ctranslate2.Translator(str(tmp_path / name)).score_batch(*texts)
        assert np.isfinite(found.log_probs).all()


def test_the_folder_says_what_decoding_needs(random_params, tmp_path):
    model = trained_model(random_params, (271, 269), share_embeddings="none")
    translator_of(model, tmp_path / "exported")
    config = json.loads((tmp_path / "exported/config.json").read_text())
    assert config["decoder_start_token"] == model.task.tokenizers.target.pieces[BOS] == "<s>"
    assert config["add_source_eos"]
    assert config["layer_norm_epsilon"] == 1e-6
    names = {path.name for path in (tmp_path / "exported").iterdir()}
    assert names == {
        "config.json", "model.bin", "source_vocabulary.json", "target_vocabulary.json",
        "translate_batch.json",
        "tokenizer.source.model", "tokenizer.target.model",
    }  # fmt: skip
