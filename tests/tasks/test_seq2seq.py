import dataclasses
import hashlib
from types import SimpleNamespace

import numpy as np
import pytest
from small_m2m import many_languages
from small_models import trained_model

from configs import base
from transformer.data.sources import Corpus, DataConfig
from transformer.data.vocabulary import EOS
from transformer.decoding.forced import Forced
from transformer.decoding.inputs import Request
from transformer.decoding.long_lines import Cutter
from transformer.inference.model import Model
from transformer.runs.run_config import with_fields
from transformer.system.errors import UserError
from transformer.system.sharding import data_mesh
from transformer.tasks import seq2seq
from transformer.tasks.pair_training import Texts, check_positions

DATA = DataConfig(**base.get_config().data)


@pytest.fixture
def data(tmp_path):
    """A test split of three pairs."""
    for side, lines in {
        "en": ["a", "b", "c"],
        "de": ["Eine Katze.", "a b c d:e. f:g.", ""],
    }.items():
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    return dataclasses.replace(
        DATA, test_source=str(tmp_path / "en"), test_target=str(tmp_path / "de")
    )


def test_saved_hypotheses_are_scored_as_they_are(data):
    whole = seq2seq.TASK.rescore(data, "test", ["Eine Katze.", "a b c d:e. f:g.", ""])
    assert whole["bleu"]["score"] == pytest.approx(100)
    other = seq2seq.TASK.rescore(data, "test", ["Eine Katze.", "a b c d:e. f:h.", ""])
    assert other["bleu"]["score"] < 100
    # Text that is tokenised already is scored by its tokens, of which fewer are right.
    tokens = dataclasses.replace(data, is_tokenized=True)
    of_tokens = seq2seq.TASK.rescore(tokens, "test", ["Eine Katze.", "a b c d:e. f:h.", ""])
    assert of_tokens["bleu"]["score"] < other["bleu"]["score"]
    assert "tok:none" in of_tokens["bleu"]["signature"]
    assert list(of_tokens) == ["bleu", "chrf", "ter"]
    # BLEU has the tokenizer that the config names, in training too.
    char = dataclasses.replace(data, bleu_tokenizer="char")
    hypotheses = ["Eine Katze.", "a b c d:e. f:h.", ""]
    found = seq2seq.TASK.rescore(char, "test", hypotheses)["bleu"]
    assert "|tok:char|" in found["signature"]
    texts = Texts("validation", [], ["Eine Katze.", "a b c d:e. f:g.", ""], hypotheses)
    in_training = seq2seq.Seq2Seq.validation_scores(SimpleNamespace(data=char), None, texts)
    assert in_training == {"bleu": found["score"]}


def test_what_cannot_be_scored_is_not_translated_first(data):
    thai = dataclasses.replace(data, target_language="tha")
    task = SimpleNamespace(data=thai, open_source=seq2seq.open_source)
    task.check_data, task.translate = seq2seq.Seq2Seq.check_data, None
    for check in (
        lambda: seq2seq.Seq2Seq.check_data(thai),
        lambda: seq2seq.Seq2Seq.evaluate(task, None, None, "test", None),
    ):
        with pytest.raises(UserError, match=r"tha has no spaces between words.*data\.bleu_tokeniz"):
            check()
    seq2seq.Seq2Seq.check_data(dataclasses.replace(thai, bleu_tokenizer="char"))


def test_the_hash_of_a_split_is_of_all_that_training_sees(tmp_path):
    def hash_of(text):
        return hashlib.sha256(text.encode()).hexdigest()

    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(f"{name}\n")
    a, b, c = (str(tmp_path / name) for name in ("a", "b", "c"))
    files = {"train_source": a, "train_target": b, "validation_source": a, "validation_target": c}
    data = dataclasses.replace(DATA, **files)
    extra = dataclasses.replace(data, corpora={"extra": Corpus(source=b, target=a)})
    assert seq2seq.content_sha256(data, "train") == hash_of("a\nb\n")
    assert seq2seq.content_sha256(extra, "train") == hash_of("a\nb\nb\na\n")
    assert seq2seq.content_sha256(extra, "validation") == hash_of("a\nc\n")


def test_a_family_that_cannot_pack_is_told_so():
    sections, family = base.get_config(), SimpleNamespace(packs=False)
    parts = {name: sections[name] for name in ("data", "training", "model")}
    config = SimpleNamespace(**parts, family=family)
    with pytest.raises(UserError, match=r"cannot keep the pairs of a packed row apart; set data\."):
        seq2seq.prepare(config, None, None, None)


def test_a_position_never_has_words_of_two_sources():
    pairs = SimpleNamespace(source_lengths=np.array([3, 6, 5]))
    check_positions(1, pairs, pairs)
    with pytest.raises(UserError, match=r"but 2 sources have no multiple of so many"):
        check_positions(3, pairs, pairs)


# --- Vocabularies with languages ----------------------------------------------------------

LINES = ["one two", "", "three"]


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    pytest.importorskip("safetensors", reason=".[exports]")
    return many_languages(tmp_path_factory.mktemp("nllb"))


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
    task = seq2seq.Seq2Seq(
        data, hub.task.tokenizers, hub.task.model, hub.config.decoding, data_mesh()
    )
    assert task.tokenizers.sha256 == other.restored.task.tokenizers.sha256
    assert task.tokenizers.sha256 != hub.task.tokenizers.sha256
    assert (other.restored.task.data, other.limits) == (data, model.limits)


def test_pieces_of_a_long_line_are_full(hub):
    """Each piece has one token for its language, not each of its words."""
    source = hub.task.tokenizers.source
    assert [len(source.encode(x)) for x in ("one two three", "one two", "one two three one")] == [
        *(4, 3, 5)
    ]
    cutter = Cutter.of(source, 4)
    assert cutter.pieces("one two three one two") == ["one two three", "one two"]
    assert cutter.first("one two three one") == "one two three"
    assert not Cutter.of(source, 5).is_long("one two three one")


def test_prefixes_constraints_and_alignments(hub):
    """Only the output begins with a language; it belongs to no word."""
    translator, target = hub.task.translator, hub.task.tokenizers.target
    plain = target.for_language("")
    request = Request("one two", "drei", ["zwei", "eins drei"])
    (found,) = translator.encode([request], None)
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
    data = dataclasses.replace(hub.config.data, **data)
    training = dataclasses.replace(
        hub.config.training, full_validation_every=0, best_metric="nll", tokens_per_update=64
    )
    config = dataclasses.replace(hub.config, data=data, training=training)
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
    state = SimpleNamespace(params=hub.params, extra={}, step=1)
    assert list(training.prepare(state)) == ["validation step", "samples of corpora"]
    found, _ = training.validate(state, False, lambda *_: None)
    assert list(found) == ["nll", "train/nll", "back/nll", "copy/nll"]
    assert found["nll"] == pytest.approx(found["train/nll"], rel=1e-5)  # the same pairs
    assert len({*found.values()}) > 2


def test_languages_that_cannot_be(hub, tmp_path, random_params):
    language = {"source_language": "de", "weight": 1.0}
    corpus = Corpus(source=str(tmp_path / "one"), target=str(tmp_path / "two"), **language)
    said = r"data.corpora.x has a language of its own, so it cannot join the train split; give it a"
    with pytest.raises(UserError, match=said):
        prepared(hub, tmp_path, {"x": dataclasses.replace(corpus, weight=None)})
    ordinary = trained_model(random_params)
    said = r"^data.corpora.x names a language, and the vocabulary has no tokens for languages, as"
    with pytest.raises(UserError, match=said):
        prepared(hub, tmp_path, {"x": corpus}, ordinary.task.tokenizers)
    said = r"data.corpora.x.target_language is 'deu_Lat', which .* have; did you mean 'deu_Latn'\?$"
    with pytest.raises(UserError, match=said):
        prepared(hub, tmp_path, {"x": dataclasses.replace(corpus, target_language="deu_Lat")})
    with pytest.raises(UserError, match=r"data.target_language is 'deu_Lat', which .* mean 'deu_L"):
        prepared(hub, tmp_path, target_language="deu_Lat")
    with pytest.raises(UserError, match=r"^target_language is 'deu_Lat', which .* mean 'deu_Latn"):
        Model(hub).between("eng_Latn", "deu_Lat")
    with pytest.raises(
        UserError, match=r"^target_language is empty, and .*; choose one of deu_Latn, "
    ):
        Model(hub).between("eng_Latn", "")
    with pytest.raises(UserError, match=r"languages\[1\] is None; give a text"):
        Model(hub).between("eng_Latn", None)
    with pytest.raises(UserError, match=r"the vocabulary has no tokens for languages, as those of"):
        Model(ordinary).between("en", "de")
