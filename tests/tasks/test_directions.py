"""Models whose texts name their language: in searches, scores, training, and by the flags."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from small_configs import PAPER
from small_m2m import Reference, write_folder
from small_models import trained_model

from transformer.data.sources import Corpus
from transformer.data.vocabulary import BOS, EOS, UNK
from transformer.decoding.forced import Forced
from transformer.decoding.inputs import Request
from transformer.exports.trimming import table, trimmed
from transformer.inference.model import Model
from transformer.runs.init_from import of_hub
from transformer.runs.restore import TrainedModel
from transformer.runs.run_config import with_fields
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.tasks import seq2seq

load_file = pytest.importorskip("safetensors.numpy", reason=".[exports]").load_file
FIELDS = {
    "data.source_language": "en", "data.target_language": "deu_Latn",
    "decoding.beam_size": 2, "decoding.max_extra_length": 5, "decoding.length_penalty": 0.0,
    "tokenizer.model_type": "word",  # which may have few pieces
}  # fmt: skip
BASE = with_fields(PAPER, FIELDS)
LINES = ["one two", "", "three"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory) -> TrainedModel:
    folder = tmp_path_factory.mktemp("nllb")
    write_folder(folder)
    return of_hub(folder, BASE)


def test_a_search_begins_with_the_language(hub):
    """Given, not predicted: its probability is 1. It is a token, and no text."""
    model = Model(hub)
    german, chinese = (hub.task.tokenizers.target.languages[x] for x in ("deu_Latn", "zho_Hans"))
    found = model.search(LINES, nbest=2)
    assert [len(each) for each in found] == [2, 0, 2]
    for x in found[0] + found[2]:
        assert x.tokens[0] == german
        assert x.token_log_probs[0] == 0.0
        assert min(x.token_log_probs) < -0.5
        assert x.text == hub.task.tokenizers.target.decode(x.tokens[1:])
        assert len(x.tokens) <= 8  # 3 of the source, 5 more
    # Other languages, with the same programs.
    other = model.between("zho_Hans", "zho_Hans")
    programs = other.restored.task.translator.programs
    assert programs is hub.task.translator.programs
    chinese_found = other.search(LINES, nbest=2)
    assert {x.tokens[0] for each in chinese_found for x in each} == {chinese}
    assert chinese_found[0][0].log_prob != found[0][0].log_prob
    assert model.between("eng_Latn", "de").search(LINES, nbest=2) == found
    # As those of a run of that direction.
    fields = {"data.source_language": "zho_Hans", "data.target_language": "zho_Hans"}
    data = with_fields(hub.config, fields).data
    task = seq2seq.Seq2Seq(data, hub.task.tokenizers, hub.task.model, BASE.decoding, data_mesh())
    assert task.tokenizers.sha256 == other.restored.task.tokenizers.sha256
    assert task.tokenizers.sha256 != hub.task.tokenizers.sha256
    assert (other.restored.task.data, other.limits) == (data, model.limits)


def test_prefixes_constraints_and_alignments(hub):
    """Only the output begins with a language; it belongs to no word."""
    translator, target = hub.task.translator, hub.task.tokenizers.target
    plain = target.for_language("")
    request = Request("one two", "drei", ["zwei", "eins drei"])
    (found,) = translator._encode([request], None)
    code = hub.task.tokenizers.source.languages
    assert found.source.tolist() == [code["eng_Latn"], *plain.encode("one two"), EOS]
    assert found.prefix == [code["deu_Latn"], *plain.encode("drei")]
    assert sorted(found.phrases) == sorted(map(tuple, map(plain.encode, request.constraints)))
    both = found.source, np.array([*found.prefix, EOS])
    attention_TS = np.zeros((len(both[1]), len(both[0])))
    attention_TS[0, 0] = attention_TS[1:, -2] = 1.0  # the second word of the source
    assert translator._pairs(*both, Forced(None, None, attention_TS)) == [(1, 0)]


def test_scores_take_the_language_as_given(hub, monkeypatch):
    def decode(variables, sources, targets, **_):
        return [Forced(np.full(len(x), -2.0, np.float32), None, None) for x in targets]

    monkeypatch.setattr(hub.task.translator.forced, "decode", decode)
    pairs = [("one two", "drei zwei"), ("three", "")]
    encode = hub.task.tokenizers.target.encode
    for x, (_, text) in zip(Model(hub).score(pairs), pairs, strict=True):
        assert x.tokens == [*encode(text), EOS]
        assert x.token_log_probs == [0.0] + [-2.0] * (len(x.tokens) - 1)
        assert x.log_prob == x.score == -2.0 * (len(x.tokens) - 1)


def write_pairs(folder, **sides):
    for name, lines in sides.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    return [str(folder / name) for name in sides]


def prepared(hub, tmp_path, corpora=None, tokenizers=None, **fields):
    one, two = write_pairs(tmp_path, one=["one two", "three"], two=["zwei eins", "drei"])
    data = {"train_source": one, "train_target": two, "data_dir": str(tmp_path / "data")}
    data |= {"validation_source": one, "validation_target": two, "dataset": None} | fields
    data["corpora"] = corpora or {}
    config = dataclasses.replace(hub.config, data=dataclasses.replace(hub.config.data, **data))
    begun_with = hub.task if tokenizers is None else hub.task.between("eng_Latn", "deu_Latn")
    if tokenizers:
        begun_with.tokenizers = tokenizers
    return seq2seq.prepare(config, data_mesh(), tmp_path / "run", begun_with)


def test_training_in_several_directions(hub, tmp_path):
    more = Corpus(
        source=str(tmp_path / "two"), target=str(tmp_path / "one"), weight=1.0,
        source_language="de", target_language="zho_Hans",
    )  # fmt: skip
    half = dataclasses.replace(more, target=str(tmp_path / "two"), target_language=None)
    training = prepared(hub, tmp_path, {"back": more, "copy": half})
    code = hub.task.tokenizers.source.languages
    plain = hub.task.tokenizers.source.for_language("")
    expected = {
        "train": ("eng_Latn", "one two", "deu_Latn", "zwei eins"),
        "back": ("deu_Latn", "zwei eins", "zho_Hans", "one two"),
        "copy": ("deu_Latn", "zwei eins", "deu_Latn", "zwei eins"),
    }
    for name, pairs in zip(training.corpora, training.packed.all_pairs, strict=True):
        source, source_text, target, target_text = expected[name]
        begin = pairs.source_tokens[: pairs.source_lengths[0]].tolist()
        assert begin == [code[source], *plain.encode(source_text), EOS]
        begin = pairs.target_tokens[: pairs.target_lengths[0]].tolist()
        assert begin == [code[target], *plain.encode(target_text), EOS]
    assert training.shown(0)["source"] in ("one two", "three")


def test_languages_that_cannot_be(hub, tmp_path, random_params):
    language = {"source_language": "de", "weight": 1.0}
    corpus = Corpus(source=str(tmp_path / "one"), target=str(tmp_path / "two"), **language)
    said = r"data.corpora.x has a language of its own, so it cannot join the train split; give it a"
    with pytest.raises(UserError, match=said):
        prepared(hub, tmp_path, {"x": dataclasses.replace(corpus, weight=None)})
    ordinary = trained_model(random_params)
    said = r"^data.corpora.x.source_language is given, and the vocabulary has no tokens for langua"
    with pytest.raises(UserError, match=said):
        prepared(hub, tmp_path, {"x": corpus}, ordinary.task.tokenizers)
    said = r"data.corpora.x.target_language is 'deu_Lat', which .* have; did you mean 'deu_Latn'\?$"
    with pytest.raises(UserError, match=said):
        prepared(hub, tmp_path, {"x": dataclasses.replace(corpus, target_language="deu_Lat")})
    with pytest.raises(UserError, match=r"data.target_language is 'deu_Lat', which .* mean 'deu_L"):
        prepared(hub, tmp_path, target_language="deu_Lat")
    with pytest.raises(UserError, match=r"^target_language is 'deu_Lat', which .* mean 'deu_Latn"):
        Model(hub).between("eng_Latn", "deu_Lat")
    with pytest.raises(UserError, match=r"languages\[1\] is None; give a text"):
        Model(hub).between("eng_Latn", None)
    with pytest.raises(UserError, match=r"the vocabulary has no tokens for languages, as those of"):
        Model(ordinary).between("en", "de")


def test_trimming(hub, tmp_path):
    """On the text that it was trimmed for, a model is as it was."""
    files = write_pairs(tmp_path, source=["one two", "two"], target=["zwei eins", "eins"])
    small = trimmed(hub, ["en", "deu_Latn"], files)
    assert small.config.tokenizer.vocab_size == small.task.tokenizers.source.vocab_size
    old, new = (x.task.tokenizers.source.pieces for x in (hub, small))
    assert {*old} - {*new} >= {"zho_Hans", "▁three", "▁drei"}
    kept = [old.index(piece) for piece in new]
    table_VD = hub.params["target_embedding"]["table_VD"]
    np.testing.assert_array_equal(small.params["target_embedding"]["table_VD"], table_VD[kept, :])
    sides, theirs = [], []
    for side, text in zip(small.task.tokenizers, ("one two", "zwei eins"), strict=True):
        sides.append([*side.encode(text), EOS])
        full = hub.task.tokenizers[len(theirs)].encode(text)
        assert [kept[i] for i in sides[-1]] == [*full, EOS]
        theirs.append(full)
    source, target = theirs
    folder = hub.workdir
    weights = load_file(folder / "model.safetensors")
    reference = Reference(json.loads((folder / "config.json").read_text()), weights)
    # Ids there differ only for <s> and <pad>; a target begins with </s>.
    expected = reference.logits([*source, EOS], [EOS, *target])
    inputs = np.array([sides[0]]), np.array([[BOS, *sides[1][:-1]]])
    found = jax.jit(lambda params: small.task.model.bind(params)(*inputs))(small.params)[0]
    np.testing.assert_allclose(found[:, UNK:], expected[:, kept[UNK:]], atol=1e-4)
    rows = [row.split() for row in table(hub, small).splitlines()[1:]]
    assert [row[:2] for row in rows] == [["before", str(len(old))], ["after", str(len(new))]]
    counts = [int(row[2].replace(",", "")) for row in rows]
    assert counts[0] - counts[1] == 15 * (len(old) - len(new))
    assert float(rows[0][3]) >= float(rows[1][3])


def test_what_cannot_be_trimmed(hub, tmp_path, random_params):
    (file,) = write_pairs(tmp_path, source=["one"])
    for languages, message in (
        (
            ["eng_Latn"],
            r"--languages has no deu_Latn, which data.target_language names; add it, or",
        ),
        (["eng_Latn", "deu_Lat"], r"--languages is 'deu_Lat', which .* did you mean 'deu_Latn'"),
    ):
        with pytest.raises(UserError, match=message):
            trimmed(hub, languages, [file])
    with pytest.raises(UserError, match=r"are for models with the vocabulary of M2M100 or NLLB"):
        trimmed(trained_model(random_params), ["en", "de"], [file])
